"""Products with and rows of quantised matrices, by MLX's own kernels."""

from __future__ import annotations

import mlx.core as mx

from omnitide.backend import Array
from omnitide.quantized import QuantizedWeight


def product(x: Array, weight: QuantizedWeight) -> Array:
    """x (..., in) @ weight.T, shape (..., out), in x's dtype."""
    return mx.quantized_matmul(
        x,
        weight.packed,
        weight.scales,
        weight.biases,
        transpose=True,
        group_size=weight.group_size,
        bits=weight.bits,
        mode=weight.mode,
    )


def rows(weight: QuantizedWeight, indices: Array, dtype: Array) -> Array:
    """The rows at int32 `indices`, dequantised, shape (num_rows, in)."""
    parts = (weight.packed, weight.scales, weight.biases)
    packed, scales, biases = (None if part is None else part[indices] for part in parts)
    return mx.dequantize(
        packed,
        scales,
        biases,
        group_size=weight.group_size,
        bits=weight.bits,
        mode=weight.mode,
        dtype=dtype,
    )
