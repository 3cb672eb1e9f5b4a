"""Norms against float64, over sizes that fill a block, leave a rest, or are not aligned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.norms import Norms

if cp is None or not cp.cuda.is_available():
    pytest.skip("launches kernels: needs CuPy and an NVIDIA GPU", allow_module_level=True)

SHAPES = [(1, 3584), (3, 5, 1280), (2, 1), (7, 33), (4, 1000), (2, 16384), (2, 16383), (0, 64)]


def scale_of(x: Any, eps: float) -> Any:
    return 1 / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm(
    compiler: Compiler,
    dtype: str,
    shape: tuple[int, ...],
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    rng = np.random.default_rng(1)
    x, weight = values(rng, dtype, *shape, size=3), values(rng, dtype, shape[-1])
    got = Norms(compiler).rms_norm(on_device(x), on_device(weight), 1e-6)
    wide = x.astype(np.float64)
    assert_close(got, wide * scale_of(wide, 1e-6) * weight.astype(np.float64), dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_add_rms_norm_gives_the_rounded_sum_and_its_norm(
    compiler: Compiler,
    dtype: str,
    shape: tuple[int, ...],
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    bits: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    rng = np.random.default_rng(2)
    x, addend = (values(rng, dtype, *shape) for _ in range(2))
    weight = values(rng, dtype, shape[-1])
    arrays = (on_device(array) for array in (x, addend, weight))
    total, got = Norms(compiler).add_rms_norm(*arrays, 1e-5)
    right = (x.astype(np.float32) + addend.astype(np.float32)).astype(x.dtype)
    assert np.array_equal(bits(total), bits(right))
    wide = right.astype(np.float64)
    assert_close(got, wide * scale_of(wide, 1e-5) * weight.astype(np.float64), dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mean", [0, 100])
def test_layer_norm(
    compiler: Compiler,
    dtype: str,
    shape: tuple[int, ...],
    mean: float,
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    """A mean far from 0 shows whether the variance is taken of differences."""
    rng = np.random.default_rng(3)
    weight, bias = (values(rng, dtype, shape[-1]) for _ in range(2))
    x = (mean + rng.standard_normal(shape)).astype(weight.dtype)
    got = Norms(compiler).layer_norm(*(on_device(array) for array in (x, weight, bias)), 1e-5)
    centred = x.astype(np.float64) - x.astype(np.float64).mean(axis=-1, keepdims=True)
    want = centred * scale_of(centred, 1e-5) * weight.astype(np.float64) + bias.astype(np.float64)
    assert_close(got, want, dtype)


def test_an_array_that_starts_off_an_access_gives_the_same(
    compiler: Compiler,
    dtype: str,
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    rng = np.random.default_rng(4)
    x, weight = values(rng, dtype, 1 + 2 * 64), values(rng, dtype, 64)
    got = Norms(compiler).rms_norm(on_device(x)[1:].reshape(2, 64), on_device(weight), 1e-6)
    wide = x[1:].reshape(2, 64).astype(np.float64)
    assert_close(got, wide * scale_of(wide, 1e-6) * weight.astype(np.float64), dtype)
