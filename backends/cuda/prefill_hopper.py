"""Attention of many new tokens on Hopper, through warpgroup matrix products (sm_90a).

`HopperPrefill.takes` says which shapes it is for; the others go to the kernel of all chips.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from omnitide.backend import Array
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.backends.cuda.instances import C_TYPES, Instance
from omnitide.backends.cuda.tensor_map import TensorMaps
from omnitide.pages import SUBBLOCK_SIZE

HEAD_DIMS = (64, 128)
DTYPES = ("float16", "bfloat16")

_TILE_ROWS = 128
_BLOCK_CELLS = 128
_THREADS = 384
_STAGES = {64: 4, 128: 2}
_MOST_SHARED = 227 * 1024
_MOST_ARRIVALS = 1 << 18
_LEAST_SHARE = 2
"""Fewest blocks of cells that are worth a multiprocessor of their own."""


def _instance(dtype: str, head_dim: int) -> Instance:
    name = f"prefill_attention_hopper<{C_TYPES[dtype]}, {head_dim}>"
    return Instance("prefill_attention_hopper", name, arch="sm_90a")


def instances() -> tuple[Instance, ...]:
    """All that can be launched."""
    return tuple(_instance(dtype, head_dim) for dtype, head_dim in product(DTYPES, HEAD_DIMS))


class HopperPrefill:
    """Prefill attention on one Hopper GPU. One stream at a time: the workspace is shared."""

    def __init__(self, compiler: Compiler, multiprocessors: int) -> None:
        self._compiler = compiler
        self._blocks = multiprocessors
        self._maps = TensorMaps(SUBBLOCK_SIZE, 64)
        part = _TILE_ROWS * (max(HEAD_DIMS) + 8)
        self._partials = cp.empty(multiprocessors * part, np.float32)
        self._arrivals = cp.zeros(_MOST_ARRIVALS, np.int32)

    def takes(self, q: Array, rotated: Array, step: DeviceStep) -> bool:
        """Whether dtype, shapes and the room for tiles fit."""
        num_queries, num_heads, head_dim = (int(size) for size in q.shape)
        sizes = (num_queries, num_heads, int(rotated.shape[1]), head_dim)
        return str(q.dtype) in DTYPES and self.fits(*sizes, step.max_tiles)

    def fits(
        self, num_queries: int, num_heads: int, num_kv_heads: int, head_dim: int, max_tiles: int
    ) -> bool:
        """Whether it takes such shapes, in 16 bits."""
        if head_dim not in HEAD_DIMS:
            return False
        arrivals = 2 * num_kv_heads * _query_tiles(num_queries, num_heads, num_kv_heads)
        shared = _shared_bytes(num_queries, num_heads, num_kv_heads, head_dim, max_tiles)
        return arrivals <= _MOST_ARRIVALS and shared <= _MOST_SHARED

    def __call__(
        self, q: Array, rotated: Array, values: Array, step: DeviceStep, scale: float
    ) -> Array:
        """Attention of q (num_queries, num_heads, head_dim), un-rotated; same shape out.

        Args:
            rotated: Keys turned by their cells' angles, [page][kv_head][64][head_dim].
            values: Same shape.
            step: What there is to see.
            scale: Factor of the scores, positive.
        """
        num_queries, num_heads, head_dim = (int(size) for size in q.shape)
        num_kv_heads = int(rotated.shape[1])
        out = cp.empty_like(q)
        kernel = self._compiler(_instance(str(q.dtype), head_dim))
        args = (
            q,
            self._maps(rotated),
            self._maps(values),
            values,
            out,
            step.num_tiles,
            step.subblocks,
            step.masks,
            step.least,
            step.greatest,
            step.orders,
            step.query_orders,
            step.query_cos,
            step.query_sin,
            self._partials,
            self._arrivals,
            np.int32(num_queries),
            np.int32(num_heads),
            np.int32(num_kv_heads),
            np.int32(step.max_tiles),
            np.int32(_LEAST_SHARE),
            np.float32(scale * math.log2(math.e)),
        )
        shared = _shared_bytes(num_queries, num_heads, num_kv_heads, head_dim, step.max_tiles)
        kernel((self._blocks,), (_THREADS,), args, shared=shared)
        return out


def _query_tiles(num_queries: int, num_heads: int, num_kv_heads: int) -> int:
    return -(-num_queries * (num_heads // num_kv_heads) // _TILE_ROWS)


def _shared_bytes(
    num_queries: int, num_heads: int, num_kv_heads: int, head_dim: int, max_tiles: int
) -> int:
    """Layout and plan of the kernel."""
    stages = _STAGES[head_dim]
    tiles = _query_tiles(num_queries, num_heads, num_kv_heads)
    queries = 2 * _TILE_ROWS * head_dim * 2
    blocks = 2 * stages * _BLOCK_CELLS * head_dim * 2
    rest = stages * _BLOCK_CELLS * 4 + (stages + 1) * 4 * 8
    plan = 4 * (5 * tiles + 1) + 10 * max_tiles
    return queries + blocks + rest + plan
