"""The environment variables of the MLX backend."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from omnitide.backends import describe_backend, load_backend
from omnitide.backends.mlx.backend import MlxBackend
from omnitide.backends.mlx.launch import Launcher
from omnitide.backends.mlx.switches import ATTENTION, WRITE_THROUGH, takes_shaders, writes_through
from omnitide.errors import BackendError, ConfigError

HAS_METAL = bool(mx.metal.is_available())
UNUSABLE = "It can't be loaded as it is set: "


@pytest.mark.parametrize(
    ("asked", "has_metal", "taken"),
    [
        (None, True, True),
        (None, False, False),
        ("", True, True),
        ("metal", True, True),
        ("plain", True, False),
        ("plain", False, False),
    ],
)
def test_shaders_are_taken_where_metal_is(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, has_metal: bool, taken: bool
) -> None:
    monkeypatch.delenv(ATTENTION, raising=False)
    if asked is not None:
        monkeypatch.setenv(ATTENTION, asked)
    assert takes_shaders(has_metal) is taken


def test_shaders_can_not_be_had_without_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ATTENTION, "metal")
    with pytest.raises(BackendError, match="OMNITIDE_MLX_ATTENTION=metal needs a Mac with Metal"):
        takes_shaders(False)


@pytest.mark.parametrize(
    ("name", "words"),
    [(ATTENTION, "must be plain or metal, got 'maybe'"), (WRITE_THROUGH, "must be 0 or 1, got")],
)
def test_a_value_without_meaning_is_refused_and_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.setenv(name, "maybe")
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_backend("mlx", "float32")
    assert describe_backend("mlx").note.startswith(f"{UNUSABLE}{name} {words}")


@pytest.mark.parametrize(("asked", "on"), [("", False), ("0", False), ("1", True)])
def test_writing_through_is_off_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: str, on: bool
) -> None:
    monkeypatch.setenv(WRITE_THROUGH, asked)
    assert writes_through() is on


def test_writing_through_needs_shaders() -> None:
    with pytest.raises(BackendError, match="only shaders can write into the pools"):
        MlxBackend("float32", "", write_through=True)


@pytest.mark.parametrize(
    ("kernel", "way_back"),
    [
        ("append", r"; unset OMNITIDE_METAL_WRITE_THROUGH to let MLX write into the pools$"),
        ("gather_rows", r"; set OMNITIDE_MLX_ATTENTION=plain to do without shaders$"),
    ],
)
def test_a_shader_that_does_not_compile_is_one_step_back(
    monkeypatch: pytest.MonkeyPatch, kernel: str, way_back: str
) -> None:
    """Writing through needs three kernels; two of them nothing else does."""
    said = f"{kernel}.metal:23:5: error: use of undeclared identifier 'maks'"

    def metal_kernel(name: str, **_: Any) -> Any:
        def run(**given: Any) -> list[mx.array]:
            if name == kernel:
                raise RuntimeError(f"[metal::Device] Unable to build metal library\n{said}")
            pairs = zip(given["output_shapes"], given["output_dtypes"], strict=True)
            return [mx.zeros(shape, dtype) for shape, dtype in pairs]

        return run

    monkeypatch.setattr(mx.fast, "metal_kernel", metal_kernel)
    with pytest.raises(BackendError) as raised:
        MlxBackend("float32", "", Launcher(), write_through=True)
    message = str(raised.value)
    assert message.startswith(f"[{kernel}] the shader can't be run (T mlx.core.float32, D 64): ")
    assert said in message
    assert re.search(way_back, message)


def test_writing_through_is_refused_where_the_writes_are_lost(mover: Callable[..., Any]) -> None:
    with pytest.raises(BackendError, match=r"does not work here: .* unset OMNITIDE_METAL_WRITE"):
        MlxBackend("float32", "", mover(lambda _: True), write_through=True)


def test_the_note_says_which_attention_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ATTENTION, "plain")
    assert describe_backend("mlx").note.endswith("Attention in MLX's own operations")
    monkeypatch.setenv(WRITE_THROUGH, "1")
    assert describe_backend("mlx").note == f"{UNUSABLE}{WRITE_THROUGH}=1 needs shaders; unset it"
    monkeypatch.setenv(ATTENTION, "metal")
    monkeypatch.delenv(WRITE_THROUGH)
    needs = f"{UNUSABLE}{ATTENTION}=metal needs a Mac with Metal; unset it to run in plain"
    assert describe_backend("mlx").note.startswith(needs) is not HAS_METAL
    monkeypatch.delenv(ATTENTION)
    shaders = "Attention through Metal shaders" in describe_backend("mlx").note
    assert shaders is HAS_METAL
