"""8-bit pools in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.backends.eight_bit import LEAST, LEAST_FACTOR, MOST, EightBitPools
from omnitide.backends.reference.attention import gather
from omnitide.pages import PAGE_SIZE, Slots
from omnitide.step import Step

Floats = NDArray[Any]


def new_pools(num_layers: int, shape: tuple[int, int, int, int]) -> EightBitPools:
    """Pools with undefined rows."""

    def arrays(size: tuple[int, ...], dtype: Any) -> list[Floats]:
        return [np.empty(size, dtype) for _ in range(num_layers)]

    return EightBitPools(
        arrays(shape, np.int8),
        arrays(shape, np.int8),
        arrays(shape[:3], np.float32),
        arrays(shape[:3], np.float32),
        [None] * num_layers,
    )


def append(pools: EightBitPools, layer: int, step: Step, k: Floats, v: Floats) -> None:
    """Quantise rows and write them to `step.query_slots`. Changes `pools`."""
    if not len(k):
        return
    if pools.factors[layer] is None:
        pools.factors[layer] = _factors(k)
    page, row = np.divmod(step.query_slots, PAGE_SIZE)
    factors = pools.factors[layer]
    # What is infinite or no number makes its row NaN by way of the scale.
    with np.errstate(over="ignore", invalid="ignore"):
        for rows, arrays, scales in (
            (k / factors, pools.keys, pools.key_scales),
            (v, pools.values, pools.value_scales),
        ):
            elements, scale = _quantized(rows)
            arrays[layer][page, :, row] = elements
            scales[layer][page, :, row] = scale


def key_rows(pools: EightBitPools, layer: int, step: Step, dtype: np.dtype[Any]) -> Floats:
    """Keys of a step's cells as floats, (num_cells, kv_head, head_dim)."""
    rows = _unpacked(pools.keys[layer], pools.key_scales[layer], step.slots, dtype)
    factors = pools.factors[layer]
    if factors is not None:
        rows *= factors.astype(dtype)
    return rows


def value_rows(pools: EightBitPools, layer: int, step: Step, dtype: np.dtype[Any]) -> Floats:
    """Values of a step's cells as floats, (num_cells, kv_head, head_dim)."""
    return _unpacked(pools.values[layer], pools.value_scales[layer], step.slots, dtype)


def _unpacked(elements: Floats, scales: Floats, slots: Slots, dtype: np.dtype[Any]) -> Floats:
    rows: Floats = gather(elements, slots).astype(dtype)
    page, row = np.divmod(slots, PAGE_SIZE)
    rows *= scales[page, :, row, None].astype(dtype)
    return rows


def _factors(k: Floats) -> Floats:
    """Of the channels, from rows (num_rows, kv_head, head_dim)."""
    most = np.abs(k).max(axis=0).astype(np.float32)
    least = np.maximum(LEAST_FACTOR * most.max(axis=-1, keepdims=True), np.float32(LEAST))
    factors: Floats = np.maximum(most, least)
    return factors


def _quantized(rows: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Elements and scale of each row and head."""
    scale = (np.abs(rows).max(axis=-1) / MOST).astype(np.float32)
    elements = np.rint(rows / np.where(scale > 0, scale, 1)[..., None])
    elements[np.isnan(elements)] = 0  # which integer NaN becomes differs from chip to chip
    return np.clip(elements, -MOST, MOST).astype(np.int8), scale
