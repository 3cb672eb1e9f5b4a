"""Products with quantised matrices: a block of rows is made floats, multiplied and forgotten."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.dequantize import dequantize
from omnitide.quantized import QuantizedWeight

VALUES_AT_ONCE = 1 << 22
"""Elements that are floats at a time: 16 MiB in float32, which caches hold in part."""


def quantized_product(x: NDArray[Any], weight: QuantizedWeight) -> NDArray[Any]:
    """x (rows, in) @ weight.T, shape (rows, out), in x's dtype."""
    num_out, num_in = weight.shape
    out = np.empty((len(x), num_out), x.dtype)
    step = max(VALUES_AT_ONCE // num_in, 1)
    for first in range(0, num_out, step):
        part = slice(first, first + step)
        out[:, part] = x @ dequantize(weight, x.dtype, part).T
    return out
