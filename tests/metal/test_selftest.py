"""`omnitide selftest`: what it compares, that it fails where something is wrong, and its report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from omnitide.backends import load_backend
from omnitide.backends.mlx import attention
from omnitide.backends.mlx.backend import MlxBackend
from omnitide.backends.mlx.selftest import CASES, Check, compare
from omnitide.backends.mlx.shaders import HEAD_DIMS
from omnitide.cli import main, selftest

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


def test_numbers_that_are_none_do_not_pass() -> None:
    assert not Check("", float("nan"), 1.0).passed
    assert Check("", 0.0, 0.0).passed


def test_every_case_is_compared() -> None:
    checks = list(compare(load_backend("mlx", "float32"), load_backend("reference", "float64")))
    assert len({check.name for check in checks}) == CHECKS
