"""Quantised weights made floats: whole matrices for cuBLAS, and rows of embeddings."""

from __future__ import annotations

import numpy as np

from omnitide.backend import Array
from omnitide.backends.cuda.accesses import DTYPES
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.instances import C_TYPES, Instance
from omnitide.quantized import QuantizedWeight

_PACKS_OF_BLOCK = 256 * 4  # of dequantize.cu
_PACK = 8  # values
_BITS = (4, 8)
_FLOAT4_GROUPS = {"mxfp4": 32, "nvfp4": 16}
_NULL = np.uint64(0)


def _affine(dtype: str, bits: int) -> Instance:
    return Instance("dequantize", f"dequantize<{C_TYPES[dtype]}, {bits}>")


def _float4(dtype: str, mode: str) -> Instance:
    name = f"dequantize_float4<{C_TYPES[dtype]}, {_FLOAT4_GROUPS[mode]}>"
    return Instance("dequantize", name)


def instances() -> tuple[Instance, ...]:
    """Every instance that `Dequantize` launches."""
    affine = [_affine(dtype, bits) for dtype in DTYPES for bits in _BITS]
    return (*affine, *(_float4(dtype, mode) for dtype in DTYPES for mode in _FLOAT4_GROUPS))


class Dequantize:
    """Launches on CuPy's current stream. Takes every mode."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler

    def rows(self, weight: QuantizedWeight, dtype: np.dtype[np.generic], rows: Array) -> Array:
        """Rows by indices: rows int32 (num_rows,), on the device; shape (num_rows, in)."""
        out = cp.empty((len(rows), weight.shape[1]), dtype)
        self._launch(weight, slice(None), rows, out)
        return out

    def part(
        self, weight: QuantizedWeight, dtype: np.dtype[np.generic], start: int, stop: int
    ) -> Array:
        """Rows [start, stop) in order; shape (stop - start, in)."""
        out = cp.empty((stop - start, weight.shape[1]), dtype)
        self._launch(weight, slice(start, stop), _NULL, out)
        return out

    def _launch(self, weight: QuantizedWeight, part: slice, rows: Array, out: Array) -> None:
        if out.size == 0:
            return
        dtype, columns, size = out.dtype.name, weight.shape[1], out.size // _PACK
        args = [weight.packed[part], weight.scales[part]]
        more = []
        if weight.biases is None:
            instance = _float4(dtype, weight.mode)
        else:
            instance = _affine(dtype, weight.bits)
            args.append(weight.biases[part])
            more.append(np.int32(weight.group_size.bit_length() - 1))
        self._compiler(instance)(
            (-(-size // _PACKS_OF_BLOCK),),
            (256,),
            (*args, rows, out, np.int64(size), np.int32(columns // _PACK), *more),
        )
