"""Operations on elements, pairs and rows against float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.elementwise import Elementwise

if cp is None or not cp.cuda.is_available():
    pytest.skip("launches kernels: needs CuPy and an NVIDIA GPU", allow_module_level=True)

SHAPES = [(1, 18944), (3, 7, 40), (5, 33), (1,), (1000, 64), (0, 8)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_swiglu(
    compiler: Compiler,
    dtype: str,
    shape: tuple[int, ...],
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    rng = np.random.default_rng(1)
    gate, up = values(rng, dtype, *shape, size=6), values(rng, dtype, *shape)
    if gate.size:
        gate.flat[0] = -200  # exp(-gate) overflows
    got = Elementwise(compiler).swiglu(on_device(gate), on_device(up))
    wide = gate.astype(np.float64)
    assert_close(got, wide * 0.5 * (1 + np.tanh(wide / 2)) * up.astype(np.float64), dtype)


@pytest.mark.parametrize("columns", [64, 33])
def test_swiglu_of_two_halves_of_one_array(
    compiler: Compiler,
    dtype: str,
    columns: int,
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    rng = np.random.default_rng(2)
    both = values(rng, dtype, 9, 2 * columns)
    device = on_device(both)
    got = Elementwise(compiler).swiglu(device[:, :columns], device[:, columns:])
    gate, up = both[:, :columns].astype(np.float64), both[:, columns:].astype(np.float64)
    assert_close(got, gate / (1 + np.exp(-gate)) * up, dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gelu(
    compiler: Compiler,
    dtype: str,
    shape: tuple[int, ...],
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    x = values(np.random.default_rng(3), dtype, *shape, size=3)
    want = np.array([0.5 * a * math.erfc(-a / math.sqrt(2)) for a in x.flat]).reshape(shape)
    assert_close(Elementwise(compiler).gelu(on_device(x)), want, dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gelu_tanh(
    compiler: Compiler,
    dtype: str,
    shape: tuple[int, ...],
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    x = values(np.random.default_rng(3), dtype, *shape, size=3)
    wide = x.astype(np.float64)
    want = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    assert_close(Elementwise(compiler).gelu_tanh(on_device(x)), want, dtype)


@pytest.mark.parametrize("size", [8, 5])
def test_relu_keeps_nan(compiler: Compiler, on_device: Callable[..., Any], size: int) -> None:
    x = np.array([-2.0, 3.0, np.nan, -0.0, np.inf, -np.inf, 1e-30, -1e-30], np.float32)[:size]
    got = cp.asnumpy(Elementwise(compiler).relu(on_device(x)))
    np.testing.assert_array_equal(got, np.maximum(x, 0))


def test_gelu_far_below_zero_keeps_its_digits(
    compiler: Compiler, on_device: Callable[..., Any]
) -> None:
    x = np.linspace(-8, 0, 101, dtype=np.float32)[:-1]
    got = cp.asnumpy(Elementwise(compiler).gelu(on_device(x)))
    want = np.array([0.5 * float(a) * math.erfc(-float(a) / math.sqrt(2)) for a in x])
    assert np.abs(got / want - 1).max() < 2e-5


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_add_rounds_once(
    compiler: Compiler,
    dtype: str,
    shape: tuple[int, ...],
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    bits: Callable[..., Any],
) -> None:
    rng = np.random.default_rng(4)
    a, b = (values(rng, dtype, *shape) for _ in range(2))
    got = Elementwise(compiler).add(on_device(a), on_device(b))
    want = (a.astype(np.float32) + b.astype(np.float32)).astype(a.dtype)
    assert np.array_equal(bits(got), bits(want))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_residual", [False, True])
def test_add_bias_changes_its_argument(
    compiler: Compiler,
    dtype: str,
    shape: tuple[int, ...],
    with_residual: bool,
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    rng = np.random.default_rng(5)
    x, residual = (values(rng, dtype, *shape) for _ in range(2))
    bias = values(rng, dtype, shape[-1])
    device = on_device(x)
    more = on_device(residual) if with_residual else None
    assert Elementwise(compiler).add_bias(device, on_device(bias), more) is device
    want = x.astype(np.float64) + bias.astype(np.float64)
    if with_residual:
        want = want + residual.astype(np.float64)
    assert_close(device, want, dtype)


@pytest.mark.parametrize("shape", [(1, 28, 128), (300, 3, 80), (7, 2, 72), (5, 1, 18), (0, 2, 64)])
@pytest.mark.parametrize("gap", [0, 1])
def test_rotate(
    compiler: Compiler,
    dtype: str,
    shape: tuple[int, int, int],
    gap: int,
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    rotated: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    """With a gap the tokens' rows lie apart, as parts of one matrix product's result."""
    tokens, heads, dim = shape
    rng = np.random.default_rng(6)
    x = values(rng, dtype, tokens, heads + gap, dim)
    angles = rng.uniform(0, 6, (tokens, dim // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    got = Elementwise(compiler).rotate(on_device(x)[:, :heads], on_device(cos), on_device(sin))
    assert_close(got, rotated(x[:, :heads], cos, sin), dtype)


@pytest.mark.parametrize("shape", [(9, 3584), (9, 3, 33), (40,), (9, 7), (5000, 64)], ids=str)
def test_take_moves_rows(
    compiler: Compiler,
    dtype: str,
    shape: tuple[int, ...],
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    bits: Callable[..., Any],
) -> None:
    rng = np.random.default_rng(7)
    array = values(rng, dtype, *shape)
    array.flat[3] = np.nan
    rows = rng.integers(0, shape[0], 2 * shape[0]).astype(np.int32)
    rows[:2] = 0, shape[0] - 1
    got = Elementwise(compiler).take(on_device(array), on_device(rows))
    assert np.array_equal(bits(got), bits(array[rows]))


def test_take_of_no_rows(compiler: Compiler, on_device: Callable[..., Any]) -> None:
    empty = on_device(np.empty(0, np.int32))
    got = Elementwise(compiler).take(on_device(np.ones((4, 8), np.float32)), empty)
    assert got.shape == (0, 8)
