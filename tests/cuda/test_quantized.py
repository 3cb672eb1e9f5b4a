"""Products with quantised weights, and their values, against float64 and NumPy's dequantisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.dequantize import Dequantize
from omnitide.backends.cuda.quantized_matmul import QuantizedMatMul
from omnitide.backends.cuda.quantized_matvec import QuantizedMatVec, Ring
from omnitide.dequantize import dequantize
from omnitide.quantized import QuantizedWeight

if cp is None or not cp.cuda.is_available():
    pytest.skip("launches kernels: needs CuPy and an NVIDIA GPU", allow_module_level=True)

EPS = 1e-6
FLOATS = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
}
HALVES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
KINDS = pytest.mark.parametrize(
    ("bits", "group"), [(bits, group) for bits in (4, 8) for group in (32, 64, 128)]
)


class Made:
    """A weight on the device, and its values in float64."""

    def __init__(self, rng: Any, dtype: str, height: int, width: int, bits: int, group: int):
        shape = (height, width // group)
        size = width**-0.5
        packed = rng.integers(0, 1 << 32, (height, width * bits // 32), dtype=np.uint32)
        # Scales of either sign, as MLX makes them; values on both sides of 0.
        scales = (size / (1 << (bits - 2)) * rng.standard_normal(shape)).astype(FLOATS[dtype])
        biases = (size * rng.standard_normal(shape)).astype(FLOATS[dtype])
        host = QuantizedWeight(packed, scales, biases, bits, group, "affine")
        self.host = host
        self.values = dequantize(host, np.dtype(np.float64))
        self.rounded = wide(self.values.astype(FLOATS[dtype]))  # as if it had been stored so
        arrays = (cp.asarray(array) for array in (packed, scales, biases))
        self.weight = QuantizedWeight(*arrays, bits, group, "affine")


def wide(array: NDArray[Any]) -> NDArray[np.float64]:
    return array.astype(np.float64)


def normed(x: NDArray[Any], weight: NDArray[Any]) -> NDArray[np.float64]:
    """The RMS norm, rounded to the dtype as the kernels round it."""
    square = (wide(x) ** 2).mean(axis=-1, keepdims=True)
    return wide((wide(x) / np.sqrt(square + EPS) * wide(weight)).astype(x.dtype))


@pytest.fixture(scope="module")
def multiprocessors() -> int:
    return int(cp.cuda.Device().attributes["MultiProcessorCount"])


# (groups in a row, out): one group, odd and even numbers of groups, several pieces a row, rests.
SHAPES = [(1, 1), (7, 131), (28, 2130), (56, 300), (118, 533)]
# By default; few warps that take many pieces each; one slot; more slots than pieces.
RINGS = [None, Ring(3, 64, 2), Ring(8, 128, 1), Ring(4, 256, 5)]


def check_few_rows(
    matvec: QuantizedMatVec,
    dtype: str,
    bits: int,
    group: int,
    tokens: int,
    size: tuple[int, int],
    values: Callable[..., NDArray[Any]],
    on_device: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    """Each way to multiply: with a residual, three matrices of a norm, gated."""
    (groups, height), rng = size, np.random.default_rng(1)
    width = groups * group
    x, norm = values(rng, dtype, tokens, width, size=3), values(rng, dtype, width)
    on_x, on_norm = on_device(x), (on_device(norm), EPS)
    made = Made(rng, dtype, height, width, bits, group)
    if not matvec.takes(tokens, made.weight, norm=True, gated=True):
        pytest.skip("so many rows of x don't fit into shared memory; the backend knows")
    bias, residual = values(rng, dtype, height), values(rng, dtype, tokens, height)
    pair = (made.weight, on_device(bias))
    (out,) = matvec.multiply(on_x, [pair], residual=on_device(residual))
    assert_close(out, wide(x) @ made.values.T + wide(bias) + wide(residual), dtype)

    n = normed(x, norm)
    others = [Made(rng, dtype, height // 7 + 1, width, bits, group) for _ in range(2)]
    other_bias = values(rng, dtype, height // 7 + 1)
    pairs = [pair, (others[0].weight, None), (others[1].weight, on_device(other_bias))]
    first, second, third = matvec.multiply(on_x, pairs, on_norm)
    assert_close(first, n @ made.values.T + wide(bias), dtype)
    assert_close(second, n @ others[0].values.T, dtype)
    assert_close(third, n @ others[1].values.T + wide(other_bias), dtype)

    up = Made(rng, dtype, height, width, bits, group)
    (out,) = matvec.multiply(on_x, [pair, (up.weight, None)], on_norm, gated=True)
    gate = n @ made.values.T + wide(bias)
    assert_close(out, gate / (1 + np.exp(-gate)) * (n @ up.values.T), dtype)


@HALVES
@KINDS
@pytest.mark.parametrize("tokens", [1, 3, 8, 16])
@pytest.mark.parametrize("size", SHAPES, ids=str)
def test_few_rows(
    compiler: Compiler,
    multiprocessors: int,
    dtype: str,
    bits: int,
    group: int,
    tokens: int,
    size: tuple[int, int],
    values: Callable[..., NDArray[Any]],
    on_device: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    ring = RINGS[(size[0] + tokens) % len(RINGS)]
    matvec = QuantizedMatVec(compiler, multiprocessors, *([] if ring is None else [[ring]]))
    check_few_rows(matvec, dtype, bits, group, tokens, size, values, on_device, assert_close)


@HALVES
@pytest.mark.parametrize(("bits", "group"), [(4, 64), (8, 32)])
@pytest.mark.parametrize("tokens", [1, 5, 16])
def test_blocks_of_many_tiles(
    compiler: Compiler,
    dtype: str,
    bits: int,
    group: int,
    tokens: int,
    values: Callable[..., NDArray[Any]],
    on_device: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    """Several batches of tiles; tiles that lie in two or three matrices."""
    matvec = QuantizedMatVec(compiler, 1, [Ring(8, 256, 2)])
    size = (28, 2130)
    check_few_rows(matvec, dtype, bits, group, tokens, size, values, on_device, assert_close)


@HALVES
@pytest.mark.parametrize("ring", [Ring(16, 256, 2), Ring(8, 256, 2), Ring(4, 64, 3)])
def test_overlapping_launches_give_what_launches_in_turn_give(
    multiprocessors: int,
    dtype: str,
    ring: Ring,
    values: Callable[..., NDArray[Any]],
    on_device: Callable[..., Any],
    bits: Callable[..., NDArray[Any]],
) -> None:
    rng, hidden, inner = np.random.default_rng(6), 512, 1408
    shapes = [(hidden, hidden), (inner, hidden), (inner, hidden), (hidden, inner)]
    square, gate, up, down = ((Made(rng, dtype, *s, 4, 64).weight, None) for s in shapes)
    norm = (on_device(values(rng, dtype, hidden)), EPS)
    start = on_device(values(rng, dtype, 1, hidden))
    matvec = QuantizedMatVec(Compiler(), multiprocessors, [ring])

    def run(overlap: bool) -> Any:
        x = start
        for _ in range(40):
            (y,) = matvec.multiply(x, [square], norm, overlap=overlap)
            (inner,) = matvec.multiply(y, [gate, up], norm, gated=True, overlap=overlap)
            (x,) = matvec.multiply(inner, [down], residual=x, overlap=overlap)
        return x

    in_turn = bits(run(overlap=False))
    stream = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with stream:
        run(overlap=True)
        stream.begin_capture()
        recorded = run(overlap=True)
        graph = stream.end_capture()
        for _ in range(20):
            graph.launch(stream)
            assert np.array_equal(bits(recorded), in_turn)


@HALVES
@KINDS
@pytest.mark.parametrize("tokens", [3, 20])
def test_what_is_not_finite_stays_in_its_row_and_column(
    compiler: Compiler,
    multiprocessors: int,
    dtype: str,
    bits: int,
    group: int,
    tokens: int,
    values: Callable[..., NDArray[Any]],
) -> None:
    rng, width, height = np.random.default_rng(4), 7 * group, 131
    made, x = Made(rng, dtype, height, width, bits, group), values(rng, dtype, tokens, width)
    x[0, 3], x[2, width - 1] = np.nan, np.inf
    scales, biases = made.host.scales.copy(), made.host.biases.copy()  # type: ignore[union-attr]
    scales[7, 2], biases[130, 6] = np.inf, np.nan
    host = QuantizedWeight(made.host.packed, scales, biases, bits, group, "affine")
    arrays = (cp.asarray(array) for array in (host.packed, scales, biases))
    pair = (QuantizedWeight(*arrays, bits, group, "affine"), None)
    with np.errstate(invalid="ignore"):
        want = wide(x) @ dequantize(host, np.dtype(np.float64)).T
        product: Any = QuantizedMatMul if tokens > 16 else QuantizedMatVec
        got = wide(
            cp.asnumpy(product(compiler, multiprocessors).multiply(cp.asarray(x), [pair])[0])
        )
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    assert np.isnan(got[0]).all()
    assert np.isnan(got[:, 130]).all()


def powers(x: NDArray[np.float64], group: int) -> NDArray[np.float64]:
    """P of fixed_point.cuh for each element: 255/256 of it are above the group's greatest."""
    candidates = 2.0 ** np.arange(-111, 130)
    greatest = np.abs(x.reshape(-1, group)).max(axis=1)
    chosen = candidates[(255 / 256 * candidates <= greatest[:, None]).sum(axis=1)]
    return np.repeat(chosen, group)


def one_token(kind: str, dtype: str, group: int) -> NDArray[Any]:
    """A row of x that is hard to hold in 16 bits a group."""
    rng, groups = np.random.default_rng(9), 7
    x = rng.standard_normal((groups, group))
    every, half = np.arange(groups), dtype == "float16"
    if kind == "one enormous in each group":
        enormous = 2 ** np.linspace(2, 11 if half else 40, groups)
        x[every, rng.integers(group, size=groups)] = rng.choice([-1, 1], groups) * enormous
    elif kind == "groups of zeros":
        x[[0, 2, 3, 6]] = 0
    elif kind == "nothing but zeros":
        x[...] = 0
    elif kind == "denormals":
        x = rng.integers(-1023, 1024, x.shape) * 2.0**-24 if half else x * 2.0**-126
    elif kind == "nearly the largest":
        x *= 2.0 ** (14 if half else 115)  # a group's sum must be finite, too
        x[every, rng.integers(group, size=groups)] = 65504 if half else 254 / 256 * 2.0**128
    return x.reshape(1, -1).astype(FLOATS[dtype])


KINDS_OF_X = (
    "one enormous in each group",
    "groups of zeros",
    "nothing but zeros",
    "denormals",
    "nearly the largest",
)


@HALVES
@KINDS
@pytest.mark.parametrize("kind", KINDS_OF_X)
def test_one_token_has_16_bits_of_a_power_of_two_in_each_group(
    compiler: Compiler, multiprocessors: int, dtype: str, bits: int, group: int, kind: str
) -> None:
    """Of the identity each output is a single number of x: what it is rounded to."""
    x = one_token(kind, dtype, group)
    width = x.shape[1]
    codes = np.eye(width, dtype=np.uint32).reshape(width, -1, 32 // bits)
    packed = (codes << (bits * np.arange(32 // bits, dtype=np.uint32))).sum(axis=2, dtype=np.uint32)
    scales = np.ones((width, width // group), FLOATS[dtype])
    arrays = (cp.asarray(array) for array in (packed, scales, np.zeros_like(scales)))
    pair = (QuantizedWeight(*arrays, bits, group, "affine"), None)
    product = QuantizedMatVec(compiler, multiprocessors).multiply(cp.asarray(x), [pair])[0]
    got, right = wide(cp.asnumpy(product))[0], wide(x)[0]
    power = powers(right, group)
    right[np.abs(right) < 2.0**-126] = 0  # denormals of float count as 0
    assert (np.abs(got - right) <= power * 2.0**-16).all()
    exact = np.abs(right) >= power / (32 if dtype == "float16" else 256)
    np.testing.assert_array_equal(got[exact], right[exact])


@HALVES
@KINDS
@pytest.mark.parametrize("kind", KINDS_OF_X[:3])
def test_one_token_is_off_by_no_more_than_its_rounding(
    compiler: Compiler, multiprocessors: int, dtype: str, bits: int, group: int, kind: str
) -> None:
    x = one_token(kind, dtype, group)
    made = Made(np.random.default_rng(10), dtype, 531, x.shape[1], bits, group)
    product = QuantizedMatVec(compiler, multiprocessors).multiply(
        cp.asarray(x), [(made.weight, None)]
    )
    right = wide(x)[0]
    want = made.values @ right
    allowed = np.abs(made.values) @ (powers(right, group) * 2.0**-16)
    # Sums of products with codes, and of x, are made in float: two roundings a group, and 24 of
    # lanes' and warps' sums.
    scales, shifts = (
        np.repeat(np.abs(wide(array)), group, axis=1)  # type: ignore[arg-type]
        for array in (made.host.scales, made.host.biases)
    )
    parts = ((1 << bits) * scales + shifts) @ np.abs(right)
    allowed += (2 * x.shape[1] // group + 24) * 2.0**-24 * parts
    # Rounding to the dtype keeps order.
    low, high = ((want + side * allowed).astype(FLOATS[dtype]) for side in (-1, 1))
    got = cp.asnumpy(product[0])[0]
    assert (wide(low) <= wide(got)).all()
    assert (wide(got) <= wide(high)).all()


@HALVES
@KINDS
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_one_token_that_is_not_finite_gives_nan(
    compiler: Compiler, multiprocessors: int, dtype: str, bits: int, group: int, value: float
) -> None:
    rng, width = np.random.default_rng(11), 7 * group
    made = Made(rng, dtype, 131, width, bits, group)
    x = rng.standard_normal((1, width)).astype(FLOATS[dtype])
    x[0, 2 * group + 5] = value
    product = QuantizedMatVec(compiler, multiprocessors).multiply(
        cp.asarray(x), [(made.weight, None)]
    )
    assert np.isnan(wide(cp.asnumpy(product[0]))).all()


@HALVES
@KINDS
@pytest.mark.parametrize("tokens", [3, 16])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_other_tokens_of_a_launch_are_what_they_were(
    compiler: Compiler,
    multiprocessors: int,
    dtype: str,
    bits: int,
    group: int,
    tokens: int,
    value: float,
    on_device: Callable[..., Any],
) -> None:
    rng, width = np.random.default_rng(12), 7 * group
    pairs = [(Made(rng, dtype, 131, width, bits, group).weight, None)]
    matvec = QuantizedMatVec(compiler, multiprocessors)
    x = rng.standard_normal((tokens, width)).astype(FLOATS[dtype])
    before = wide(cp.asnumpy(matvec.multiply(on_device(x), pairs)[0]))
    x[1, 2 * group + 5] = value
    after = wide(cp.asnumpy(matvec.multiply(on_device(x), pairs)[0]))
    assert not np.isfinite(after[1]).any()
    others = np.arange(tokens) != 1
    np.testing.assert_array_equal(after[others], before[others])


def test_kernels_of_one_text_do_not_take_shared_memory_from_each_other(
    multiprocessors: int,
) -> None:
    """CuPy gives both the same function, which remembers how much it may be launched with."""
    rng = np.random.default_rng(13)
    pairs = [(Made(rng, "float16", 300, 3584, 4, 64).weight, None)]
    x = cp.asarray(rng.standard_normal((1, 3584)).astype(np.float16))
    much = QuantizedMatVec(Compiler(), multiprocessors, [Ring(16, 256, 2)])
    little = QuantizedMatVec(Compiler(), multiprocessors, [Ring(8, 256, 1)])
    first = cp.asnumpy(much.multiply(x, pairs)[0])
    little.multiply(x, pairs)
    np.testing.assert_array_equal(cp.asnumpy(much.multiply(x, pairs)[0]), first)


@HALVES
@KINDS
@pytest.mark.parametrize("tokens", [1, 17, 40, 100, 256])
@pytest.mark.parametrize("size", SHAPES, ids=str)
def test_many_rows(
    compiler: Compiler,
    multiprocessors: int,
    dtype: str,
    bits: int,
    group: int,
    tokens: int,
    size: tuple[int, int],
    values: Callable[..., NDArray[Any]],
    on_device: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    (groups, height), rng = size, np.random.default_rng(2)
    width = groups * group
    matmul = QuantizedMatMul(compiler, multiprocessors)
    x = values(rng, dtype, tokens, width, size=3)
    made = Made(rng, dtype, height, width, bits, group)
    bias, residual = values(rng, dtype, height), values(rng, dtype, tokens, height)
    pair = (made.weight, on_device(bias))
    (out,) = matmul.multiply(on_device(x), [pair], on_device(residual))
    assert_close(out, wide(x) @ made.rounded.T + wide(bias) + wide(residual), dtype)
    other = Made(rng, dtype, height // 7 + 1, width, bits, group)
    first, second = matmul.multiply(on_device(x), [(other.weight, None), pair])
    assert_close(first, wide(x) @ other.rounded.T, dtype)
    assert_close(second, wide(x) @ made.rounded.T + wide(bias), dtype)


@KINDS
def test_values_are_those_of_numpy(compiler: Compiler, dtype: str, bits: int, group: int) -> None:
    made = Made(np.random.default_rng(3), dtype, 530, 7 * group, bits, group)
    want = dequantize(made.host, np.dtype(np.float32)).astype(FLOATS[dtype])
    maker, rows = Dequantize(compiler), np.array([529, 0, 3, 529, 77], np.int32)
    found = [
        maker.part(made.weight, FLOATS[dtype], 0, 530),
        maker.part(made.weight, FLOATS[dtype], 9, 23),
        maker.rows(made.weight, FLOATS[dtype], cp.asarray(rows)),
    ]
    for got, right in zip(found, (want, want[9:23], want[rows]), strict=True):
        np.testing.assert_array_equal(wide(cp.asnumpy(got)), wide(right))


@pytest.mark.parametrize(("mode", "group"), [("mxfp4", 32), ("nvfp4", 16)])
def test_every_scale_and_code_of_four_bit_floats(
    compiler: Compiler, dtype: str, mode: str, group: int
) -> None:
    scales = np.arange(256, dtype=np.uint8)[:, None]
    packed = np.tile(np.array([0x76543210, 0xFEDCBA98], np.uint32), (256, group // 16))
    host = QuantizedWeight(packed, scales, None, 4, group, mode)
    weight = QuantizedWeight(cp.asarray(packed), cp.asarray(scales), None, 4, group, mode)
    with np.errstate(over="ignore", invalid="ignore"):
        want = dequantize(host, np.dtype(np.float32)).astype(FLOATS[dtype])
    got = cp.asnumpy(Dequantize(compiler).part(weight, FLOATS[dtype], 0, 256))
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
