"""`omnitide selftest`: what it compares, that it fails where something is wrong, and its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from omnitide.backends import describe_backend, load_backend
from omnitide.backends.mlx import attention
from omnitide.backends.mlx.backend import MlxBackend
from omnitide.backends.mlx.selftest import CASES, Check, compare
from omnitide.backends.mlx.shaders import HEAD_DIMS
from omnitide.cli import main, selftest
from omnitide.errors import BackendError

HAS_METAL = bool(mx.metal.is_available())
CHECKS = (len(CASES) + 1) * len(HEAD_DIMS)
PLAIN = MlxBackend.attention


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """`call(*arguments)`: exit code, stdout and stderr of a selftest without times."""
    monkeypatch.delenv("OMNITIDE_MLX_ATTENTION", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["selftest", "--quick", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_all_is_well_here(call: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = call()
    assert (code, err) == (0, "")
    assert out.count(f"{CHECKS} of {CHECKS} checks passed") == 3
    assert out.startswith("omnitide selftest: ")
    assert ("no Metal here" in out) is not HAS_METAL
    assert ("writing through" in out) is HAS_METAL
    assert out.endswith("All is as it should be.\n")
    assert max(map(len, out.splitlines())) < 160


def test_one_dtype_alone(call: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = call("--dtype", "float32")
    assert code == 0
    assert "float16" not in out


def test_an_unknown_dtype_is_refused(call: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = call("--dtype", "float64")
    assert (code, out) == (2, "")
    assert "float32" in err


def test_a_switch_without_meaning_is_refused(
    call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNITIDE_MLX_ATTENTION", "fast")
    code, _, err = call()
    assert code == 2
    assert "must be plain or metal" in err


def dead_rows_touched(*given: Any) -> Any:
    return PLAIN(*given) * mx.array(np.nan)


def queries_see_all(self: Any, q: Any, pools: Any, layer: int, step: Any, scale: float) -> Any:
    at = self._on_device(step)
    k = attention.rotate(pools.keys[layer][at.cells.page, :, at.cells.row], at.cells.cos,
                         at.cells.sin)  # fmt: skip
    v = pools.values[layer][at.cells.page, :, at.cells.row]
    turned = attention.rotate(q, at.cells.query_cos, at.cells.query_sin)
    out = mx.fast.scaled_dot_product_attention(
        *(x.transpose(1, 0, 2)[None] for x in (turned, k, v)), scale=scale
    )
    return out[0].transpose(1, 0, 2)


def half_a_percent_off(*given: Any) -> Any:
    return PLAIN(*given) * 1.005


@pytest.mark.parametrize("wrong", [dead_rows_touched, queries_see_all, half_a_percent_off])
def test_wrong_attention_is_found(
    call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, wrong: Any
) -> None:
    monkeypatch.setattr(MlxBackend, "attention", wrong)
    code, out, _ = call("--dtype", "float32")
    assert code == selftest.WRONG
    assert "FAILED  float32: prefill, head size 64: error" in out
    assert out.count("FAILED  ") <= selftest.SHOWN
    assert out.endswith("checks FAILED.\n")


def test_a_wrong_migration_is_found(
    call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = MlxBackend.migrate

    def migrate(self: Any, pools: Any, source: Any, destination: Any) -> None:
        inner(self, pools, source[:-1], destination[:-1])

    monkeypatch.setattr(MlxBackend, "migrate", migrate)
    code, out, _ = call("--dtype", "float16")
    assert code == selftest.WRONG
    assert out.count("FAILED  float16: append and migrate") == len(HEAD_DIMS)


def test_what_can_not_be_run_is_told_beside_all_others(
    call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def attention(self: Any, q: Any, *rest: Any) -> Any:
        if q.shape[2] == 80 and q.shape[0] > 16:
            raise BackendError("[rotate] the shader can't be run: rotate.metal:23:5: error")
        return PLAIN(self, q, *rest)

    monkeypatch.setattr(MlxBackend, "attention", attention)
    code, out, _ = call("--dtype", "float32")
    assert code == selftest.WRONG
    assert f"float32   {CHECKS - 3} of {CHECKS} checks passed; largest error" in out
    assert out.count("FAILED  float32: prefill") == out.count("rotate.metal:23:5: error") == 3
    assert out.endswith("3 checks FAILED.\n")


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """`mac(launcher)`: to the command this machine is a Mac whose shaders that launcher runs.

    What is compared still runs in plain operations.
    """

    def pretend(launcher: Any) -> None:
        info = replace(describe_backend("mlx"), accelerated=True)
        monkeypatch.setattr(selftest, "describe_backend", lambda name: info)
        monkeypatch.setattr(mx, "device_info", lambda: {"architecture": "applegpu_g13g"})
        monkeypatch.setattr("omnitide.backends.mlx.launch.Launcher", lambda: launcher)
        monkeypatch.setattr("omnitide.backends.mlx.timings.appends_in_place", lambda: True)

    return pretend


@pytest.mark.skipif(HAS_METAL, reason="pretends to be a Mac")
@pytest.mark.parametrize(("lost", "words"), [(-1, "works"), (4, "does not work: of 100 reads")])
def test_writing_through_is_tried(
    call: Callable[..., tuple[int, str, str]], mac: Any, mover: Any, lost: int, words: str
) -> None:
    mac(mover(lambda number: number == lost))
    code, out, _ = call("--dtype", "float32")
    assert code == 0
    assert f"writing through (OMNITIDE_METAL_WRITE_THROUGH, off) {words}" in out
    assert "own scatter into a pool: in place" in out


@pytest.mark.skipif(HAS_METAL, reason="pretends to be a Mac")
def test_the_switch_turned_on_where_it_does_not_work_fails_and_the_report_goes_on(
    mac: Any, mover: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMNITIDE_METAL_WRITE_THROUGH", "1")
    mac(mover(lambda _: True))
    code, out = main(["selftest", "--quick", "--dtype", "float32"]), capsys.readouterr().out
    assert code == selftest.WRONG
    assert "(OMNITIDE_METAL_WRITE_THROUGH, on) does not work: of 100 reads" in out
    assert out.endswith("checks FAILED.\n")


@pytest.mark.skipif(HAS_METAL, reason="pretends to be a Mac")
def test_shaders_that_do_not_compile_leave_a_whole_report(
    mac: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(kernel: Any, *_: Any) -> Any:
        raise BackendError(f"[{kernel.name}] the shader can't be run: error: what Metal says")

    monkeypatch.setattr("omnitide.backends.mlx.timings.SHAPES", ((64, 1),))
    mac(refuse)
    code, out = main(["selftest", "--dtype", "float32"]), capsys.readouterr().out
    assert code == selftest.WRONG
    assert "off) does not work: [append] the shader can't be run: error: what Metal says" in out
    assert "\nFAILED  [decode_attention] the shader can't be run" in out
    assert out.endswith("1 check FAILED.\n")


def test_numbers_that_are_none_do_not_pass() -> None:
    assert not Check("", float("nan"), 1.0).passed
    assert Check("", 0.0, 0.0).passed


def test_every_case_is_compared() -> None:
    checks = list(compare(load_backend("mlx", "float32"), load_backend("reference", "float64")))
    assert len({check.name for check in checks}) == CHECKS
