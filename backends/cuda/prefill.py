"""Prefill attention on any chip from sm_80 on: many queries over a step's live subblocks.

Invariant: what a launch needs to know of a step is its number of queries and the room of its list;
all else is read on the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from omnitide.backend import Array
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.backends.cuda.instances import C_TYPES, Instance
from omnitide.backends.cuda.tiles import CELLS, row_bytes

DTYPES = ("float16", "bfloat16")
HEAD_DIMS = (64, 80, 96, 128)

SEEN_BYTES = 16
"""Of a subblock in a block's list."""

MOST_ROOM = 512
"""Most subblocks that a block lists at once; twice as many bring nothing."""

LEAST_ROOM = 64
"""Fewest that are worth a shape."""

MOST_PARTS = 16
"""Most parts of the list: merging more costs what they save."""

START_TILES = 4
MERGE_TILES = 2
"""What a block costs beside its tiles, and what more where parts are merged, in tiles' times."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a block of the kernel is laid out.

    Attributes:
        warps: Warps of a group.
        fragments: Sixteens of rows that a warp has.
        groups: Groups of warps that share the block's rows and take its tiles in turn.
        stages: Tiles that a group keeps in shared memory.
    """

    warps: int
    fragments: int
    groups: int
    stages: int

    @property
    def rows(self) -> int:
        """Rows (queries times heads) of a block."""
        return 16 * self.fragments * self.warps

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps * self.groups

    def shared(self, head_dim: int) -> int:
        """Bytes of shared memory without the list of seen subblocks."""
        row = row_bytes(head_dim)
        stage = 2 * CELLS * row + 4 * CELLS
        scratch = 4 * 2 * 32
        return self.rows * row + self.groups * self.stages * stage + 4 * self.rows + scratch


LARGE = Shape(warps=4, fragments=2, groups=2, stages=2)
"""For chips with 163 KB of shared memory and more: a K or V fragment, once read, serves 32 rows."""

FEW = Shape(warps=4, fragments=1, groups=2, stages=2)
"""For the same chips and so few queries that larger blocks would leave most of the chip idle."""

SMALL = Shape(warps=8, fragments=1, groups=1, stages=2)
"""For all other chips: 99 KB are enough for every head_dim."""


class PrefillAttention:
    """Attention of new tokens over one layer, for any number of queries."""

    def __init__(self, compiler: Compiler, shared_limit: int, multiprocessors: int) -> None:
        """Compiles nothing yet.

        Args:
            compiler: The device's kernels.
            shared_limit: Most bytes of shared memory of a block.
            multiprocessors: Of the device.
        """
        self._compiler = compiler
        self._shared_limit = shared_limit
        self._multiprocessors = multiprocessors

    def __call__(
        self, q: Array, rotated: Array, values: Array, step: DeviceStep, scale: float
    ) -> Array:
        """Attention of the step's queries.

        Args:
            q: (num_queries, num_heads, head_dim), not yet rotated.
            rotated, values: (num_pages, num_kv_heads, PAGE_SIZE, head_dim).
            step: The step on the device.
            scale: Factor of the scores, positive.

        Returns:
            The shape and dtype of q.
        """
        num_queries, num_heads, head_dim = q.shape
        num_kv_heads = rotated.shape[1]
        group = num_heads // num_kv_heads
        num_rows = num_queries * group
        out = cp.empty_like(q)
        if num_queries == 0:
            return out
        shape = self._shape(head_dim, num_rows, num_kv_heads)
        blocks = math.ceil(num_rows / shape.rows)
        num_parts = self._num_parts(shape, blocks * num_kv_heads, step.max_tiles)
        parts = cp.empty(0, np.float32)
        ranges = parts
        if num_parts > 1:
            parts = cp.empty((num_parts, num_kv_heads, num_rows, head_dim), np.float32)
            ranges = cp.empty((num_parts, num_kv_heads, num_rows, 2), np.float32)
        factor = np.float32(scale * math.log2(math.e))
        spare = (self._shared_limit - shape.shared(head_dim)) // SEEN_BYTES
        room = min(MOST_ROOM, spare // 2 * 2)
        self._compiler(attention_instance(q.dtype.name, head_dim, shape))(
            (num_kv_heads, blocks, num_parts),
            (shape.threads,),
            (
                q,
                rotated,
                values,
                step.num_tiles,
                step.subblocks,
                step.masks,
                step.least,
                step.greatest,
                step.orders,
                step.query_orders,
                step.query_cos,
                step.query_sin,
                out,
                parts,
                ranges,
                np.int32(num_queries),
                np.int32(step.max_tiles),
                np.int32(group),
                np.int32(room),
                factor,
            ),
            shared=shape.shared(head_dim) + SEEN_BYTES * room,
        )
        if num_parts > 1:
            self._compiler(merge_instance(q.dtype.name, head_dim))(
                (math.ceil(num_rows / 4), num_kv_heads),
                (128,),
                (
                    parts,
                    ranges,
                    out,
                    np.int32(num_parts),
                    np.int32(num_queries),
                    np.int32(group),
                    factor,
                ),
            )
        return out

    def parts_bytes(
        self, num_queries: int, num_heads: int, num_kv_heads: int, head_dim: int, max_tiles: int
    ) -> int:
        """Bytes of what is merged, if the list of tiles is cut into parts."""
        num_rows = num_queries * (num_heads // num_kv_heads)
        shape = self._shape(head_dim, num_rows, num_kv_heads)
        blocks = math.ceil(num_rows / shape.rows)
        num_parts = self._num_parts(shape, blocks * num_kv_heads, max_tiles)
        if num_parts == 1:
            return 0
        return 4 * num_parts * num_queries * num_heads * (head_dim + 2)

    def _shape(self, head_dim: int, num_rows: int, num_kv_heads: int) -> Shape:
        """What serves so many rows of each KV head best."""
        if LARGE.shared(head_dim) + SEEN_BYTES * LEAST_ROOM > self._shared_limit:
            return SMALL
        blocks = math.ceil(num_rows / FEW.rows) * num_kv_heads
        return FEW if 3 * blocks <= self._multiprocessors else LARGE

    def _num_parts(self, shape: Shape, blocks: int, max_tiles: int) -> int:
        """How many parts of the list take least time: waves of blocks, times a block's time."""
        pairs = math.ceil(max_tiles / 2)

        def time(num_parts: int) -> int:
            waves = math.ceil(blocks * num_parts / self._multiprocessors)
            tiles = math.ceil(pairs / (num_parts * shape.groups))
            return waves * (tiles + START_TILES + (MERGE_TILES if num_parts > 1 else 0))

        return min(range(1, MOST_PARTS + 1), key=time)


def attention_instance(dtype: str, head_dim: int, shape: Shape) -> Instance:
    """The kernel for a dtype, a head_dim and a shape."""
    numbers = (head_dim, shape.warps, shape.fragments, shape.groups, shape.stages)
    arguments = ", ".join(str(number) for number in numbers)
    return Instance("prefill_attention", f"prefill_attention<{C_TYPES[dtype]}, {arguments}>")


def merge_instance(dtype: str, head_dim: int) -> Instance:
    """The kernel that merges the parts."""
    return Instance("prefill_attention", f"merge_parts<{C_TYPES[dtype]}, {head_dim}>")


def instances() -> tuple[Instance, ...]:
    """Every instance that `PrefillAttention` can launch."""
    made: list[Instance] = []
    for dtype in DTYPES:
        for head_dim in HEAD_DIMS:
            made += [attention_instance(dtype, head_dim, shape) for shape in (LARGE, FEW, SMALL)]
            made.append(merge_instance(dtype, head_dim))
    return tuple(made)
