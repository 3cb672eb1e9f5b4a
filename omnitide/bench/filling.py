"""Random K and V for cells that no model has computed."""

from __future__ import annotations

from collections.abc import Iterable

from omnitide.backend import Backend, Pools
from omnitide.step import Step


def fill(
    backend: Backend, pools: Pools, steps: Iterable[tuple[int, Step]], most: int, seed: int
) -> None:
    """Append the new tokens of steps to every layer, as passes would. Changes `pools`.

    Random values, for a device may be faster with zeros. The layers get equal values.

    Args:
        backend: Of the pools.
        pools: Of any layers.
        steps: Passes with where they start.
        most: Most new tokens of a step.
        seed: Of the values.
    """
    _, num_kv_heads, _, head_dim = pools.keys[0].shape
    shape = (most, num_kv_heads, head_dim)
    k, v = (backend.random_normal(shape, 1.0, seed + i) for i in (0, 1))
    for _, step in steps:
        count = step.num_queries
        for layer in range(len(pools.keys)):
            backend.append(pools, layer, step, k[:count], v[:count])
    backend.synchronize(*pools.keys, *pools.values)
