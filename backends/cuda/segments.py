"""Encoder attention: full attention inside each of consecutive segments."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from omnitide.backend import Array
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.instances import C_TYPES, Instance
from omnitide.backends.cuda.tiles import CELLS, row_bytes

DTYPES = ("float16", "bfloat16")
ENCODER_DIMS = (64, 72, 80)
OTHER_DIMS = (96, 128)

MOST_KEPT = 64
"""Lists of work that are kept: an encoder asks for the same one in every layer."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a block of the kernel is laid out.

    Attributes:
        warps: Warps of a block.
        fragments: Sixteens of rows that a warp has.
        stages: Tiles that are kept in shared memory; 1 serves segments of one tile only.
        blocks: Blocks that registers are left for on a multiprocessor.
    """

    warps: int
    fragments: int
    stages: int
    blocks: int

    @property
    def rows(self) -> int:
        """Tokens of a block."""
        return 16 * self.fragments * self.warps

    def shared(self, head_dim: int) -> int:
        """Bytes of shared memory."""
        return (self.rows + self.stages * 2 * CELLS) * row_bytes(head_dim)


SHORT = Shape(warps=4, fragments=1, stages=1, blocks=4)
"""For segments of one tile: memory is what counts, so many blocks at once."""

MIDDLE = Shape(warps=4, fragments=1, stages=2, blocks=3)
"""For segments of two tiles."""

LONG = (
    Shape(warps=4, fragments=2, stages=3, blocks=1),
    Shape(warps=4, fragments=2, stages=2, blocks=1),
)
"""For longer ones, where a multiprocessor has room for two such blocks, best first."""

PLAIN = Shape(warps=8, fragments=1, stages=2, blocks=1)
"""For longer ones elsewhere, and for all segments of head_dims that no encoder has so far."""

RESERVED = 1024
"""Bytes of shared memory that a block takes beside its own."""


class SegmentAttention:
    """Block-diagonal attention without a mask."""

    def __init__(self, compiler: Compiler, shared_limit: int) -> None:
        """Compiles nothing yet.

        Args:
            compiler: The device's kernels.
            shared_limit: Most bytes of shared memory of a block.
        """
        self._compiler = compiler
        self._shared_limit = shared_limit
        self._work: dict[tuple[tuple[int, ...], tuple[int, ...], int], Array] = {}

    def __call__(
        self,
        q: Array,
        k: Array,
        v: Array,
        lengths: tuple[int, ...],
        key_lengths: tuple[int, ...],
        scale: float,
    ) -> Array:
        """Attention of each segment's tokens over the keys of the same segment.

        Args:
            q: (num_tokens, num_heads, head_dim).
            k, v: (num_keys, num_heads, head_dim).
            lengths: Tokens of each segment; they add up to num_tokens.
            key_lengths: Keys of each segment; they add up to num_keys.
            scale: Factor of the scores, positive.

        Returns:
            The shape and dtype of q.
        """
        _, num_heads, head_dim = q.shape
        out = cp.empty_like(q)
        longest = max(key_lengths, default=0)
        if longest == 0:
            return out
        shape = self._shape(head_dim, longest)
        work = self._items(lengths, key_lengths, shape.rows)
        self._compiler(instance(q.dtype.name, head_dim, shape))(
            (len(work), num_heads),
            (32 * shape.warps,),
            (
                q,
                k,
                v,
                work,
                out,
                np.int32(num_heads),
                np.float32(scale * math.log2(math.e)),
            ),
            shared=shape.shared(head_dim),
        )
        return out

    def _shape(self, head_dim: int, longest: int) -> Shape:
        """What serves segments of up to so many keys best."""
        if head_dim not in ENCODER_DIMS:
            return PLAIN
        if longest <= CELLS:
            return SHORT
        if longest <= 2 * CELLS:
            return MIDDLE
        room = self._shared_limit + RESERVED
        twice = (shape for shape in LONG if 2 * (shape.shared(head_dim) + RESERVED) <= room)
        return next(twice, PLAIN)

    def _items(self, lengths: tuple[int, ...], key_lengths: tuple[int, ...], rows: int) -> Array:
        """What each block does, int32, shape (num_items, 5); long segments first."""
        key = (lengths, key_lengths, rows)
        if key not in self._work:
            if len(self._work) == MOST_KEPT:
                self._work.pop(next(iter(self._work)))
            self._work[key] = cp.asarray(work_items(lengths, key_lengths, rows))
        return self._work[key]


def work_items(
    lengths: tuple[int, ...], key_lengths: tuple[int, ...], rows: int
) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """What each block does: segments of many keys first.

    First token of a segment and how many it has, first row of the block among them, first key of
    the segment and how many it has.
    """
    count, keys = np.array(lengths, np.int32), np.array(key_lengths, np.int32)
    order = np.argsort(-keys, kind="stable")
    blocks = -(-count[order] // rows)
    first = np.arange(blocks.sum()) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    tokens, token_count, key, key_count = (
        np.repeat(column[order], blocks)
        for column in (np.cumsum(count) - count, count, np.cumsum(keys) - keys, keys)
    )
    columns = (tokens, token_count, first * rows, key, key_count)
    return np.stack(columns, axis=1).astype(np.int32)


def instance(dtype: str, head_dim: int, shape: Shape) -> Instance:
    """The kernel for a dtype, a head_dim and a shape."""
    numbers = (head_dim, shape.warps, shape.fragments, shape.stages, shape.blocks)
    arguments = ", ".join((C_TYPES[dtype], *map(str, numbers)))
    return Instance("segment_attention", f"segment_attention<{arguments}>")


def instances() -> tuple[Instance, ...]:
    """Every instance that `SegmentAttention` can launch."""
    shapes = [(d, s) for d in ENCODER_DIMS for s in (SHORT, MIDDLE, *LONG, PLAIN)]
    shapes += [(head_dim, PLAIN) for head_dim in OTHER_DIMS]
    return tuple(instance(dtype, *shape) for dtype in DTYPES for shape in shapes)
