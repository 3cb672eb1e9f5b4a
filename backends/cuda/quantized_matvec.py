"""Products of a few rows with quantised weights, and what decode does around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from omnitide.backend import Array
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.instances import C_TYPES, Instance
from omnitide.quantized import QuantizedWeight

MAX_TOKENS = 16
"""Rows of x, at most, that a launch takes; they share one reading of the weights."""

BITS = (4, 8)
GROUPS = (32, 64, 128)
DTYPES = ("float16", "bfloat16")

_TOKENS = (1, 8, 16)
_TILE = 16  # rows
_MAX_GROUPS = 16  # of a piece
_ALL = 227 * 1024  # bytes of shared memory that a block may have at most
_READ = 8  # groups whose scales are copied at once
_NULL = np.uint64(0)


@dataclass(frozen=True, slots=True)
class Ring:
    """How a block's shared memory is used for codes under way.

    Attributes:
        warps: Of a block; 8 at most for more than 8 rows of x, and for more than one with 8 bits.
        row_bytes: Bytes of codes, at most, of a row in a piece, unless two groups have more. No
            piece has more than 16 groups.
        slots: Pieces of a warp under way.
    """

    warps: int
    row_bytes: int
    slots: int


RINGS = (
    Ring(16, 256, 2),
    Ring(12, 256, 2),
    Ring(8, 256, 3),
    Ring(8, 256, 2),
    Ring(8, 256, 1),
)
"""For 4 bits. With less under way than in the last, `quantized_matmul` is faster."""

RINGS_OF_8 = (Ring(12, 256, 2), *RINGS[2:])
"""For 8 bits and one row of x."""

RINGS_OF_8_FOR_MORE = (Ring(8, 512, 2), *RINGS[2:])
"""For 8 bits and more rows, where a lane has too many registers for more than 8 warps."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """Sizes of a launch: as `quantized_matvec.cu` names them, and bytes of shared memory."""

    grid: int
    warps: int
    columns: int
    pieces: int
    slots: int
    batch: int
    shared: int


def rings_for(bits: int, rows: int) -> tuple[Ring, ...]:
    """Rings for weights of `bits` and so many rows of x; the first that fits is taken."""
    if bits == 4:
        return RINGS
    return RINGS_OF_8 if rows == 1 else RINGS_OF_8_FOR_MORE


def static_bytes(room: int) -> int:
    """Shared memory of an instance for `room` rows of x beside what a launch asks for.

    Sums of squares and a barrier, up to where the rest may begin.
    """
    return -(-(4 * 16 * room + 8) // 128) * 128


def _instance(dtype: str, bits: int, group: int, tokens: int) -> Instance:
    name = f"quantized_matvec<{C_TYPES[dtype]}, {bits}, {group}, {tokens}>"
    return Instance("quantized_matvec", name)


def instances() -> tuple[Instance, ...]:
    """Every instance that `QuantizedMatVec` launches."""
    return tuple(
        _instance(dtype, bits, group, tokens)
        for dtype in DTYPES
        for bits in BITS
        for group in GROUPS
        for tokens in _TOKENS
    )


class QuantizedMatVec:
    """Launches on CuPy's current stream, nothing but the launch: fit for capture into a graph.

    x is (tokens, in), float16 or bfloat16; weights are (out, in), of mode "affine", of `BITS` and
    `GROUPS`, their scales and biases in x's dtype. Weights of one launch are cut into groups alike.
    """

    def __init__(
        self, compiler: Compiler, multiprocessors: int, rings: Sequence[Ring] | None = None
    ) -> None:
        self._compiler = compiler
        self._multiprocessors = multiprocessors
        self._rings = rings
        limit = int(cp.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"])
        self._limit = min(limit, _ALL)

    def takes(self, tokens: int, weight: QuantizedWeight, norm: bool, gated: bool = False) -> bool:
        """Whether one launch takes so many rows of x."""
        return 1 <= tokens <= MAX_TOKENS and self._plan(tokens, weight, norm, gated, 1) is not None

    def multiply(
        self,
        x: Array,
        pairs: Sequence[tuple[QuantizedWeight, Array | None]],
        norm: tuple[Array, float] | None = None,
        residual: Array | None = None,
        gated: bool = False,
        overlap: bool = True,
    ) -> list[Array]:
        """x times each of up to three weights, plus its bias.

        Args:
            x: (tokens, in), tokens such that `takes`.
            pairs: Weights and biases of the layers, (out,) or None.
            norm: Weight and epsilon: x is RMS-normalised first, and rounded to its dtype.
            residual: (tokens, out), added to the product with a single weight.
            gated: Of two weights: silu(first product) * second, both rounded to x's dtype first.
            overlap: Start while the stream's last kernel runs, where the device can. The weights,
                and that of the norm, must not be written by a kernel that may still run.

        Returns:
            (tokens, out) for each weight; one if gated.

        Raises:
            ValueError: x has more rows than fit into shared memory.
        """
        tokens, width = x.shape
        weights = [weight for weight, _ in pairs]
        heights = [weight.shape[0] for weight in weights][: 1 if gated else None]
        plan = self._plan(tokens, weights[0], norm is not None, gated, sum(heights))
        if plan is None:
            raise ValueError(
                f"[quantized_matvec] rows of x must fit into shared memory, got {tokens} of "
                f"{width}; pass fewer"
            )
        out = [cp.empty((tokens, height), x.dtype) for height in heights]
        norm_weight, eps = norm or (None, 0.0)
        args = (
            x,
            or_null(norm_weight),
            np.float32(eps),
            *three([weight.packed for weight in weights]),
            *three([weight.scales for weight in weights]),
            *three([weight.biases for weight in weights]),
            *three([bias for _, bias in pairs]),
            or_null(residual),
            *three(out),
            *(np.int32(height) for height in (*heights, 0, 0)[:3]),
            *(np.int32(size) for size in (tokens, width, plan.columns, plan.pieces, plan.slots)),
            *(np.int32(size) for size in (plan.batch, *divmod(sum(heights), plan.grid))),
            np.bool_(gated),
        )
        room = next(room for room in _TOKENS if room >= tokens)
        instance = _instance(x.dtype.name, weights[0].bits, weights[0].group_size, room)
        self._compiler(instance)(
            (plan.grid,), (32 * plan.warps,), args, shared=plan.shared, overlap=overlap
        )
        return out

    def _plan(
        self, tokens: int, weight: QuantizedWeight, norm: bool, gated: bool, outputs: int
    ) -> _Plan | None:
        """Sizes for so many outputs; None if no ring fits beside x."""
        width, group, bits = weight.shape[1], weight.group_size, weight.bits
        room = next(room for room in _TOKENS if room >= tokens)
        even_groups = -(-width // (2 * group)) * 2
        packs = even_groups * group // 8
        fold = min(group, 64)
        row_of_x = packs + 1 if fold == 64 else packs | 4
        for ring in self._rings or rings_for(bits, room):
            warps = min(ring.warps, 8) if room > (1 if bits == 8 else 8) else ring.warps
            pairs = max(ring.row_bytes * 8 // (2 * bits * group), 1)
            groups = min(2 * pairs, _MAX_GROUPS, even_groups)
            columns = groups * group
            slot = _TILE * _pitch(columns * bits // 8, fold * bits // 128)
            slot += -(-groups // _READ) * 2 * _TILE * _READ * 2
            sums = 4 * _TILE * room  # bytes of a warp's sums of a tile
            tile = (sums + 8) * (1 + gated)  # of a tile's sums but one a warp, and who made them
            shared = (
                warps * ring.slots * slot
                + 16 * (tokens + norm) * row_of_x
                + 4 * max(room, 2) * even_groups
                + sums * (warps - 1)
            )
            most = (self._limit - static_bytes(room) - shared) // tile
            if most > 0:
                grid = min(self._multiprocessors, outputs)
                batch = _even_batch(-(-outputs // (grid * _TILE)), most)
                shared += tile * batch
                pieces = -(-width // columns)
                return _Plan(grid, warps, columns, pieces, ring.slots, batch, shared)
        return None


def _even_batch(tiles: int, most: int) -> int:
    """Tiles of a batch, so that as few batches as can be are about alike."""
    batches = -(-tiles // most)
    return -(-tiles // batches)


def _pitch(row_bytes: int, words: int) -> int:
    """`pitch_of` of quantized_matvec.cu."""
    return (row_bytes - 16 * words + 127) // 128 * 128 + 16 * words


def or_null(array: Array | None) -> Array:
    """A kernel's argument that may be missing."""
    return _NULL if array is None else array


def three(arrays: Sequence[Array | None]) -> list[Array]:
    """Up to three arrays as three arguments."""
    return [or_null(array) for array in (*arrays, None, None)[:3]]
