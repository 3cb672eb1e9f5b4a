"""What sampling needs of the logits, on the device."""

from __future__ import annotations

from functools import cache

import numpy as np

from omnitide.backend import Array
from omnitide.backends.cuda.accesses import DTYPES, access_width, widths
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.instances import C_TYPES, Instance

THREADS = 256  # of sampling.cu
MAX_BLOCKS = 256

_ARGMAX = Instance("sampling", "argmax")


@cache
def _part(name: str, dtype: str, width: int) -> Instance:
    return Instance("sampling", f"{name}<{C_TYPES[dtype]}, {width}>")


def instances() -> tuple[Instance, ...]:
    """Every instance that `Sampling` can launch."""
    names = ("softmax_parts", "log_softmax", "argmax_parts")
    parts = [
        _part(name, dtype, width) for name in names for dtype in DTYPES for width in widths(dtype)
    ]
    return (*parts, _ARGMAX)


class Sampling:
    """Works on one C-contiguous array of at least one value, on CuPy's current stream.

    All calls share a workspace, so they must be on one stream.
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._greatest = cp.empty(MAX_BLOCKS, np.float32)
        self._sums = cp.empty(MAX_BLOCKS, np.float32)
        self._indices = cp.empty(MAX_BLOCKS, np.int32)

    def log_softmax(self, logits: Array) -> Array:
        """Log-probabilities, float32, same shape. A NaN among the logits makes all of them NaN."""
        out = cp.empty(logits.shape, np.float32)
        width, grid = _shape(logits)
        dtype, size = str(logits.dtype), np.int32(logits.size)
        parts = (self._greatest, self._sums)
        self._compiler(_part("softmax_parts", dtype, width))(
            grid, (THREADS,), (logits, *parts, size)
        )
        self._compiler(_part("log_softmax", dtype, width))(
            grid, (THREADS,), (logits, *parts, out, np.int32(grid[0]), size)
        )
        return out

    def argmax(self, x: Array) -> Array:
        """Index of the greatest value, the lowest of equals; -1 if any is NaN. int32 (1,)."""
        out = cp.empty(1, np.int32)
        width, grid = _shape(x)
        parts = (self._greatest, self._indices)
        self._compiler(_part("argmax_parts", str(x.dtype), width))(
            grid, (THREADS,), (x, *parts, np.int32(x.size))
        )
        self._compiler(_ARGMAX)((1,), (THREADS,), (*parts, out, np.int32(grid[0])))
        return out


def _shape(x: Array) -> tuple[int, tuple[int]]:
    """Width of an access, and the grid."""
    width = access_width((x,), x.size)
    return width, (min(MAX_BLOCKS, -(-x.size // (THREADS * width))),)
