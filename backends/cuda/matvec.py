"""Products of a few rows with the weights, and what decode does around them.

A decoded token reads every weight once, so these launches are most of a decoded token's time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from omnitide.backend import Array
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.instances import C_TYPES, Instance

MAX_TOKENS = 8
"""Rows of x, at most, that a launch takes; they share one reading of the weights."""

_WARPS = 8  # of a block
_HALF = (
    113 * 1024
)  # bytes of shared memory, so that an H100's multiprocessor has room for two blocks
_ALL = 227 * 1024
_SLOTS = range(8, 0, -1)
_RINGS = (
    *((2048, slots, _HALF) for slots in _SLOTS),
    *((2048, slots, _ALL) for slots in _SLOTS),
    *((1024, 1, _ALL), (512, 1, _ALL)),
)
"""Columns that a copy brings, at most, copies of a warp under way, and bytes of shared memory that
a block may have. The first that fits is taken."""

_MAX_PIECES = 64  # of a row
_STATIC = 5376  # bytes of shared memory that a block needs in any case
_DTYPES = ("float16", "bfloat16")
_TOKENS = (1, 2, 4, 8)
_NULL = np.uint64(0)


def _instance(dtype: str, gated: bool, norm: bool, tokens: int) -> Instance:
    flags = f"{str(gated).lower()}, {str(norm).lower()}"
    return Instance("matvec", f"matvec<{C_TYPES[dtype]}, {flags}, {tokens}>")


def instances() -> tuple[Instance, ...]:
    """Every instance that `MatVec` launches."""
    kinds = ((False, False), (False, True), (True, True))
    return tuple(
        _instance(dtype, *kind, tokens) for dtype in _DTYPES for kind in kinds for tokens in _TOKENS
    )


class MatVec:
    """Launches on CuPy's current stream, nothing but the launch: fit for capture into a graph.

    x is (tokens, in), tokens at most `max_tokens(in)`, in a multiple of 8; weights are (out, in),
    any out; float16 or bfloat16. Products and sums are in float32.
    """

    def __init__(self, compiler: Compiler, multiprocessors: int, overlap: bool = False) -> None:
        """
        Args:
            compiler: Of the device.
            multiprocessors: Of the device.
            overlap: Let kernels start before their predecessor has ended, where the device can.
                Every kernel of the stream that is launched so waits as `kernels/overlap.cuh` says;
                kernels launched in the ordinary way are safe between them. Products alone gain by
                it; among other kernels, such as attention, blocks are spread unevenly and all lose.
        """
        self._compiler = compiler
        self._multiprocessors = multiprocessors
        self._overlap = overlap
        self._limit = int(cp.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"])

    def max_tokens(self, width: int) -> int:
        """Rows of x that a launch takes if they are so wide; 0: none."""
        fitting = (n for n in range(MAX_TOKENS, 0, -1) if self._ring(width, n + 1) is not None)
        return next(fitting, 0)

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
        ring = self._ring(width, tokens + (norm is not None))
        if ring is None:
            raise ValueError(
                f"[matvec] rows of x fit into shared memory, got {tokens} of {width}; "
                f"pass at most {self.max_tokens(width)}"
            )
        columns, slots, shared = ring
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
            np.int32(columns),
            np.int32(slots),
        )
        room = next(room for room in _TOKENS if room >= tokens)
        self._compiler(_instance(x.dtype.name, gated, norm is not None, room))(
            (min(self._multiprocessors, sum(outputs)),),
            (32 * _WARPS,),
            args,
            shared=shared,
            overlap=self._overlap,
        )
        return out

    def _ring(self, width: int, rows: int) -> tuple[int, int, int] | None:
        """Columns, slots and bytes of dynamic shared memory for so many rows beside the ring."""
        for most, slots, budget in _RINGS:
            pieces = -(-width // most)
            columns = -(-width // (8 * pieces)) * 8
            size = 2 * (_WARPS * slots * columns + rows * width)
            if pieces <= _MAX_PIECES and size + _STATIC <= min(budget, self._limit):
                return columns, slots, size
        return None


def _or_null(array: Array | None) -> Array:
    return _NULL if array is None else array


def _three(arrays: Sequence[Array | None]) -> list[Array]:
    return [_or_null(array) for array in (*arrays, None, None)[:3]]
