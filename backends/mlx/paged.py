"""Attention of a step through the shaders, which read the pools in place.

Keys in the pools are un-rotated. Decode turns them while it reads; prefill, which reads a key many
times, has them turned once a layer, the live tiles one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from omnitide.backend import Array
from omnitide.backends.mlx.launch import Launch
from omnitide.backends.mlx.shaders import DTYPES, HEAD_DIMS, MetalKernel, read_shaders
from omnitide.pages import SUBBLOCK_SIZE
from omnitide.step import Step

DECODE_ROWS = 16
"""Up to so many rows (queries times query heads of a KV head) decode is taken. One threadgroup
holds the sums of all rows in registers; more would not fit, and a second would read all again."""

PREFILL_ROWS = 32
"""Rows of a prefill threadgroup."""

THREADS = 128
"""Of an attention threadgroup: four simdgroups."""

LEAST_TILES = 4
"""Tiles of a part at least: one for each simdgroup."""

THREADGROUPS = 48
"""Threadgroups that a launch is cut into on a GPU of 8 to 20 cores: as many as an M1 holds at once,
and enough that what they ask memory for keeps it busy (computed in docs/performance.md)."""

LARGER = {"s": 2, "d": 4}
"""Times as many on a Max and an Ultra, by the last letter of Metal's architecture."""


@dataclass(frozen=True, slots=True)
class TileArrays:
    """A step as the shaders read it, shared by all layers.

    Attributes:
        num_tiles, num_queries: Counts.
        subblocks, masks, least, greatest: Shape (num_tiles,), as `omnitide.step.Tiles`.
        orders: Int32, shape (num_tiles, SUBBLOCK_SIZE).
        cells: Cell of each row, -1 where dead, int32, shape (num_tiles, SUBBLOCK_SIZE).
        cosines, sines: Float32, shape (num_cells, head_dim / 2).
        query_orders: Int32, shape (num_queries,).
        query_cos, query_sin: Float32, shape (num_queries, head_dim / 2).
        written: What stands for "all is written" where MLX itself orders writes and reads.
    """

    num_tiles: int
    num_queries: int
    subblocks: Array
    masks: Array
    least: Array
    greatest: Array
    orders: Array
    cells: Array
    cosines: Array
    sines: Array
    query_orders: Array
    query_cos: Array
    query_sin: Array
    written: Array

    @classmethod
    def of(cls, step: Step) -> TileArrays:
        """Put a step on the device."""
        tiles = step.tiles
        return cls(
            num_tiles=len(tiles.subblocks),
            num_queries=step.num_queries,
            subblocks=mx.array(tiles.subblocks),
            masks=mx.array(tiles.masks),
            least=mx.array(tiles.least),
            greatest=mx.array(tiles.greatest),
            orders=mx.array(tiles.orders),
            cells=mx.array(tiles.cells),
            cosines=mx.array(np.asarray(step.cos, np.float32)),
            sines=mx.array(np.asarray(step.sin, np.float32)),
            query_orders=mx.array(step.query_orders),
            query_cos=mx.array(np.asarray(step.query_cos, np.float32)),
            query_sin=mx.array(np.asarray(step.query_sin, np.float32)),
            written=mx.zeros(1, mx.int32),
        )


class PagedAttention:
    """Attention over the tiles of a step, and rows gathered from the pools."""

    def __init__(self, launch: Launch, architecture: str) -> None:
        """`architecture` is Metal's name of the GPU, empty where there is none."""
        self._launch = launch
        self._threadgroups = THREADGROUPS * LARGER.get(architecture[-1:], 1)
        self._shaders = read_shaders()
        self._instances: dict[tuple[Any, ...], MetalKernel] = {}

    def __call__(
        self,
        q: Array,
        keys: Array,
        values: Array,
        step: TileArrays,
        scale: float,
        written: Array | None = None,
    ) -> tuple[Array, Array]:
        """Attention of q (num_queries, num_heads, head_dim), not yet turned, at least one query.

        Args:
            q: Queries.
            keys, values: One layer's pools.
            step: At least one tile.
            scale: Of the scores.
            written: Something computed after the last write to the pools that MLX can't see.

        Returns:
            The output, shaped as q, and an array that is computed once the pools have been read.
        """
        count, num_heads, head_dim = q.shape
        kv_heads = keys.shape[1]
        group = num_heads // kv_heads
        rows = count * group
        common = {
            "values": values,
            "subblocks": step.subblocks,
            "masks": step.masks,
            "orders": step.orders,
            "query_orders": step.query_orders,
            "query_cos": step.query_cos,
            "query_sin": step.query_sin,
            "num_tiles": step.num_tiles,
            "scale": float(scale),
        }
        after = step.written if written is None else written
        template = {"T": q.dtype, "D": head_dim, "GROUP": group}
        if rows <= DECODE_ROWS:
            kernel = self._instance("decode_attention", **template, ROWS=rows)
            parts = self._parts(step.num_tiles, kv_heads)
            grid = (THREADS * parts, kv_heads, 1)
            own = {
                "keys": keys,
                "cells": step.cells,
                "cosines": step.cosines,
                "sines": step.sines,
                "written": after,
            }
        else:
            blocks = -(-rows // PREFILL_ROWS)
            kernel = self._instance("prefill_attention", **template)
            parts = self._parts(step.num_tiles, kv_heads * blocks)
            grid = (THREADS * kv_heads, blocks, parts)
            turned = self.turned(keys, step, after)
            own = {"turned": turned, "least": step.least, "greatest": step.greatest}
        sums, ranges = self._launch(
            kernel,
            {"q": q, **common, **own},
            {
                "parts": ((parts, kv_heads, rows, head_dim), mx.float32),
                "part_ranges": ((parts, kv_heads, rows, 2), mx.float32),
            },
            grid,
            (THREADS, 1, 1),
        )
        (out,) = self._launch(
            self._instance("decode_reduce", **template),
            {"parts": sums, "part_ranges": ranges},
            {"out": (tuple(q.shape), q.dtype)},
            (head_dim // 4, rows, kv_heads),
            (head_dim // 4, 8, 1),
        )
        return out, ranges

    def attention_bytes(
        self,
        num_cells: int,
        num_queries: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        itemsize: int,
        *,
        packed: bool,
    ) -> int:
        """Bytes that a step's arrays and a call hold at most, if the cells fill their subblocks.

        Packed cells are unpacked in float32, then put into pages: elements, their products with
        scales and factors, and the pages of the keys and of the values.
        """
        tiles = -(-num_cells // SUBBLOCK_SIZE)
        cells = tiles * SUBBLOCK_SIZE
        values = cells * num_kv_heads * head_dim
        step = 4 * num_cells * head_dim + 2 * 4 * cells
        dense = (2 * itemsize + 2 * 4 + itemsize) * values if packed else 0
        rows = num_queries * (num_heads // num_kv_heads)
        decodes = rows <= DECODE_ROWS
        blocks = 1 if decodes else -(-rows // PREFILL_ROWS)
        parts = self._parts(tiles, num_kv_heads * blocks)
        turned = 0 if decodes else values * itemsize
        return step + dense + turned + 4 * parts * num_kv_heads * rows * (head_dim + 2)

    def turned(self, keys: Array, step: TileArrays, written: Array) -> Array:
        """Turned keys of the tiles, shape (num_tiles, kv_heads, SUBBLOCK_SIZE, head_dim)."""
        _, kv_heads, _, head_dim = keys.shape
        (turned,) = self._launch(
            self._instance("rotate", T=keys.dtype, D=head_dim),
            {
                "keys": keys,
                "subblocks": step.subblocks,
                "masks": step.masks,
                "cells": step.cells,
                "cosines": step.cosines,
                "sines": step.sines,
                "written": written,
            },
            {"turned": ((step.num_tiles, kv_heads, SUBBLOCK_SIZE, head_dim), keys.dtype)},
            (head_dim // 8, SUBBLOCK_SIZE * kv_heads, step.num_tiles),
            (head_dim // 8, SUBBLOCK_SIZE, 1),
        )
        return turned

    def gathered(self, keys: Array, values: Array, slots: Array, written: Array) -> Array:
        """Rows of one layer's pools, shape (2, num_rows, kv_heads, head_dim): keys, values."""
        _, kv_heads, _, head_dim = keys.shape
        count = slots.shape[0]
        (moved,) = self._launch(
            self._instance("gather_rows", T=keys.dtype, D=head_dim),
            {"keys": keys, "values": values, "slots": slots, "written": written},
            {"moved": ((2, count, kv_heads, head_dim), keys.dtype)},
            (head_dim // 4, kv_heads, count),
            (head_dim // 4, 1, 8),
        )
        return moved

    def _parts(self, num_tiles: int, threadgroups: int) -> int:
        """Into how many parts the tiles are cut, if a part makes so many threadgroups."""
        wanted = -(-self._threadgroups // threadgroups)
        return max(min(wanted, num_tiles // LEAST_TILES), 1)

    def _instance(self, name: str, **template: Any) -> MetalKernel:
        key = (name, *template.values())
        if key not in self._instances:
            self._instances[key] = self._shaders[name].instance(**template)
        return self._instances[key]


def has_instances(array: Array) -> bool:
    """Whether the shaders have instances for an array's dtype and last axis."""
    dtype = str(array.dtype).rpartition(".")[2]
    return dtype in DTYPES and array.shape[-1] in HEAD_DIMS
