"""Quantised matrices made floats again, in NumPy: the values that every backend computes with."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from omnitide.quantized import WORD_BITS, QuantizedWeight

FLOAT4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the codes 0 to 7 of a float of 2 exponent bits and 1 mantissa bit (E2M1); codes 8 to 15
are their negatives."""

_FLOAT4 = np.array([*FLOAT4, *(-value for value in FLOAT4)])


def dequantize(
    weight: QuantizedWeight,
    dtype: np.dtype[Any],
    rows: slice | NDArray[np.int64] | None = None,
) -> NDArray[Any]:
    """The values of a matrix, or of some of its rows.

    Args:
        weight: Of NumPy arrays, (out, in).
        dtype: Of the result and of all that is computed; float32 gives `mx.dequantize`'s bits.
        rows: Which rows; all if None.

    Returns:
        Shape (num_rows, in).
    """
    chosen = slice(None) if rows is None else rows
    codes = unpack(weight.packed[chosen], weight.bits)
    groups = codes.reshape(len(codes), weight.scales.shape[1], weight.group_size)
    scales = scale_values(weight.scales[chosen], weight.mode, dtype)[..., None]
    values: NDArray[Any]
    if weight.biases is None:
        # The greatest codes of a scale exceed float32, and give infinity there as MLX does.
        with np.errstate(over="ignore", invalid="ignore"):
            values = _FLOAT4.astype(dtype)[groups] * scales
    else:
        values = groups.astype(dtype) * scales
        values += weight.biases[chosen].astype(dtype)[..., None]
    return values.reshape(codes.shape)


def unpack(packed: NDArray[np.uint32], bits: int) -> NDArray[np.uint8]:
    """Elements of packed rows, 4 or 8 bits each: (rows, words) -> (rows, words * 32 / bits)."""
    octets = np.ascontiguousarray(packed, "<u4").view(np.uint8)
    if bits == WORD_BITS // 4:
        return octets
    nibbles = np.empty((*octets.shape, 2), np.uint8)
    np.bitwise_and(octets, 15, out=nibbles[..., 0])
    np.right_shift(octets, 4, out=nibbles[..., 1])
    return nibbles.reshape(len(octets), 2 * octets.shape[1])


def scale_values(scales: NDArray[Any], mode: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Scales as floats in `dtype`, same shape."""
    floats: NDArray[Any]
    if mode == "mxfp4":
        with np.errstate(over="ignore"):
            floats = np.ldexp(1.0, scales.astype(np.int32) - 127).astype(dtype)
    elif mode == "nvfp4":
        floats = scales.view(ml_dtypes.float8_e4m3fn).astype(dtype)
    else:
        floats = scales.astype(dtype)
    return floats
