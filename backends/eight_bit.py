"""Pools of 8-bit keys and values; attention reads a layer of them as floats.

A row is never written again once it is there, so nothing drifts: rows are moved as they are. Values
have a scale a token and head. Keys differ in size from channel to channel, always in the same
ones because they are not turned. So each channel has a factor as well, taken from the first rows
that a layer is given and the same ever after; the scale a token keeps later rows from being cut
off, whatever the factors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from omnitide.backend import Array
from omnitide.backends.pools import PagedPools
from omnitide.pages import PAGE_SIZE
from omnitide.step import Step

BITS = 8
MOST = 127
"""Greatest magnitude of an element."""

LEAST_FACTOR = 1 / 64
"""Least factor of a channel, as a share of its head's greatest: one that the first rows left at 0
may have values later."""

LEAST = 1e-20
"""Least factor of all: no channel is divided by 0."""


@dataclass(slots=True)
class EightBitPools(PagedPools):
    """Keys and values as int8, `[page][kv_head][PAGE_SIZE][head_dim]` a layer, and their scales.

    Attributes:
        key_scales, value_scales: Float32, `[page][kv_head][PAGE_SIZE]` a layer.
        factors: Of the keys' channels, float32, (kv_head, head_dim) a layer; None before the
            layer's first rows.
    """

    key_scales: list[Array]
    value_scales: list[Array]
    factors: list[Array | None]

    @property
    def paged(self) -> list[list[Array]]:
        """Everything that has pages, layer by layer in each list."""
        return [self.keys, self.values, self.key_scales, self.value_scales]

    @property
    def num_pages(self) -> int:
        """Pages that every array has."""
        return min(int(array.shape[0]) for arrays in self.paged for array in arrays)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        factors = [array for array in self.factors if array is not None]
        arrays = [array for arrays in self.paged for array in arrays]
        return sum(int(array.nbytes) for array in (*arrays, *factors))


def grow_paged(pools: EightBitPools, num_pages: int, grown: Callable[[Array, int], Array]) -> None:
    """As `pools.grow_each`, over scales too. Changes `pools`.

    Raises:
        ValueError: The pools would shrink.
    """
    if num_pages < pools.num_pages:
        raise ValueError(
            f"[grow_pools] num_pages must be at least the present {pools.num_pages}, "
            f"got {num_pages}"
        )
    for arrays in pools.paged:
        for layer, array in enumerate(arrays):
            more = num_pages - int(array.shape[0])
            if more > 0:
                arrays[layer] = grown(array, more)


def compact(step: Step) -> Step:
    """The same cells and queries over a dense copy of the cells: cell i in slot i."""
    return replace(step, slots=np.arange(step.num_cells, dtype=np.int32))


def dense_pages(num_cells: int) -> int:
    """Pages of a dense copy; at least one."""
    return max(-(-num_cells // PAGE_SIZE), 1)
