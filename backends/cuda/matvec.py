"""Products of a few rows with the weights, and what decode does around them.

A decoded token reads every weight once, so these launches are decode. With overlap each is prepared
while its predecessor ends: weights flow without a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from omnitide.backend import Array
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.instances import C_TYPES, Instance

MAX_TOKENS = 8
"""Rows of x, at most, that a launch takes; they share one reading of the weights."""

_PARTS = 32  # of a row of logits
_PART_THREADS = 256
_DTYPES = ("float16", "bfloat16")
_TOKENS = (1, 2, 4, 8)
_NULL = np.uint64(0)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a block takes its rows.

    Attributes:
        warps: Warps of a block.
        columns: Columns of a row that a copy brings, at most.
        budget: KiB of shared memory.
        late: When the successor may start.
    """

    warps: int = 8
    columns: int = 2048
    budget: int = 113
    late: bool = False

    def shared(self, width: int, rows: int, slots: int) -> int:
        """Bytes of shared memory for so many slots a warp and rows of input."""
        return 2 * (self.warps * slots * self.share(width) + rows * width) + _STATIC

    def share(self, width: int) -> int:
        """Columns of a piece of a row so wide."""
        pieces = -(-width // self.columns)
        return -(-width // (8 * pieces)) * 8


_SLOTS = (8, 7, 6, 5, 4, 3, 2, 1)
_STATIC = 5376  # bytes of shared memory that a kernel needs in any case
_ALL = 228 * 1024  # of a multiprocessor, on an H100


def _instance(dtype: str, gated: bool, norm: bool, tokens: int, plan: Plan) -> Instance:
    flags = f"{str(gated).lower()}, {str(norm).lower()}"
    return Instance("matvec", f"matvec<{C_TYPES[dtype]}, {flags}, {tokens}, {plan.warps}>")


def _argmax_instance(dtype: str) -> Instance:
    return Instance("argmax", f"argmax<{C_TYPES[dtype]}>")


def instances() -> tuple[Instance, ...]:
    """Every instance that `MatVec` launches."""
    kinds = ((False, False), (False, True), (True, True))
    products = [
        _instance(dtype, *kind, tokens, Plan())
        for dtype in _DTYPES
        for kind in kinds
        for tokens in _TOKENS
    ]
    return (*products, *(_argmax_instance(dtype) for dtype in C_TYPES))


class MatVec:
    """Launches on CuPy's current stream, nothing but the launch: fit for capture into a graph.

    x is (tokens, in), tokens at most `max_tokens(in)`, in a multiple of 8; weights are (out, in),
    any out; float16 or bfloat16. Products and sums are in float32.
    """

    def __init__(
        self,
        compiler: Compiler,
        multiprocessors: int,
        overlap: bool = True,
        plan: Plan | None = None,
        large: Plan | None = None,
    ) -> None:
        """
        Args:
            compiler: Of the device.
            multiprocessors: Of the device.
            overlap: Let kernels start before their predecessor has ended, where the device can.
                Every kernel of the stream that is launched so waits as `kernels/overlap.cuh` says;
                kernels launched in the ordinary way are safe between them.
            plan: Other than the default.
        """
        self._compiler = compiler
        self._multiprocessors = multiprocessors
        self._overlap = overlap
        self._small = plan or Plan()
        self._large = large or self._small
        self._plan = self._small
        self._limit = cp.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
        self._found = cp.empty((MAX_TOKENS, _PARTS), np.uint64)
        self._arrived = cp.zeros(MAX_TOKENS, np.uint32)

    def max_tokens(self, width: int) -> int:
        """Rows of x that a launch takes if they are so wide; 0: none."""
        free = self._limit - self._plan.shared(width, 1, 1)
        return max(0, min(MAX_TOKENS, int(free) // (2 * width)))

    def linear(
        self, x: Array, weight: Array, bias: Array | None = None, residual: Array | None = None
    ) -> Array:
        """x @ weight.T + bias + residual, rounded once; residual is (tokens, out)."""
        return self._multiply(x, [(weight, bias)], residual=residual)[0]

    def project(
        self,
        x: Array,
        norm_weight: Array,
        eps: float,
        weights_and_biases: Sequence[tuple[Array, Array | None]],
    ) -> list[Array]:
        """The RMS norm of x, rounded to its dtype, times each of up to three matrices."""
        return self._multiply(x, weights_and_biases, norm=(norm_weight, eps))

    def gated(
        self,
        x: Array,
        norm_weight: Array,
        eps: float,
        gate: Array,
        gate_bias: Array | None,
        up: Array,
        up_bias: Array | None,
    ) -> Array:
        """silu(n @ gate.T + gate_bias) * (n @ up.T + up_bias), n the RMS norm of x.

        n and both factors are rounded to x's dtype, as separate operations would.
        """
        pairs = ((gate, gate_bias), (up, up_bias))
        return self._multiply(x, pairs, norm=(norm_weight, eps), gated=True)[0]

    def argmax(self, logits: Array) -> Array:
        """The index of each row's largest value, int32, shape (rows,); rows at most MAX_TOKENS.

        The lowest among equals; -1 for a row that holds a NaN.
        """
        rows, width = logits.shape
        out = cp.empty(rows, np.int32)
        args = (logits, self._found, self._arrived, out, np.int32(width))
        kernel = self._compiler(_argmax_instance(logits.dtype.name))
        kernel((_PARTS, rows), (_PART_THREADS,), args, overlap=self._overlap)
        return out

    def _multiply(
        self,
        x: Array,
        pairs: Sequence[tuple[Array, Array | None]],
        norm: tuple[Array, float] | None = None,
        residual: Array | None = None,
        gated: bool = False,
    ) -> list[Array]:
        tokens, width = x.shape
        outputs = [weight.shape[0] for weight, _ in pairs][: 1 if gated else None]
        out = [cp.empty((tokens, height), x.dtype) for height in outputs]
        norm_weight, eps = norm or (None, 0.0)
        rows = tokens + (norm is not None)
        self._plan = (
            self._large
            if sum(w.nbytes for w, _ in pairs) > 5e5 * self._multiprocessors
            else self._small
        )
        slots = self._slots(width, rows)
        args = (
            x,
            _or_null(norm_weight),
            np.float32(eps),
            *_three([weight for weight, _ in pairs]),
            *_three([bias for _, bias in pairs]),
            _or_null(residual),
            *_three(out),
            *(np.int32(height) for height in (*outputs, 0, 0)[:3]),
            np.int32(tokens),
            np.int32(width),
            np.int32(self._plan.share(width)),
            np.int32(slots),
            np.int32(self._plan.late),
        )
        room = next(room for room in _TOKENS if room >= tokens)
        kernel = self._compiler(_instance(x.dtype.name, gated, norm is not None, room, self._plan))
        kernel(
            (min(self._multiprocessors, sum(outputs)),),
            (32 * self._plan.warps,),
            args,
            shared=max(
                self._plan.shared(width, rows, slots),
                min(self._limit, _ALL // 3),
            )
            - _STATIC,
            overlap=self._overlap,
        )
        return out

    def _slots(self, width: int, rows: int) -> int:
        fits = [n for n in _SLOTS if self._plan.shared(width, rows, n) <= self._limit]
        small = [n for n in fits if self._plan.shared(width, rows, n) <= self._plan.budget * 1024]
        return (small or fits)[0]


def _or_null(array: Array | None) -> Array:
    return _NULL if array is None else array


def _three(arrays: Sequence[Array | None]) -> list[Array]:
    return [_or_null(array) for array in (*arrays, None, None)[:3]]
