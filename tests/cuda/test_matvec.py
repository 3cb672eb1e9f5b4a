"""Products of a few rows with weights against float64; overlapping launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.matvec import MatVec

if cp is None or not cp.cuda.is_available():
    pytest.skip("launches kernels: needs CuPy and an NVIDIA GPU", allow_module_level=True)

EPS = 1e-6
HALVES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])

# (in, out): one vector, rests of every kind, several pieces a row, more rows than a batch of sums.
SHAPES = [(8, 1), (16, 3), (40, 131), (264, 133), (1000, 2130), (2056, 700), (6152, 140)]
TOKENS = [1, 2, 3, 8]


def wide(array: NDArray[Any]) -> NDArray[np.float64]:
    return array.astype(np.float64)


def normed(x: NDArray[Any], weight: NDArray[Any]) -> NDArray[np.float64]:
    """The RMS norm, rounded to the dtype as the kernels round it."""
    square = (wide(x) ** 2).mean(axis=-1, keepdims=True)
    return wide((wide(x) / np.sqrt(square + EPS) * wide(weight)).astype(x.dtype))


@pytest.fixture(scope="module")
def matvec(compiler: Compiler) -> MatVec:
    return MatVec(compiler, cp.cuda.Device().attributes["MultiProcessorCount"])


@HALVES
@pytest.mark.parametrize("size", SHAPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
def test_linear(
    matvec: MatVec,
    dtype: str,
    size: tuple[int, int],
    tokens: int,
    values: Callable[..., NDArray[Any]],
    on_device: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    (width, height), rng = size, np.random.default_rng(1)
    x, bias = values(rng, dtype, tokens, width, size=3), values(rng, dtype, height)
    weight = values(rng, dtype, height, width, size=width**-0.5)
    residual = values(rng, dtype, tokens, height)
    product = wide(x) @ wide(weight).T
    arrays = [on_device(array) for array in (x, weight, bias, residual)]
    assert_close(matvec.linear(*arrays[:2]), product, dtype)
    assert_close(matvec.linear(*arrays), product + wide(bias) + wide(residual), dtype)


@HALVES
@pytest.mark.parametrize("size", SHAPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
def test_project(
    matvec: MatVec,
    dtype: str,
    size: tuple[int, int],
    tokens: int,
    values: Callable[..., NDArray[Any]],
    on_device: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    (width, height), rng = size, np.random.default_rng(2)
    x, norm = values(rng, dtype, tokens, width, size=3), values(rng, dtype, width)
    heights = (height, height // 7 + 1, height // 7 + 1)
    weights = [values(rng, dtype, rows, width, size=width**-0.5) for rows in heights]
    biases = [values(rng, dtype, height), None, values(rng, dtype, heights[2])]
    pairs = [
        (on_device(weight), None if bias is None else on_device(bias))
        for weight, bias in zip(weights, biases, strict=True)
    ]
    outs = matvec.project(on_device(x), on_device(norm), EPS, pairs)
    for out, weight, bias in zip(outs, weights, biases, strict=True):
        added = 0 if bias is None else wide(bias)
        assert_close(out, normed(x, norm) @ wide(weight).T + added, dtype)


@HALVES
@pytest.mark.parametrize("size", SHAPES, ids=str)
@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("biased", [False, True])
def test_gated(
    matvec: MatVec,
    dtype: str,
    size: tuple[int, int],
    tokens: int,
    biased: bool,
    values: Callable[..., NDArray[Any]],
    on_device: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    (width, height), rng = size, np.random.default_rng(3)
    x, norm = values(rng, dtype, tokens, width, size=3), values(rng, dtype, width)
    weights = [values(rng, dtype, height, width, size=width**-0.5) for _ in range(2)]
    biases = [values(rng, dtype, height) for _ in range(2)]
    n = normed(x, norm)
    gate, up = (
        n @ wide(weight).T + (wide(bias) if biased else 0)
        for weight, bias in zip(weights, biases, strict=True)
    )
    matrices = [
        on_device(array) if array is not None else None
        for weight, bias in zip(weights, biases, strict=True)
        for array in (weight, bias if biased else None)
    ]
    out = matvec.gated(on_device(x), on_device(norm), EPS, *matrices)
    assert_close(out, gate / (1 + np.exp(-gate)) * up, dtype)


@HALVES
def test_overlapping_launches_give_what_launches_in_turn_give(
    compiler: Compiler,
    dtype: str,
    values: Callable[..., NDArray[Any]],
    on_device: Callable[..., Any],
    bits: Callable[..., NDArray[Any]],
) -> None:
    rng, hidden, inner = np.random.default_rng(5), 512, 1376
    square = on_device(values(rng, dtype, hidden, hidden, size=hidden**-0.5))
    gate, up = (on_device(values(rng, dtype, inner, hidden, size=hidden**-0.5)) for _ in range(2))
    down = on_device(values(rng, dtype, hidden, inner, size=inner**-0.5))
    norm = on_device(values(rng, dtype, hidden))
    start = on_device(values(rng, dtype, 1, hidden))

    def run(kernels: MatVec) -> Any:
        x = start
        for _ in range(40):
            (queries,) = kernels.project(x, norm, EPS, [(square, None)])
            x = kernels.linear(queries, square, None, x)
            x = kernels.linear(kernels.gated(x, norm, EPS, gate, None, up, None), down, None, x)
        return x

    in_turn = run(MatVec(compiler, 7))
    count = cp.cuda.Device().attributes["MultiProcessorCount"]
    overlapping = MatVec(compiler, count, overlap=True)
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        run(overlapping)
        stream.begin_capture()
        recorded = run(overlapping)
        graph = stream.end_capture()
        for _ in range(20):
            graph.launch(stream)
            assert np.array_equal(bits(recorded), bits(in_turn))
