"""Decode attention on the device: which instance runs, in how many blocks, and their scratch."""

from __future__ import annotations

from dataclasses import dataclass

import cupy as cp
import numpy as np

from omnitide.backend import Array
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.backends.cuda.instances import C_TYPES, Instance
from omnitide.pages import SUBBLOCK_SIZE

FILE = "decode_attention"
DTYPES = ("float16", "bfloat16")
HEAD_DIMS = (64, 80, 96, 128)
WARPS = 8
ROWS_OF_A_WARP = ((8, 1), (16, 1), (16, 2), (16, 4))
"""Rows of a warp, and how many such groups of rows a block has."""

UNIT_ROWS = 16
"""Rows of a tile that a warp takes at a time; blocks differ by one such unit at most."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a launch is cut up.

    Attributes:
        warp_rows: Rows (query, query head of one KV head) of a warp.
        groups: Groups of so many rows in a block.
        splits: Blocks among which the cells of a KV head are divided.
        row_blocks: Blocks among which the rows are divided.
    """

    warp_rows: int
    groups: int
    splits: int
    row_blocks: int
    warps: int = WARPS

    @classmethod
    def of(cls, rows: int, kv_heads: int, max_tiles: int, multiprocessors: int) -> Shape:
        """For so many rows a KV head. At most one block a multiprocessor if there are splits."""
        warp_rows, groups = next(
            (pair for pair in ROWS_OF_A_WARP if pair[0] * pair[1] >= rows), ROWS_OF_A_WARP[-1]
        )
        row_blocks = -(-rows // (warp_rows * groups))
        units = max_tiles * (SUBBLOCK_SIZE // UNIT_ROWS)
        splits = max(1, min(multiprocessors // (kv_heads * row_blocks), units))
        return cls(warp_rows, groups, splits, row_blocks)

    def instance(self, dtype: str, head_dim: int) -> Instance:
        """The kernel."""
        arguments = f"{head_dim}, {self.warp_rows // 8}, {self.groups}, {self.warps}"
        return Instance(FILE, f"decode_attention<{C_TYPES[dtype]}, {arguments}>")

    def outputs(self, head_dim: int) -> int:
        """Outputs of a block."""
        return self.warp_rows * self.groups * head_dim

    def shared(self, head_dim: int) -> int:
        """Bytes of shared memory of a block."""
        rows = self.warp_rows * self.groups
        partial = self.warps * self.warp_rows * (-(-head_dim // 32) * 32 + 2)
        turned = -(-rows // 16) * 16 * head_dim // 2
        return 4 * (partial + turned + 2 * rows)


class DecodeAttention:
    """Attention of up to 16 queries over the live tiles of a step.

    Launches share scratch, so they must follow one another on one stream.
    """

    def __init__(self, compiler: Compiler, multiprocessors: int) -> None:
        self._compiler = compiler
        self._multiprocessors = multiprocessors
        # Every block of a launch with splits has a part of each output of its KV head and rows.
        most = max(rows * groups for rows, groups in ROWS_OF_A_WARP) * max(HEAD_DIMS)
        self._parts = cp.full(multiprocessors * most, -1, np.int32)
        self._sums = cp.full(multiprocessors * most // 2, -1, np.int32)

    def __call__(
        self, q: Array, rotated: Array, values: Array, step: DeviceStep, scale: float
    ) -> Array:
        """Attention of q (num_queries, num_heads, head_dim), not rotated; same shape out.

        Args:
            q: Float16 or bfloat16, C-contiguous.
            rotated, values: One layer's turned keys and values, of q's dtype.
            step: How long its tile list is, is read on the device.
            scale: Factor of the scores.
        """
        rows = q.shape[0] * (q.shape[1] // rotated.shape[1])
        shape = Shape.of(rows, rotated.shape[1], step.max_tiles, self._multiprocessors)
        return self.launch(shape, q, rotated, values, step, scale)

    def launch(self, shape, q, rotated, values, step, scale, launcher=None, out=None):
        num_queries, num_heads, head_dim = q.shape
        kv_heads = rotated.shape[1]
        group = num_heads // kv_heads
        out = cp.empty_like(q) if out is None else out
        kernel = self._compiler(shape.instance(str(q.dtype), head_dim))
        args = (
            q,
            rotated,
            values,
            step.num_tiles,
            step.subblocks,
            step.masks,
            step.orders,
            step.query_orders,
            step.query_cos,
            step.query_sin,
            out,
            self._parts,
            self._sums,
            np.uint32(step.max_tiles),
            np.uint32(num_queries),
            np.uint32(group),
            np.uint32(-(-65536 // group)),
            np.float32(scale),
        )
        grid = (shape.splits, kv_heads, shape.row_blocks)
        if launcher: launcher(kernel, grid, (32 * shape.warps,), args, shape.shared(head_dim))
        else: kernel(grid, (32 * shape.warps,), args, shape.shared(head_dim))
        return out


def instances() -> tuple[Instance, ...]:
    """Every instance that can be launched."""
    return tuple(
        Shape(warp_rows, groups, 1, 1).instance(dtype, head_dim)
        for dtype in DTYPES
        for head_dim in HEAD_DIMS
        for warp_rows, groups in ROWS_OF_A_WARP
    )
