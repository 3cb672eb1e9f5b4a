"""Products with and rows of quantised matrices, by MLX's own kernels."""

from __future__ import annotations

import mlx.core as mx

from omnitide.backend import Array
from omnitide.quantized import QuantizedWeight


def product(x: Array, weight: QuantizedWeight) -> Array:
    """x (..., in) @ weight.T, shape (..., out), in x's dtype, accumulated in float32."""
    if x.size == 0:  # MLX's kernel divides by the number of rows
        return mx.zeros((*x.shape[:-1], weight.shape[0]), x.dtype)
    scales, biases, given = weight.scales, weight.biases, x
    if mx.default_device() == mx.Device(mx.cpu):
        # There, MLX accumulates in the dtype of what it is given.
        given = x.astype(mx.float32)
        if biases is not None:
            scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    out = mx.quantized_matmul(
        given,
        weight.packed,
        scales,
        biases,
        transpose=True,
        group_size=weight.group_size,
        bits=weight.bits,
        mode=weight.mode,
    )
    return out.astype(x.dtype)


def rows(weight: QuantizedWeight, indices: Array, dtype: Array) -> Array:
    """The rows at int32 `indices`, dequantised, shape (num_rows, in)."""
    if indices.size == 0:
        return mx.zeros((0, weight.shape[1]), dtype)
    return mx.dequantize(
        weight.packed[indices],
        weight.scales[indices],
        None if weight.biases is None else weight.biases[indices],
        group_size=weight.group_size,
        bits=weight.bits,
        mode=weight.mode,
        dtype=dtype,
    )
