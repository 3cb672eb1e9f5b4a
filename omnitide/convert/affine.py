"""Affine quantisation in NumPy. Equal input gives the bits that `mx.quantize` gives."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_SCALE = np.float32(1e-7)
"""Least distance of two values of a group before the scale is fitted to its edge."""

Packed = tuple[NDArray[np.uint32], NDArray[Any], NDArray[Any]]
"""Packed elements, scales and biases, as in `QuantizedWeight`."""


def quantize(values: NDArray[Any], bits: int, group_size: int) -> Packed:
    """Quantise a matrix.

    Each group's value of greatest magnitude (its edge) and 0 are representable, so the scale is
    negative where the edge is the greatest value. Computed in float32; scales and biases are then
    rounded to the dtype of `values`.

    Args:
        values: Floats, shape (rows, columns), all of them finite.
        bits: 4 or 8.
        group_size: Divides the columns.

    Returns:
        Packed elements (rows, columns * bits / 32), scales and biases (rows, columns / group_size).
    """
    groups = values.astype(np.float32).reshape(len(values), -1, group_size)
    most = np.float32((1 << bits) - 1)
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    low_is_edge = np.abs(low) > np.abs(high)
    edge = np.where(low_is_edge, low, high)
    scales = np.maximum((high - low) / most, LEAST_SCALE)
    scales = np.where(low_is_edge, scales, -scales)
    steps = np.rint(edge / scales)
    fitted = steps != 0
    scales = np.where(fitted, edge / np.where(fitted, steps, 1), scales)
    biases = np.where(fitted, edge, np.float32(0))
    groups -= biases[..., None]
    groups /= scales[..., None]
    np.rint(groups, out=groups)
    np.clip(groups, 0, most, out=groups)
    elements = groups.astype(np.uint8).reshape(values.shape)
    return pack(elements, bits), scales.astype(values.dtype), biases.astype(values.dtype)


def pack(elements: NDArray[np.uint8], bits: int) -> NDArray[np.uint32]:
    """Elements (rows, columns) in words: the first of each word in its lowest bits."""
    octets = elements if bits == 8 else elements[:, ::2] | (elements[:, 1::2] << 4)
    words: NDArray[np.uint32] = np.ascontiguousarray(octets).view("<u4").astype(np.uint32)
    return words
