"""The harness's part of Metal's library against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

Run = Callable[..., NDArray[Any]]
LANES = np.arange(64) % 32
VALUES = np.random.default_rng(4).integers(-20, 21, 64).astype(np.float32)
ROWS = VALUES.reshape(2, 32)


@pytest.fixture
def each(metal_cpu: Any, kernel: Any) -> Run:
    """One expression of `x`, `lane` and `i` for each of 64 threads of a threadgroup."""

    def run(
        expression: str, dtype: mx.Dtype = mx.float32, out: mx.Dtype = mx.float32, seed: int = 5
    ) -> NDArray[Any]:
        source = f"""
            uint i = thread_position_in_grid.x, lane = thread_index_in_simdgroup;
            T x = a[i];
            (void)lane;
            out[i] = {expression};
        """
        made = kernel(source, ["a"], template=(("T", dtype),))
        inputs = {"a": mx.array(VALUES).astype(dtype)}
        outputs = {"out": ((64,), out)}
        (got,) = metal_cpu(seed=seed)(made, inputs, outputs, (64, 1, 1), (64, 1, 1))
        return np.array(got.astype(mx.float32) if out == mx.bfloat16 else got)

    return run


def spread(by_simdgroup: NDArray[Any]) -> NDArray[Any]:
    return np.repeat(by_simdgroup, 32)


SIMD = {
    "simd_sum(x)": spread(ROWS.sum(axis=1)),
    "simd_max(x)": spread(ROWS.max(axis=1)),
    "simd_min(x)": spread(ROWS.min(axis=1)),
    "simd_product(x > 0 ? 1.0f : -1.0f)": spread(np.where(ROWS > 0, 1, -1).prod(axis=1)),
    "simd_shuffle(x, 31 - lane)": ROWS[:, ::-1].ravel(),
    "simd_shuffle_xor(x, 5)": ROWS[:, np.arange(32) ^ 5].ravel(),
    "lane < 28 ? simd_shuffle_down(x, 4) : 0.0f": np.where(LANES < 28, np.roll(VALUES, -4), 0),
    "lane < 3 ? 0.0f : simd_shuffle_up(x, 3)": np.where(LANES < 3, 0, np.roll(VALUES, 3)),
    "simd_broadcast(x, 9)": spread(ROWS[:, 9]),
    "simd_broadcast_first(x)": spread(ROWS[:, 0]),
    "simd_prefix_inclusive_sum(x)": ROWS.cumsum(axis=1).ravel(),
    "simd_prefix_exclusive_sum(x)": (ROWS.cumsum(axis=1) - ROWS).ravel(),
    "simd_all(i > 31)": spread(np.array([0, 1])),
    "simd_any(i == 40)": spread(np.array([0, 1])),
    "popcount(uint(uint64_t(simd_ballot(x > 0))))": spread((ROWS > 0).sum(axis=1)),
    "(uint64_t(simd_ballot(x > 0)) >> lane) & 1": (VALUES > 0),
    "simd_or(1u << (lane % 4))": spread(np.array([15, 15])),
    "simd_and(lane | 8u)": spread(np.array([8, 8])),
    "simd_xor(lane == 3 ? 7u : 0u)": spread(np.array([7, 7])),
}


@pytest.mark.parametrize(("expression", "want"), SIMD.items(), ids=SIMD.keys())
def test_simd_functions(each: Run, expression: str, want: NDArray[Any]) -> None:
    # A shuffle under a condition would diverge: all lanes make it.
    if " ? simd_" in expression or " : simd_" in expression:
        condition, _, rest = expression.partition(" ? ")
        yes, no = rest.split(" : ")
        expression = f"select({no}, {yes}, {condition})"
    np.testing.assert_array_equal(each(expression), want)


MATHS = {
    "exp(x * 0.125f)": np.exp(VALUES.astype(float) / 8),
    "fast::exp2(x)": np.exp2(VALUES.astype(float)),
    "metal::sqrt(abs(x))": np.sqrt(np.abs(VALUES).astype(float)),
    "rsqrt(x * x + 1)": 1 / np.sqrt(VALUES.astype(float) ** 2 + 1),
    "max(x, 0.5f) + min(x, -0.5f)": np.maximum(VALUES, 0.5) + np.minimum(VALUES, -0.5),
    "clamp(x, -3.0f, 4.0f)": np.clip(VALUES, -3, 4),
    "fma(x, x, 2.0f)": VALUES * VALUES + 2,
    "ctz(i) + clz(i)": [32 + 32 if i == 0 else (i & -i).bit_length() + 31 - i.bit_length()
                        for i in range(64)],
    "dot(float4(x, 1, half2(2.0h, 3)), float4(2.0))": 2 * VALUES + 12,
    "float(half4(float4(x)).w) + uint3(1, 2, 3).y": VALUES + 2,
    "as_type<float>(as_type<uint>(x) ^ 0x80000000u)": -VALUES,
    "1 / 3.0 + x": np.float32(1) / np.float32(3) + VALUES,
}  # fmt: skip


@pytest.mark.parametrize(("expression", "want"), MATHS.items(), ids=MATHS.keys())
def test_mathematics(each: Run, expression: str, want: Any) -> None:
    np.testing.assert_allclose(each(expression), want, rtol=3e-7)


ROUNDED = [(mx.float16, np.float16), (mx.bfloat16, ml_dtypes.bfloat16)]


@pytest.mark.parametrize(("dtype", "host"), ROUNDED, ids=["half", "bfloat"])
def test_each_operation_rounds(each: Run, dtype: mx.Dtype, host: Any) -> None:
    """Not only the result: x / 3 * 7 + x in steps."""
    x = VALUES.astype(host)
    want = (x / host(3) * host(7) + x).astype(np.float32)
    got = each("x / T(3) * T(7) + x", dtype, dtype).astype(np.float32)
    np.testing.assert_array_equal(got, want)
    assert (want != (VALUES / 3 * 7 + VALUES).astype(host).astype(np.float32)).any()


PRODUCT = """
    uint lane = thread_index_in_simdgroup;
    simdgroup_matrix<T, 8, 8> a, b;
    simdgroup_matrix<float, 8, 8> c = simdgroup_matrix<float, 8, 8>(2.0f);
    simdgroup_load(a, left, left_shape[1], ulong2(3, 1));
    simdgroup_load(b, right, 8, ulong2(0, 0), true);
    simdgroup_multiply_accumulate(c, a, b, c);
    // Elements by hand, as kernels that mask them do.
    uint row = (lane / 16) * 4 + lane / 2 % 4, column = lane / 8 % 2 * 4 + lane % 2 * 2;
    c.thread_elements()[0] += 100.0f * row + column;
    simdgroup_store(c, out, 8);
"""


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_matrices(metal_cpu: Any, kernel: Any, dtype: mx.Dtype, seed: int) -> None:
    rng = np.random.default_rng(6)
    left, right = (rng.integers(-9, 10, shape).astype(np.float32) for shape in ((9, 11), (8, 8)))
    made = kernel(PRODUCT, ["left", "right"], template=(("T", dtype),))
    inputs = {"left": mx.array(left).astype(dtype), "right": mx.array(right).astype(dtype)}
    outputs = {"out": ((8, 8), mx.float32)}
    (got,) = metal_cpu(seed=seed)(made, inputs, outputs, (32, 1, 1), (32, 1, 1))
    rows, columns = np.mgrid[:8, :8]
    first = np.where(columns % 2 == 0, 100 * rows + columns, 0)
    want = left[1:, 3:] @ right.T + 2 * np.eye(8) + first
    np.testing.assert_array_equal(np.array(got), want)


def test_attributes_and_the_uneven_end_of_a_grid(metal_cpu: Any, kernel: Any) -> None:
    """Metal dispatches threads: the last threadgroups of each axis are smaller."""
    source = """
        uint3 p = thread_position_in_grid, g = threadgroup_position_in_grid;
        uint3 l = thread_position_in_threadgroup, s = threads_per_threadgroup;
        uint at = (p.z * 5 + p.y) * 50 + p.x;
        out[at] = g.x * 100000 + g.y * 10000 + l.x * 100 + l.y * 10 +
                  thread_index_in_simdgroup % 10;
        sizes[at] = s.x * 1000 + s.y * 100 + simdgroup_index_in_threadgroup * 10 +
                    threadgroups_per_grid.x + int(scale) * 100000 + n;
    """
    made = kernel(source, ["scale", "n"], ("out", "sizes"))
    outputs = dict.fromkeys(("out", "sizes"), ((2, 5, 50), mx.int32))
    got = metal_cpu(seed=3)(made, {"scale": 2.5, "n": -1}, outputs, (50, 5, 2), (32, 2, 1))
    _, y, x = np.mgrid[:2, :5, :50]
    width, height = np.where(x < 32, 32, 18), np.where(y < 4, 2, 1)
    index = x % 32 + y % 2 * width
    want = x // 32 * 100000 + y // 2 * 10000 + x % 32 * 100 + y % 2 * 10 + index % 32 % 10
    np.testing.assert_array_equal(np.array(got[0]), want)
    want = width * 1000 + height * 100 + index // 32 * 10 + 2 + 200000 - 1
    np.testing.assert_array_equal(np.array(got[1]), want)


def test_shapes_strides_and_arrays_that_are_not_contiguous(metal_cpu: Any, kernel: Any) -> None:
    source = """
        uint i = thread_position_in_grid.x;
        out[i] = a[i] + 100 * a_shape[0] + 1000 * a_strides[0] + 10000 * a_ndim;
    """
    a = mx.arange(12).reshape(3, 4).T  # (4, 3): copied to be row-contiguous
    outputs = {"out": ((12,), mx.int32)}
    launch = metal_cpu()
    (got,) = launch(kernel(source, ["a"]), {"a": a}, outputs, (12, 1, 1), (32, 1, 1))
    want = np.arange(12).reshape(3, 4).T.ravel() + 400 + 3000 + 20000
    np.testing.assert_array_equal(np.array(got), want)
    assert launch.launches[0].name == "tried"
