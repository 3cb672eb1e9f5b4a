"""Matrix products: one row of a 16-bit type by our matrix-vector kernels, all else by cuBLAS."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import cupy as cp

from omnitide.backend import Array, Matrix
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.elementwise import Elementwise
from omnitide.backends.cuda.matvec import MatVec
from omnitide.backends.cuda.norms import Norms
from omnitide.backends.cuda.passes import NotRecordable


class Matrices:
    """Linear layers and what is fused with them. Shapes have been checked by the caller."""

    def __init__(
        self, compiler: Compiler, multiprocessors: int, norms: Norms, elementwise: Elementwise
    ) -> None:
        self._vector = MatVec(compiler, multiprocessors)
        self._norms = norms
        self._elementwise = elementwise

    def linear(self, x: Array, weight: Array, bias: Array | None, residual: Array | None) -> Array:
        """x @ weight.T + bias + residual; x (..., in)."""
        rows, out_shape = _rows(x), (*x.shape[:-1], weight.shape[0])
        added = None if residual is None else residual.reshape(-1, weight.shape[0])
        if self._vector.takes(rows, weight):
            out = self._vector.linear(rows, weight, bias, added)
        else:
            out = _product(rows, weight)
            if bias is not None or added is not None:
                out = self._elementwise.add_bias(out, bias, added)
        return out.reshape(out_shape)

    def project(
        self, x: Array, norm_weight: Array, eps: float, matrices: Sequence[Matrix]
    ) -> list[Array]:
        """Each matrix's product with the norm of x."""
        rows = _rows(x)
        if all(self._vector.takes(rows, weight) for weight, _ in matrices):
            outs = self._vector.project(rows, norm_weight, eps, matrices)
        else:
            normed = self._norms.rms_norm(rows, norm_weight, eps)
            outs = [self.linear(normed, weight, bias, None) for weight, bias in matrices]
        return [out.reshape(*x.shape[:-1], -1) for out in outs]

    def gated_mlp(
        self, x: Array, norm_weight: Array, eps: float, gate: Matrix, up: Matrix, down: Matrix
    ) -> Array:
        """x + down(swiglu(gate(n), up(n))), n the norm of x."""
        rows = _rows(x)
        if self._vector.takes(rows, gate[0]) and self._vector.takes(rows, up[0]):
            inner = self._vector.gated(rows, norm_weight, eps, *gate, *up)
        else:
            normed = self._norms.rms_norm(rows, norm_weight, eps)
            halves = (self.linear(normed, *matrix, None) for matrix in (gate, up))
            inner = self._elementwise.swiglu(*halves)
        return self.linear(inner, *down, rows).reshape(x.shape)


def _rows(x: Array) -> Array:
    """x as a matrix, rows one after the other in memory."""
    return cp.ascontiguousarray(x).reshape(prod(x.shape[:-1]), x.shape[-1])


def _product(x: Array, weight: Array) -> Array:
    """x @ weight.T by cuBLAS."""
    if cp.cuda.get_current_stream().is_capturing():
        raise NotRecordable
    if x.shape[0] == 0:
        return cp.empty((0, weight.shape[0]), x.dtype)
    return cp.matmul(x, weight.T)
