"""Which kernel multiplies by quantised weights: by the rows of x, its type and theirs.

Few rows go to `quantized_matvec`, some hundreds to `quantized_matmul`; for more, the weights are
made floats and cuBLAS multiplies, since their making is then a small part of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnitide.backend import Array
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.blas import Blas
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.dequantize import Dequantize
from omnitide.backends.cuda.elementwise import Elementwise
from omnitide.backends.cuda.norms import Norms
from omnitide.backends.cuda.quantized_matmul import QuantizedMatMul
from omnitide.backends.cuda.quantized_matvec import BITS, DTYPES, GROUPS, QuantizedMatVec
from omnitide.quantized import QuantizedWeight

MATMUL_ROWS = 128
"""Rows of x up to which `quantized_matmul` is taken. There a layer's products take as long either
way: dequantising and cuBLAS are faster for square matrices, slower for the projections."""

SCRATCH_BYTES = 160 << 20
"""Most bytes of dequantised weights at a time; a larger matrix is taken in parts of its rows."""

MAX_MATRICES = 3
"""Matrices that one launch takes."""

QuantizedMatrix = tuple[QuantizedWeight, Array | None]


class Quantized:
    """Linear layers with quantised weights; x (rows, in), C-contiguous. Shapes are right."""

    def __init__(
        self,
        compiler: Compiler,
        multiprocessors: int,
        blas: Blas,
        norms: Norms,
        elementwise: Elementwise,
    ) -> None:
        self._vector = QuantizedMatVec(compiler, multiprocessors)
        self._matmul = QuantizedMatMul(compiler, multiprocessors)
        self._dequantize = Dequantize(compiler)
        self._blas = blas
        self._norms = norms
        self._elementwise = elementwise

    def linear(
        self, x: Array, weight: QuantizedWeight, bias: Array | None, residual: Array | None
    ) -> Array:
        """x @ weight.T + bias + residual; residual (rows, out)."""
        if self._by_vector(x, [weight]):
            return self._vector.multiply(x, [(weight, bias)], residual=residual)[0]
        if self._by_matmul(x, [weight]):
            return self._matmul.multiply(x, [(weight, bias)], residual)[0]
        out = self._by_blas(x, weight)
        if bias is not None:
            return self._elementwise.add_bias(out, bias, residual)
        return out if residual is None else self._elementwise.add(out, residual)

    def project(
        self, x: Array, norm_weight: Array, eps: float, matrices: Sequence[QuantizedMatrix]
    ) -> list[Array]:
        """Each matrix's product with the norm of x."""
        weights = [weight for weight, _ in matrices]
        if self._by_vector(x, weights, norm=True):
            return self._vector.multiply(x, matrices, (norm_weight, eps))
        normed = self._norms.rms_norm(x, norm_weight, eps)
        if self._by_matmul(x, weights):
            return self._matmul.multiply(normed, matrices)
        return [self.linear(normed, *matrix, None) for matrix in matrices]

    def gated(
        self, x: Array, norm_weight: Array, eps: float, gate: QuantizedMatrix, up: QuantizedMatrix
    ) -> Array:
        """silu(gate(n)) * up(n), n the norm of x."""
        if self._by_vector(x, [gate[0], up[0]], norm=True, gated=True):
            return self._vector.multiply(x, [gate, up], (norm_weight, eps), gated=True)[0]
        return self._elementwise.swiglu(*self.project(x, norm_weight, eps, [gate, up]))

    def take(self, weight: QuantizedWeight, rows: Array, dtype: Any) -> Array:
        """Rows of a matrix by indices, int32 (num_rows,) on the device."""
        return self._dequantize.rows(weight, dtype, rows)

    def _by_vector(
        self,
        x: Array,
        weights: Sequence[QuantizedWeight],
        norm: bool = False,
        gated: bool = False,
    ) -> bool:
        fits = _alike(x, weights)
        return fits and self._vector.takes(int(x.shape[0]), weights[0], norm, gated)

    def _by_matmul(self, x: Array, weights: Sequence[QuantizedWeight]) -> bool:
        return _alike(x, weights) and 1 <= int(x.shape[0]) <= MATMUL_ROWS

    def _by_blas(self, x: Array, weight: QuantizedWeight) -> Array:
        height, width = weight.shape
        step = max(1, SCRATCH_BYTES // (width * int(x.dtype.itemsize)))
        out = cp.empty((x.shape[0], height), x.dtype)
        for start in range(0, height, step):
            part = self._dequantize.part(weight, x.dtype, start, min(start + step, height))
            self._blas.product(x, part, out, start)
        return out


def _alike(x: Array, weights: Sequence[QuantizedWeight]) -> bool:
    """Whether one launch of our own kernels may multiply x by these."""
    kinds = {(weight.mode, weight.bits, weight.group_size) for weight in weights}
    if x.dtype.name not in DTYPES or len(kinds) > 1 or len(weights) > MAX_MATRICES:
        return False
    ((mode, bits, group),) = kinds
    return mode == "affine" and bits in BITS and group in GROUPS
