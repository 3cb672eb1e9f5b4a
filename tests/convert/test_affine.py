"""Our quantisation gives the bits of `mx.quantize`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnitide.convert.affine import pack, quantize
from omnitide.dequantize import unpack

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def _values(rows: int, columns: int) -> Any:
    """Normal rows, and rows of zeros, of one value, of one sign, with an outlier, and tiny ones."""
    values = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    values[0], values[1], values[2] = 0, 1, -2
    values[3, ::7] *= 100
    values[4], values[5] = np.abs(values[4]), -np.abs(values[5])
    values[6] *= 1e-6
    values[7] *= 1e-20
    values[8] = np.linspace(-1, 1, columns)  # -1 and 1 are equally far from 0
    return values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_bits_of_mlx(dtype: str, bits: int, group: int, by_mlx: Callable[..., list[Any]]) -> None:
    values = _values(64, 256).astype(DTYPES[dtype])
    for got, want in zip(quantize(values, bits, group), by_mlx(values, group, bits), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@given(st.sampled_from([4, 8]), st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_packing_is_undone_by_unpacking(bits: int, rows: int, words: int, seed: int) -> None:
    elements = np.random.default_rng(seed).integers(0, 1 << bits, (rows, words * 8), np.uint8)
    packed = pack(elements, bits)
    assert packed.shape == (rows, words * 8 * bits // 32)
    np.testing.assert_array_equal(unpack(packed, bits), elements)
