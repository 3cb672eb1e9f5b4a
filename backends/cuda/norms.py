"""Norms over the last axis, of any leading shape and up to `MAX_COLUMNS` columns."""

from __future__ import annotations

from functools import cache

import numpy as np

from omnitide.backend import Array
from omnitide.backends.cuda.accesses import DTYPES, access_width, widths
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.instances import C_TYPES, Instance

MAX_COLUMNS = 16_384
"""Largest last axis: a row as float32 must fit into the shared memory that every chip has."""

_WARP, _MAX_THREADS = 32, 1024  # of norms.cu


@cache
def _rms_norm(dtype: str, width: int, adds: bool) -> Instance:
    return Instance("norms", f"rms_norm<{C_TYPES[dtype]}, {width}, {str(adds).lower()}>")


@cache
def _layer_norm(dtype: str, width: int) -> Instance:
    return Instance("norms", f"layer_norm<{C_TYPES[dtype]}, {width}>")


def instances() -> tuple[Instance, ...]:
    """Every instance that `Norms` can launch."""
    pairs = [(dtype, width) for dtype in DTYPES for width in widths(dtype)]
    rms = [_rms_norm(dtype, width, adds) for dtype, width in pairs for adds in (False, True)]
    return (*rms, *(_layer_norm(dtype, width) for dtype, width in pairs))


class Norms:
    """Norms of C-contiguous arrays x (..., columns), on CuPy's current stream."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """x / sqrt(mean(x^2) + eps) * weight; weight (columns,). Same shape out."""
        out = cp.empty_like(x)
        width = access_width((x, weight, out), x.shape[-1])
        kernel = _rms_norm(str(x.dtype), width, False)
        self._launch(kernel, width, x, (x, x, weight, out, out), eps)
        return out

    def add_rms_norm(
        self, x: Array, addend: Array, weight: Array, eps: float
    ) -> tuple[Array, Array]:
        """The sum x + addend, rounded to the dtype, and its RMS norm; addend has x's shape."""
        total, out = cp.empty_like(x), cp.empty_like(x)
        width = access_width((x, addend, weight, total, out), x.shape[-1])
        kernel = _rms_norm(str(x.dtype), width, True)
        self._launch(kernel, width, x, (x, addend, weight, total, out), eps)
        return total, out

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> Array:
        """(x - mean) / sqrt(variance + eps) * weight + bias; weight, bias (columns,)."""
        out = cp.empty_like(x)
        width = access_width((x, weight, bias, out), x.shape[-1])
        kernel = _layer_norm(str(x.dtype), width)
        self._launch(kernel, width, x, (x, weight, bias, out), eps)
        return out

    def _launch(
        self, instance: Instance, width: int, x: Array, arrays: tuple[Array, ...], eps: float
    ) -> None:
        columns = x.shape[-1]
        if x.size == 0:
            return
        vectors = columns // width
        # One vector a thread: with fewer threads, each at more of them, rows take up to 1.7 times.
        threads = min(_MAX_THREADS, -(-vectors // _WARP) * _WARP)
        args = (*arrays, np.int32(columns), np.float32(eps))
        kernel = self._compiler(instance)
        kernel((x.size // columns,), (threads,), args, shared=4 * columns, overlap=True)
