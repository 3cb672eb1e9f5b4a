"""How long attention takes on this machine: the shaders beside MLX's own on the same cells.

MLX's attention is given what it likes best: the live cells one behind the other, their keys already
turned. The plain path is what the backend does without shaders: it gathers and turns them first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from omnitide.backend import Array
from omnitide.backends.mlx.attention import (
    gather,
    paged_attention,
    step_arrays,
    turned_keys,
)
from omnitide.backends.mlx.launch import Launch
from omnitide.backends.mlx.paged import PagedAttention, TileArrays
from omnitide.backends.mlx.selftest import made_step
from omnitide.pages import PAGE_SIZE

HEADS, KV_HEADS, HEAD_DIM = 28, 4, 128
"""Of the 7B model."""

SHAPES = ((512, 1), (2_048, 1), (8_192, 1), (2_560, 512))
"""Live cells and queries."""

CALLS = 16
"""Calls computed in one go, so that what is between two of them counts little."""

REPEATS = 5


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of one layer's attention, the least of several runs.

    Attributes:
        cells, queries: The shape.
        shaders, plain, own: Our shaders, our plain operations, MLX's attention alone.
        gigabytes: Bytes of the live cells' keys and values, in 10^9.
    """

    cells: int
    queries: int
    shaders: float
    plain: float
    own: float
    gigabytes: float


def timings(launch: Launch, architecture: str) -> Iterator[Timing]:
    """Times of `SHAPES` in bfloat16, cells scattered over twice as many slots.

    Call it on the thread that owns MLX.
    """
    attention = PagedAttention(launch, architecture)
    for cells, queries in SHAPES:
        yield _timing(attention, cells, queries)


def _timing(attention: PagedAttention, cells: int, queries: int) -> Timing:
    pages = 2 * cells // PAGE_SIZE
    step = made_step(np.random.default_rng(5), cells, queries, True, HEAD_DIM, pages)
    pool = (pages, KV_HEADS, PAGE_SIZE, HEAD_DIM)
    keys, values = (mx.random.normal(pool, dtype=mx.bfloat16) for _ in range(2))
    dense = (1, KV_HEADS, cells, HEAD_DIM)
    k, v = (mx.random.normal(dense, dtype=mx.bfloat16) for _ in range(2))
    qs = [mx.random.normal((queries, HEADS, HEAD_DIM), dtype=mx.bfloat16) for _ in range(CALLS)]
    mx.eval(keys, values, k, v, qs)
    tiles, by_cell, scale = TileArrays.of(step), step_arrays(step), HEAD_DIM**-0.5

    def shaders(q: Array) -> Array:
        return attention(q, keys, values, tiles, scale)[0]

    def plain(q: Array) -> Array:
        turned = turned_keys(lambda part: gather(keys, by_cell, part), by_cell, fused=True)
        return paged_attention(q, turned, gather(values, by_cell), by_cell, scale, fused=True)

    def own(q: Array) -> Array:
        return mx.fast.scaled_dot_product_attention(
            q.transpose(1, 0, 2)[None], k, v, scale=scale, mask=by_cell.mask
        )

    return Timing(
        cells,
        queries,
        shaders=_milliseconds(shaders, qs),
        plain=_milliseconds(plain, qs),
        own=_milliseconds(own, qs),
        gigabytes=2 * cells * KV_HEADS * HEAD_DIM * keys.itemsize / 1e9,
    )


def appends_in_place() -> bool:
    """Whether MLX's own scatter leaves a pool where it is, once all that reads it is done.

    Call it on the thread that owns MLX.
    """
    pool = mx.zeros((4_096, KV_HEADS, PAGE_SIZE, HEAD_DIM), mx.bfloat16)
    new = mx.ones((8, KV_HEADS, HEAD_DIM), mx.bfloat16)
    at = mx.arange(8)
    mx.eval(pool, new, at)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for _ in range(3):
        pool[at, :, at] = new
        mx.eval(pool)
        mx.eval(pool[at, :, at].sum())
    return bool(mx.get_peak_memory() - before < pool.nbytes // 2)


def _milliseconds(function: Callable[[Array], Array], qs: list[Array]) -> float:
    best = float("inf")
    for _ in range(REPEATS + 1):  # the first one compiles
        start = time.perf_counter()
        mx.eval([function(q) for q in qs])
        best = min(best, time.perf_counter() - start)
    return best / len(qs) * 1e3
