"""Matrix products: few rows of a 16-bit type by our matrix-vector kernels, all else by cuBLAS.

Quantised weights go to `quantized.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from omnitide.backend import Array, Matrix, Weight
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.blas import Blas
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.elementwise import Elementwise
from omnitide.backends.cuda.matvec import MatVec
from omnitide.backends.cuda.norms import Norms
from omnitide.backends.cuda.quantized import Quantized
from omnitide.quantized import QuantizedWeight

VECTOR_ROWS = 4
"""Rows up to which the matrix-vector kernels are faster than cuBLAS."""

MAX_MATRICES = 3
"""Matrices that one matrix-vector launch takes."""


class Matrices:
    """Linear layers and what is fused with them. Shapes have been checked by the caller."""

    def __init__(
        self, compiler: Compiler, multiprocessors: int, norms: Norms, elementwise: Elementwise
    ) -> None:
        # Overlapping launches gain 0.3 ms a token in a chain of products alone, and lose 0.7 ms
        # where attention stands between them (docs/performance.md).
        self._vector = MatVec(compiler, multiprocessors, overlap=False)
        self._blas = Blas()
        self._norms = norms
        self._elementwise = elementwise
        self._quantized = Quantized(compiler, multiprocessors, self._blas, norms, elementwise)

    def take(self, weight: QuantizedWeight, rows: Array, dtype: Any) -> Array:
        """Rows of a matrix by indices, int32 (num_rows,) on the device, dequantised to `dtype`."""
        return self._quantized.take(weight, rows, dtype)

    def linear(self, x: Array, weight: Weight, bias: Array | None, residual: Array | None) -> Array:
        """x @ weight.T + bias + residual; x (..., in)."""
        rows, out_shape = _rows(x), (*x.shape[:-1], weight.shape[0])
        added = None if residual is None else _rows(residual)
        if isinstance(weight, QuantizedWeight):
            out = self._quantized.linear(rows, weight, bias, added)
        elif self._by_vector(rows, weight):
            out = self._vector.linear(rows, weight, bias, added)
        else:
            out = self._blas.product(rows, weight)
            if bias is not None:
                out = self._elementwise.add_bias(out, bias, added)
            elif added is not None:
                out = self._elementwise.add(out, added)
        return out.reshape(out_shape)

    def project(
        self, x: Array, norm_weight: Array, eps: float, matrices: Sequence[Matrix]
    ) -> list[Array]:
        """Each matrix's product with the norm of x."""
        rows = _rows(x)
        quantized = [(w, bias) for w, bias in matrices if isinstance(w, QuantizedWeight)]
        fits = not quantized and len(matrices) <= MAX_MATRICES
        if len(quantized) == len(matrices):
            outs = self._quantized.project(rows, norm_weight, eps, quantized)
        elif fits and all(self._by_vector(rows, weight) for weight, _ in matrices):
            outs = self._vector.project(rows, norm_weight, eps, matrices)
        else:
            normed = self._norms.rms_norm(rows, norm_weight, eps)
            outs = [self.linear(normed, weight, bias, None) for weight, bias in matrices]
        return [out.reshape(*x.shape[:-1], out.shape[-1]) for out in outs]

    def gated_mlp(
        self, x: Array, norm_weight: Array, eps: float, gate: Matrix, up: Matrix, down: Matrix
    ) -> Array:
        """x + down(swiglu(gate(n), up(n))), n the norm of x."""
        rows = _rows(x)
        quantized = [(w, bias) for w, bias in (gate, up) if isinstance(w, QuantizedWeight)]
        if len(quantized) == 2:
            inner = self._quantized.gated(rows, norm_weight, eps, *quantized)
        elif not quantized and self._by_vector(rows, gate[0]) and self._by_vector(rows, up[0]):
            inner = self._vector.gated(rows, norm_weight, eps, *gate, *up)
        else:
            normed = self._norms.rms_norm(rows, norm_weight, eps)
            halves = (self.linear(normed, *matrix, None) for matrix in (gate, up))
            inner = self._elementwise.swiglu(*halves)
        return self.linear(inner, *down, rows).reshape(x.shape)

    def _by_vector(self, rows: Array, weight: Weight) -> bool:
        """Whether the matrix-vector kernels take so many rows of that type and size."""
        count, width = int(rows.shape[0]), int(weight.shape[1])
        if rows.dtype.itemsize != 2 or width % 8 or not 1 <= count <= VECTOR_ROWS:
            return False
        return count <= self._vector.max_tokens(width)


def _rows(x: Array) -> Array:
    """x as a matrix, rows one after the other in memory."""
    return cp.ascontiguousarray(x).reshape(prod(x.shape[:-1]), x.shape[-1])
