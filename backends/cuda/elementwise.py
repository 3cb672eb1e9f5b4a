"""Operations on one element, pair or row at a time, in float32 and rounded once."""

from __future__ import annotations

from functools import cache

import numpy as np

from omnitide.backend import Array
from omnitide.backends.cuda.accesses import ACCESS_BYTES, DTYPES, access_width, widths
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.instances import C_TYPES, Instance

THREADS = 256  # of elementwise.cu

UNITS = {"uint4": ACCESS_BYTES, "unsigned short": 2}
"""Bytes of the units that `take` copies in."""


@cache
def _operation(name: str, dtype: str, width: int) -> Instance:
    return Instance("elementwise", f"{name}<{C_TYPES[dtype]}, {width}>")


@cache
def _add_bias(dtype: str, width: int, adds: bool) -> Instance:
    return Instance("elementwise", f"add_bias<{C_TYPES[dtype]}, {width}, {str(adds).lower()}>")


@cache
def _take(unit: str) -> Instance:
    return Instance("elementwise", f"take<{unit}>")


def instances() -> tuple[Instance, ...]:
    """Every instance that `Elementwise` can launch."""
    pairs = [(dtype, width) for dtype in DTYPES for width in widths(dtype)]
    names = ("swiglu", "gelu", "gelu_tanh", "relu", "add", "rotate")
    plain = [_operation(name, *pair) for name in names for pair in pairs]
    biased = [_add_bias(*pair, adds) for pair in pairs for adds in (False, True)]
    return (*plain, *biased, *(_take(unit) for unit in UNITS))


class Elementwise:
    """Operations on C-contiguous arrays, on CuPy's current stream.

    Where it is said, rows may lie further apart: parts of one matrix product's result.
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler

    def swiglu(self, gate: Array, up: Array) -> Array:
        """silu(gate) * up, of one shape.

        Either may be columns [a:b] of a larger C-contiguous array (rows, columns).
        """
        out = cp.empty(gate.shape, gate.dtype)
        whole = gate.flags.c_contiguous and up.flags.c_contiguous
        columns = gate.size if whole else gate.shape[-1]
        itemsize = gate.dtype.itemsize
        strides = [0, 0] if whole else [x.strides[-2] // itemsize for x in (gate, up)]
        width = access_width((gate, up, out), columns, *strides)
        self._launch_rows(
            _operation("swiglu", str(gate.dtype), width),
            (gate, up, out),
            gate.size,
            columns,
            width,
            *(np.int64(stride) for stride in strides),
        )
        return out

    def gelu(self, x: Array) -> Array:
        """Exact GELU, accurate in the tails."""
        out = cp.empty(x.shape, x.dtype)
        self._launch("gelu", (x, out))
        return out

    def gelu_tanh(self, x: Array) -> Array:
        """GELU by a hyperbolic tangent, accurate in the tails."""
        out = cp.empty(x.shape, x.dtype)
        self._launch("gelu_tanh", (x, out))
        return out

    def relu(self, x: Array) -> Array:
        """max(x, 0); NaN stays."""
        out = cp.empty(x.shape, x.dtype)
        self._launch("relu", (x, out))
        return out

    def add(self, a: Array, b: Array) -> Array:
        """a + b, of one shape."""
        out = cp.empty(a.shape, a.dtype)
        self._launch("add", (a, b, out))
        return out

    def add_bias(self, x: Array, bias: Array, residual: Array | None = None) -> Array:
        """x + bias, + residual if there is one, in place: changes x and returns it.

        bias (columns,); residual has x's shape (..., columns).
        """
        columns = x.shape[-1]
        adds = residual is not None
        arrays = (x, bias, residual if adds else x)
        width = access_width(arrays, columns)
        instance = _add_bias(str(x.dtype), width, adds)
        self._launch_rows(instance, arrays, x.size, columns, width)
        return x

    def rotate(self, x: Array, cos: Array, sin: Array) -> Array:
        """Rotate the pairs (i, i + head_dim / 2) of each head.

        x (num_tokens, num_heads, head_dim), whose tokens may lie any distance apart; cos, sin
        float32 (num_tokens, head_dim / 2), on the device.
        """
        num_tokens, num_heads, head_dim = x.shape
        out = cp.empty(x.shape, x.dtype)
        if x.size == 0:
            return out
        stride = x.strides[0] // x.dtype.itemsize if num_tokens > 1 else 0
        width = access_width((x, out, cos, sin), head_dim // 2, stride)
        items = x.size // 2 // width
        sizes = (np.int32(size) for size in (num_tokens, num_heads, head_dim))
        self._compiler(_operation("rotate", str(x.dtype), width))(
            (-(-items // THREADS),), (THREADS,), (x, cos, sin, out, np.int64(stride), *sizes)
        )
        return out

    def take(self, array: Array, rows: Array) -> Array:
        """Rows of an array by indices: rows int32 (num_rows,), on the device. Exact."""
        out = cp.empty((len(rows), *array.shape[1:]), array.dtype)
        row_bytes = array.nbytes // max(1, len(array))
        unit = (
            "uint4"
            if row_bytes % ACCESS_BYTES == array.data.ptr % ACCESS_BYTES == 0
            else ("unsigned short")
        )
        size = row_bytes // UNITS[unit]
        self._launch_rows(_take(unit), (array, rows, out), len(rows) * size, size, 1)
        return out

    def _launch(self, name: str, arrays: tuple[Array, ...]) -> None:
        size = arrays[0].size
        if size == 0:
            return
        width = access_width(arrays, size)
        instance = _operation(name, str(arrays[0].dtype), width)
        blocks = -(-size // (THREADS * width))
        self._compiler(instance)((blocks,), (THREADS,), (*arrays, np.int64(size)))

    def _launch_rows(
        self,
        instance: Instance,
        arrays: tuple[Array, ...],
        size: int,
        columns: int,
        width: int,
        *more: np.int64,
    ) -> None:
        """Launch a kernel that takes arrays, blocks of a row, columns, and what more there is."""
        if size == 0:
            return
        blocks = -(-columns // (THREADS * width))
        self._compiler(instance)(
            (size // columns * blocks,),
            (THREADS,),
            (*arrays, np.int32(blocks), np.int64(columns), *more),
        )
