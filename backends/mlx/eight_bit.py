"""8-bit pools in MLX. Nothing here waits for the device."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array
from omnitide.backends.eight_bit import LEAST, LEAST_FACTOR, MOST, EightBitPools, dense_pages
from omnitide.backends.mlx.attention import StepArrays, gather
from omnitide.pages import PAGE_SIZE


def new_pools(num_layers: int, shape: tuple[int, int, int, int]) -> EightBitPools:
    """Pools, allocated at once."""

    def arrays(size: tuple[int, ...], dtype: Array) -> list[Array]:
        return [mx.zeros(size, dtype) for _ in range(num_layers)]

    pools = EightBitPools(
        arrays(shape, mx.int8),
        arrays(shape, mx.int8),
        arrays(shape[:3], mx.float32),
        arrays(shape[:3], mx.float32),
        [None] * num_layers,
    )
    mx.eval(pools.paged)
    return pools


def append(
    pools: EightBitPools, layer: int, places: tuple[Array, Array], k: Array, v: Array
) -> None:
    """Quantise rows and write them to pages and rows `places`. Changes `pools`."""
    k, v = k.astype(mx.float32), v.astype(mx.float32)
    if pools.factors[layer] is None:
        pools.factors[layer] = _factors(k)
    page, row = places
    for rows, arrays, scales in (
        (k / pools.factors[layer], pools.keys, pools.key_scales),
        (v, pools.values, pools.value_scales),
    ):
        elements, scale = _quantized(rows)
        arrays[layer][page, :, row] = elements
        scales[layer][page, :, row] = scale


def key_rows(pools: EightBitPools, layer: int, at: StepArrays, part: slice, dtype: Array) -> Array:
    """Keys of a part of a step's cells as floats, (kv_head, num_cells, head_dim).

    Not computed yet, as all that is given back here.
    """
    rows = _unpacked(pools.keys[layer], pools.key_scales[layer], at, part)
    factors = pools.factors[layer]
    return (rows if factors is None else rows * factors[:, None]).astype(dtype)


def value_rows(pools: EightBitPools, layer: int, at: StepArrays, dtype: Array) -> Array:
    """Values of all of a step's cells, likewise."""
    rows = _unpacked(pools.values[layer], pools.value_scales[layer], at, slice(None))
    return rows.astype(dtype)


def paged(rows: Array) -> Array:
    """Rows (kv_head, num_cells, head_dim) in pages of their own; what is beyond the cells is 0."""
    kv_heads, count, head_dim = rows.shape
    pages = dense_pages(count)
    padded = mx.pad(rows, [(0, 0), (0, pages * PAGE_SIZE - count), (0, 0)])
    by_page = padded.reshape(kv_heads, pages, PAGE_SIZE, head_dim)
    return mx.contiguous(by_page.transpose(1, 0, 2, 3))


def places(slots: NDArray[np.int64]) -> tuple[Array, Array]:
    """Page and row of slots, int32."""
    page, row = np.divmod(slots, PAGE_SIZE)
    return mx.array(page.astype(np.int32)), mx.array(row.astype(np.int32))


def moved(pools: EightBitPools, sources: tuple[Array, Array]) -> list[list[Array]]:
    """Rows at `sources` of everything that has pages, as `EightBitPools.paged` lists it."""
    page, row = sources
    return [[array[page, :, row] for array in arrays] for arrays in pools.paged]


def _unpacked(elements: Array, scales: Array, at: StepArrays, part: slice) -> Array:
    return gather(elements, at, part).astype(mx.float32) * gather(scales, at, part)[..., None]


def _factors(k: Array) -> Array:
    """Of the channels, from rows (num_rows, kv_head, head_dim)."""
    most = mx.abs(k).max(axis=0)
    least = mx.maximum(LEAST_FACTOR * most.max(axis=-1, keepdims=True), LEAST)
    return mx.maximum(most, least)


def _quantized(rows: Array) -> tuple[Array, Array]:
    """Elements and scale of each row and head."""
    scale = mx.abs(rows).max(axis=-1) / MOST
    elements = mx.round(rows / mx.where(scale > 0, scale, 1.0)[..., None])
    return mx.clip(elements, -MOST, MOST).astype(mx.int8), scale
