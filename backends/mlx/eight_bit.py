"""8-bit pools in MLX. Nothing here waits for the device."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array
from omnitide.backends.eight_bit import LEAST, LEAST_FACTOR, MOST, EightBitPools, dense_pages
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


def dense(
    pools: EightBitPools, layer: int, places: tuple[Array, Array], dtype: Array
) -> tuple[Array, Array]:
    """Keys and values of the cells at `places` as floats, cell i in slot i of pages of their own.

    Not computed yet: MLX does it when attention is, in one layer's memory.
    """
    page, row = places
    keys, values = (
        arrays[layer][page, :, row].astype(mx.float32) * scales[layer][page, :, row][..., None]
        for arrays, scales in (
            (pools.keys, pools.key_scales),
            (pools.values, pools.value_scales),
        )
    )
    factors = pools.factors[layer]
    if factors is not None:
        keys = keys * factors
    return _paged(keys.astype(dtype)), _paged(values.astype(dtype))


def places(slots: NDArray[np.int64]) -> tuple[Array, Array]:
    """Page and row of slots, int32."""
    page, row = np.divmod(slots, PAGE_SIZE)
    return mx.array(page.astype(np.int32)), mx.array(row.astype(np.int32))


def moved(pools: EightBitPools, sources: tuple[Array, Array]) -> list[list[Array]]:
    """Rows at `sources` of everything that has pages, as `EightBitPools.paged` lists it."""
    page, row = sources
    return [[array[page, :, row] for array in arrays] for arrays in pools.paged]


def _paged(rows: Array) -> Array:
    """(num_cells, kv_head, head_dim) in pages; rows beyond the cells are 0."""
    pages = dense_pages(rows.shape[0])
    padded = mx.pad(rows, [(0, pages * PAGE_SIZE - rows.shape[0]), (0, 0), (0, 0)])
    paged = padded.reshape(pages, PAGE_SIZE, *rows.shape[1:])
    return mx.contiguous(paged.transpose(0, 2, 1, 3))


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
