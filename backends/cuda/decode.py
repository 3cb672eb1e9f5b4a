"""Decode attention on the device: which instance runs, in how many blocks, and their scratch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omnitide.backend import Array
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.backends.cuda.instances import C_TYPES, Instance
from omnitide.pages import SUBBLOCK_SIZE

DTYPES = ("float16", "bfloat16")
HEAD_DIMS = (64, 80, 96, 128)

WARPS = 8
"""Warps of a block. Four and twelve were no faster for few cells, nor were sixteen."""

ROWS_OF_A_WARP = ((8, 1), (16, 1), (16, 2), (16, 4))
"""Rows of a warp, and how many such groups of rows a block has."""

UNIT_ROWS = 16
"""Rows of a tile that a warp takes at a time; blocks differ by one such unit at most."""

CLUSTER = 8
"""Blocks of a cluster."""

CLUSTER_TILES = 1024
"""Tiles times KV heads up to which clusters pay (8,192 cells of 4 heads): they leave some of the
chip idle, but merge their results in 1 us less."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a launch is cut up.

    Attributes:
        warp_rows: Rows (query, query head of one KV head) of a warp.
        groups: Groups of so many rows in a block.
        splits: Blocks among which the cells of a KV head are divided.
        row_blocks: Blocks among which the rows are divided.
        clustered: Whether the splits form clusters, which are merged first.
    """

    warp_rows: int
    groups: int
    splits: int
    row_blocks: int
    clustered: bool = False

    @classmethod
    def of(
        cls, rows: int, kv_heads: int, max_tiles: int, multiprocessors: int, clusters: bool
    ) -> Shape:
        """For so many rows a KV head. With splits, at most one block a multiprocessor.

        Args:
            rows: Rows of a KV head.
            kv_heads: KV heads.
            max_tiles: Tiles that the step has room for.
            multiprocessors: Of the device.
            clusters: Whether the device has clusters.
        """
        warp_rows, groups = next(
            (pair for pair in ROWS_OF_A_WARP if pair[0] * pair[1] >= rows), ROWS_OF_A_WARP[-1]
        )
        row_blocks = -(-rows // (warp_rows * groups))
        units = max_tiles * (SUBBLOCK_SIZE // UNIT_ROWS)
        # One of the parts that clusters are placed in has room for one cluster fewer.
        at_once = multiprocessors // CLUSTER - 1
        if clusters and rows <= 8 and kv_heads <= at_once and max_tiles * kv_heads <= CLUSTER_TILES:
            count = max(1, min(at_once // kv_heads, units // CLUSTER))
            return cls(warp_rows, groups, count * CLUSTER, row_blocks, clustered=True)
        splits = max(1, min(multiprocessors // (kv_heads * row_blocks), units))
        return cls(warp_rows, groups, splits, row_blocks)

    def instance(self, dtype: str, head_dim: int) -> Instance:
        """The kernel."""
        kind = C_TYPES[dtype]
        if self.clustered:
            name = f"decode_attention_cluster<{kind}, {head_dim}>"
            return Instance("decode_attention", name, "sm_90a")
        arguments = f"{kind}, {head_dim}, {self.warp_rows // 8}, {self.groups}"
        return Instance("decode_attention", f"decode_attention<{arguments}>")

    def shared(self, head_dim: int) -> int:
        """Bytes of shared memory that a block asks for."""
        rows = self.warp_rows * self.groups
        partial = WARPS * self.warp_rows * (-(-head_dim // 32) * 32 + 2)
        turned = -(-rows // 16) * 16 * head_dim // 2
        return 4 * (partial + turned + 2 * rows)


class DecodeAttention:
    """Attention of up to 16 queries over the live tiles of a step.

    Launches share scratch, so they must follow one another on one stream.
    """

    def __init__(self, compiler: Compiler, multiprocessors: int) -> None:
        self._compiler = compiler
        self._multiprocessors = multiprocessors
        self._clusters = cp.cuda.Device().compute_capability == "90"
        # With splits, every block has a part of each output of its rows. All bits set: not written.
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
        num_queries, num_heads, head_dim = q.shape
        kv_heads = rotated.shape[1]
        group = num_heads // kv_heads
        shape = Shape.of(
            num_queries * group, kv_heads, step.max_tiles, self._multiprocessors, self._clusters
        )
        out = cp.empty_like(q)
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
        kernel = self._compiler(shape.instance(str(q.dtype), head_dim))
        grid = (shape.splits, kv_heads, shape.row_blocks)
        kernel(grid, (32 * WARPS,), args, shape.shared(head_dim), overlap=True)
        return out


def instances() -> tuple[Instance, ...]:
    """Every instance that can be launched."""
    shapes = [Shape(*pair, 1, 1) for pair in ROWS_OF_A_WARP]
    shapes.append(Shape(8, 1, CLUSTER, 1, clustered=True))
    return tuple(
        shape.instance(dtype, head_dim)
        for dtype in DTYPES
        for head_dim in HEAD_DIMS
        for shape in shapes
    )
