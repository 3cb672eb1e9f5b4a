"""Log-probabilities and the greatest value, over the sizes of vocabularies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.sampling import Sampling

if cp is None or not cp.cuda.is_available():
    pytest.skip("launches kernels: needs CuPy and an NVIDIA GPU", allow_module_level=True)

SIZES = [1, 31, 1000, 2049, 152_064, 152_063, 700_000]


@pytest.mark.parametrize("size", SIZES)
def test_log_softmax(
    compiler: Compiler,
    dtype: str,
    size: int,
    values: Callable[..., Any],
    on_device: Callable[..., Any],
) -> None:
    """Float32 out, right to a few of its last digits whatever the dtype of the logits."""
    logits = values(np.random.default_rng(1), dtype, size, size=8)
    logits[size // 2] = -np.inf if size > 1 else 5
    got = Sampling(compiler).log_softmax(on_device(logits))
    assert got.dtype == np.float32
    wide = logits.astype(np.float64)
    want = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    finite = np.isfinite(want)
    host = cp.asnumpy(got)
    assert np.array_equal(np.isneginf(host), ~finite)
    assert np.abs(host[finite] - want[finite]).max() < 1e-5


@pytest.mark.parametrize("at", [0, 77_000, 152_063])
def test_one_nan_makes_all_log_probabilities_nan(
    compiler: Compiler,
    dtype: str,
    at: int,
    values: Callable[..., Any],
    on_device: Callable[..., Any],
) -> None:
    logits = values(np.random.default_rng(2), dtype, 152_064)
    logits[at] = np.nan
    assert np.isnan(cp.asnumpy(Sampling(compiler).log_softmax(on_device(logits)))).all()


@pytest.mark.parametrize("size", SIZES)
def test_argmax_is_the_lowest_index_of_the_greatest(
    compiler: Compiler,
    dtype: str,
    size: int,
    values: Callable[..., Any],
    on_device: Callable[..., Any],
) -> None:
    """In large arrays the greatest stands in many places."""
    x = values(np.random.default_rng(3), dtype, size)
    x[x > 2] = 2
    got = Sampling(compiler).argmax(on_device(x))
    assert (got.shape, got.dtype) == ((1,), np.int32)
    assert int(got[0]) == int(np.argmax(x.astype(np.float64)))


@pytest.mark.parametrize("at", [0, 1, 99_999, 152_062])
def test_argmax_anywhere(
    compiler: Compiler, dtype: str, at: int, on_device: Callable[..., Any]
) -> None:
    x = np.full(152_063, -np.inf, np.float32)
    sampling = Sampling(compiler)
    x[at] = -1000
    assert int(sampling.argmax(on_device(x))[0]) == at
    x[min(at + 1, len(x) - 1)] = np.nan
    assert int(sampling.argmax(on_device(x))[0]) == -1


def test_argmax_of_nothing_but_minus_infinity(
    compiler: Compiler, on_device: Callable[..., Any]
) -> None:
    x = on_device(np.full(5000, -np.inf, np.float32))
    assert int(Sampling(compiler).argmax(x)[0]) == 0
