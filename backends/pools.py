"""The pools of the paged cache, and the checks of what is written to and read from them.

Invariant: every array has the shape `(num_pages or more, num_kv_heads, PAGE_SIZE, head_dim)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array, Pools
from omnitide.backends.checks import check_ints, check_shape
from omnitide.pages import PAGE_SIZE, Slots
from omnitide.step import Step


@dataclass(slots=True)
class PagedPools:
    """K and V of every layer, arrays of a backend's own library.

    One array a layer for K and one for V, never one for all: a backend that replaces arrays then
    holds one layer twice at most, and an accelerator tracks each layer's writes on their own.

    Attributes:
        keys: Un-rotated keys, one array `[page][kv_head][PAGE_SIZE][head_dim]` a layer.
        values: Values, likewise.
    """

    keys: list[Array]
    values: list[Array]

    @property
    def num_pages(self) -> int:
        """Pages that every array has (if growing failed half way, some have more)."""
        return min(int(array.shape[0]) for array in (*self.keys, *self.values))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in (*self.keys, *self.values))


def pool_shape(
    num_layers: int, num_kv_heads: int, head_dim: int, num_pages: int
) -> tuple[int, int, int, int]:
    """Shape of one array of new pools.

    Raises:
        ValueError: A size is below 1, or head_dim is odd.
    """
    sizes = (num_layers, num_kv_heads, head_dim, num_pages)
    if min(sizes) < 1 or head_dim % 2:
        raise ValueError(
            "[new_pools] layers, KV heads, head_dim and pages must be at least 1 and head_dim "
            f"even, got {sizes}"
        )
    return num_pages, num_kv_heads, PAGE_SIZE, head_dim


def check_kv_bits(kv_bits: int | None, known: frozenset[int]) -> None:
    """Bits of packed keys and values must be known to the backend.

    Raises:
        ValueError: They are not.
    """
    if kv_bits is not None and kv_bits not in known:
        words = ", ".join(map(str, sorted(known))) or "no others"
        raise ValueError(f"[new_pools] kv_bits must be None or {words}, got {kv_bits}")


def grow_each(pools: Pools, num_pages: int, grown: Callable[[Array, int], Array]) -> None:
    """Replace each array that is too small by `grown(array, more_pages)`. Changes `pools`.

    One array after the other, so that at most one is held twice. If one fails for want of memory,
    the pools are as usable as before.

    Raises:
        ValueError: The pools would shrink.
    """
    if num_pages < pools.num_pages:
        raise ValueError(
            f"[grow_pools] num_pages must be at least the present {pools.num_pages}, "
            f"got {num_pages}"
        )
    for arrays in (pools.keys, pools.values):
        for layer in range(len(arrays)):
            more = num_pages - int(arrays[layer].shape[0])
            if more > 0:
                arrays[layer] = grown(arrays[layer], more)


def check_append(pools: Pools, layer: int, step: Step, k: Array, v: Array) -> None:
    """k and v must fit the pools and `step.query_slots`, which must be distinct."""
    check_rows(pools, layer, step, k, v)
    check_query_slots(pools, step)


def check_rows(pools: Pools, layer: int, step: Step, k: Array, v: Array) -> None:
    """The part of `check_append` that differs from layer to layer."""
    _check_layer("append", pools, layer)
    _, num_kv_heads, _, head_dim = pools.keys[layer].shape
    check_shape("append", "k", k, step.num_queries, num_kv_heads, head_dim)
    check_shape("append", "v", v, step.num_queries, num_kv_heads, head_dim)


def check_query_slots(pools: Pools, step: Step) -> None:
    """The part of `check_append` that is the same for all layers of a pass."""
    slots = check_ints("append", "query_slots", step.query_slots, pools.num_pages * PAGE_SIZE)
    check_shape("append", "query_slots", slots, step.num_queries)
    _check_distinct("append", "query_slots", slots)


def check_attention(q: Array, pools: Pools, layer: int, step: Step, op: str = "attention") -> None:
    """q must fit the pools and the step, and the step's arrays must fit each other."""
    check_queries(q, pools, layer, step, op)
    check_cells(pools, step, op)


def check_queries(q: Array, pools: Pools, layer: int, step: Step, op: str = "attention") -> None:
    """The part of `check_attention` that differs from layer to layer."""
    _check_layer(op, pools, layer)
    _, num_kv_heads, _, head_dim = pools.keys[layer].shape
    check_shape(op, "q", q, step.num_queries, None, head_dim)
    if q.shape[1] < 1 or q.shape[1] % num_kv_heads:
        raise ValueError(
            f"[{op}] query heads must be a multiple of {num_kv_heads} KV heads, got {q.shape[1]}"
        )


def check_cells(pools: Pools, step: Step, op: str = "attention") -> None:
    """The part of `check_attention` that is the same for all layers of a pass."""
    half = pools.keys[0].shape[3] // 2
    check_ints(op, "slots", step.slots, pools.num_pages * PAGE_SIZE)
    check_shape(op, "orders", step.orders, step.num_cells)
    for name in ("cos", "sin"):
        check_shape(op, name, getattr(step, name), step.num_cells, half)
    for name in ("query_cos", "query_sin"):
        check_shape(op, name, getattr(step, name), step.num_queries, half)


def check_migrate(
    pools: Pools, source: Slots, destination: Slots
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Source and destination must be slots, equally many, the destinations distinct."""
    limit = pools.num_pages * PAGE_SIZE
    sources = check_ints("migrate", "source", source, limit)
    destinations = check_ints("migrate", "destination", destination, limit)
    check_shape("migrate", "destination", destinations, len(sources))
    _check_distinct("migrate", "destination", destinations)
    return sources, destinations


def _check_layer(op: str, pools: Pools, layer: int) -> None:
    if not 0 <= layer < len(pools.keys):
        raise ValueError(f"[{op}] layer must lie in [0, {len(pools.keys)}), got {layer}")


def _check_distinct(op: str, name: str, slots: NDArray[np.int64]) -> None:
    distinct = len(np.unique(slots))
    if distinct != len(slots):
        raise ValueError(f"[{op}] {name} must be distinct, got {distinct} of {len(slots)}")
