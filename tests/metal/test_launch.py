"""What the launcher gives to MLX, and what it makes of MLX's refusals."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from omnitide.backends.mlx.launch import Launcher
from omnitide.backends.mlx.shaders import MetalKernel
from omnitide.errors import BackendError

KERNEL = MetalKernel("twice", "source", "header", ("x", "n"), ("y",), (("T", mx.float16), ("D", 3)))
ARGUMENTS: tuple[Any, ...] = (
    KERNEL,
    {"n": 2, "x": mx.ones(5)},
    {"y": ((5,), mx.float32)},
    (5, 1, 1),
    (32, 1, 1),
)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `mx.fast.metal_kernel` and its kernels were called with."""
    calls: list[dict[str, Any]] = []

    def metal_kernel(**given: Any) -> Any:
        calls.append(given)

        def kernel(**launch: Any) -> list[mx.array]:
            calls.append(launch)
            return [launch["inputs"][0] * 2]

        return kernel

    monkeypatch.setattr(mx.fast, "metal_kernel", metal_kernel)
    return calls


def test_a_kernel_is_made_once_and_given_its_arguments_in_order(
    made: list[dict[str, Any]],
) -> None:
    launch = Launcher()
    for _ in range(2):
        (result,) = launch(*ARGUMENTS)
        assert result.tolist() == [2] * 5
    kernel, first, second = made
    assert kernel == {
        "name": "twice",
        "input_names": ["x", "n"],
        "output_names": ["y"],
        "header": "header",
        "source": "source",
    }
    assert first["inputs"] == [ARGUMENTS[1]["x"], 2]
    assert first["template"] == [("T", mx.float16), ("D", 3)]
    assert (first["grid"], first["threadgroup"]) == ((5, 1, 1), (32, 1, 1))
    assert (first["output_shapes"], first["output_dtypes"]) == ([(5,)], [mx.float32])
    assert second["inputs"] == first["inputs"]


@pytest.mark.skipif(mx.metal.is_available(), reason="here Metal is, and this kernel has no text")
def test_without_metal_it_says_so_and_what_to_do() -> None:
    with pytest.raises(BackendError) as raised:
        Launcher()(*ARGUMENTS)
    for words in ("[twice]", "T mlx.core.float16, D 3", "No Metal back-end", "=plain"):
        assert words in str(raised.value)


def test_a_compile_error_is_shown_and_the_kernel_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, made: list[dict[str, Any]]
) -> None:
    """MLX compiles when it computes, so that is where Metal's message comes from."""

    def refuse(*_: Any) -> None:
        raise RuntimeError("rotate.metal:23:5: error: use of undeclared identifier 'maks'")

    launch = Launcher()
    with monkeypatch.context() as broken:
        broken.setattr(mx, "eval", refuse)
        with pytest.raises(BackendError, match=r"\[twice\].*rotate\.metal:23:5: error: use of"):
            launch(*ARGUMENTS)
    launch(*ARGUMENTS)
    assert [call.get("name") for call in made] == ["twice", None, "twice", None]


def test_too_many_threads_are_shown_likewise(
    monkeypatch: pytest.MonkeyPatch, made: list[dict[str, Any]]
) -> None:
    """MLX finds that when it computes, and raises a ValueError."""

    def refuse(*_: Any) -> None:
        raise ValueError("Thread group size (512) is greater than the maximum allowed")

    monkeypatch.setattr(mx, "eval", refuse)
    with pytest.raises(BackendError, match=r"\[twice\].*size \(512\).*=plain"):
        Launcher()(*ARGUMENTS)
    assert len(made) == 2


def test_each_signature_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, made: list[dict[str, Any]]
) -> None:
    """MLX compiles anew for another dtype, and for few elements, which are in constant memory."""
    waited: list[int] = []
    monkeypatch.setattr(mx, "eval", lambda results: waited.append(len(made)))
    launch = Launcher()
    kernel, _, *rest = ARGUMENTS
    inputs = [mx.ones(7), mx.ones(8), mx.ones(7, mx.int32)]
    for _ in range(2):
        for x in inputs:
            launch(kernel, {"n": 2, "x": x}, *rest)
    assert waited == [2, 3, 4]
    assert len(made) == 1 + 2 * len(inputs)


@pytest.mark.skipif(not mx.metal.is_available(), reason="needs a Mac with Metal")
def test_metals_own_message_names_the_line_of_the_file() -> None:
    broken = MetalKernel("broken", '\n#line 7 "own.metal"\n  y[0] = maks;', "", ("x",), ("y",), ())
    with pytest.raises(BackendError, match=r"own\.metal:7"):
        Launcher()(broken, {"x": mx.ones(9)}, {"y": ((9,), mx.float32)}, (1, 1, 1), (1, 1, 1))
