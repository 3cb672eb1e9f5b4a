"""Writing into the pools by shaders, which MLX knows nothing of. Off unless asked for.

MLX's own scatter writes in place only while nothing else holds a pool, and copies all of it
otherwise. A shader that casts const away always writes in place; but MLX can't order what it can't
see. So each layer has a last operation, an array that is computed once the layer has been read or
written; every next one takes it as an input, and its own output becomes the last.

Invariant: the arrays of `WriteThroughPools` are read through `keys` and `values`, which wait for
all writes, or by an operation that takes the layer's `last` and replaces it.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np

from omnitide.backend import Array, Pools
from omnitide.backends.mlx.launch import Launch
from omnitide.backends.mlx.paged import PagedAttention
from omnitide.backends.mlx.shaders import MetalKernel, read_shaders
from omnitide.backends.pools import PagedPools

ROUNDS = 50
"""Times that the self-test writes the same rows and reads them."""


class WriteThroughPools:
    """Pools that shaders write to. `Pools`, beside what keeps reads and writes in order.

    Attributes:
        raw: The arrays as they are, for shapes and for shaders.
        last: Of each layer, what is computed once its last read or write is done; None: all is.
    """

    def __init__(self, keys: list[Array], values: list[Array]) -> None:
        self.raw = PagedPools(keys, values)
        self.last: list[Array | None] = [None] * len(keys)

    @property
    def keys(self) -> list[Array]:
        """Keys, once all writes are done."""
        self.settle()
        return self.raw.keys

    @property
    def values(self) -> list[Array]:
        """Values, once all writes are done."""
        self.settle()
        return self.raw.values

    @property
    def num_pages(self) -> int:
        """Pages of each array."""
        return self.raw.num_pages

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.raw.nbytes

    def settle(self) -> None:
        """Wait for all reads and writes."""
        pending = [last for last in self.last if last is not None]
        if pending:
            mx.eval(pending)
            self.last = [None] * len(self.last)

    def after(self, layer: int) -> Array:
        """What the next operation on a layer has to take as an input."""
        last = self.last[layer]
        return mx.zeros(1, mx.int32) if last is None else last


class WriteThrough:
    """Appends and migrations by shaders. Arguments have been checked."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._shaders = read_shaders()
        self._instances: dict[tuple[str, Any, int], MetalKernel] = {}

    def append(
        self, pools: WriteThroughPools, layer: int, slots: Array, k: Array, v: Array
    ) -> None:
        """Write k, v (num_tokens, num_kv_heads, head_dim) to distinct slots. Changes `pools`."""
        keys, values = pools.raw.keys[layer], pools.raw.values[layer]
        inputs = {"k": k.astype(keys.dtype), "v": v.astype(keys.dtype), "read": pools.after(layer)}
        pools.last[layer] = self._write("append", inputs, slots, keys, values)

    def scatter(self, pools: WriteThroughPools, layer: int, slots: Array, moved: Array) -> None:
        """Write what `PagedAttention.gathered` gave to distinct slots. Changes `pools`."""
        keys, values = pools.raw.keys[layer], pools.raw.values[layer]
        pools.last[layer] = self._write("scatter_rows", {"moved": moved}, slots, keys, values)

    def _write(
        self, name: str, inputs: dict[str, Array], slots: Array, keys: Array, values: Array
    ) -> Array:
        _, kv_heads, _, head_dim = keys.shape
        key = (name, keys.dtype, head_dim)
        if key not in self._instances:
            self._instances[key] = self._shaders[name].instance(T=keys.dtype, D=head_dim)
        (written,) = self._launch(
            self._instances[key],
            {**inputs, "slots": slots, "keys": keys, "values": values},
            {"written": ((1,), mx.int32)},
            (head_dim // 4, kv_heads, slots.shape[0]),
            (head_dim // 4, 1, 8),
        )
        return written


def raw(pools: Pools) -> Pools:
    """The arrays of pools as they are, whether or not writes to them are done."""
    return pools.raw if isinstance(pools, WriteThroughPools) else pools


def fault_of(launch: Launch, attention: PagedAttention) -> str | None:
    """Write and read the same rows many times in one go; what went wrong, None if nothing did.

    Both orders are tried: a read has to see the write before it, and not the one after it. Call it
    on the thread that owns MLX.
    """
    shape, count = (8, 2, 64, 64), 40
    pools = WriteThroughPools([mx.zeros(shape)], [mx.zeros(shape)])
    mx.eval(pools.raw.keys, pools.raw.values)
    write = WriteThrough(launch)
    order = np.random.default_rng(0).permutation(shape[0] * shape[2]).astype(np.int32)
    slots, others = mx.array(order[:count]), mx.array(order[count : 2 * count])
    seen = []
    for number in range(1, ROUNDS + 1):
        new = mx.full((count, 2, 64), float(number))
        write.append(pools, 0, slots, new, -new)
        for source, destination in ((slots, others), (others, slots)):
            moved = attention.gathered(
                pools.raw.keys[0], pools.raw.values[0], source, pools.after(0)
            )
            write.scatter(pools, 0, destination, moved)
            seen.append(moved)
    mx.eval(seen)
    for at, moved in enumerate(seen):
        number = at // 2 + 1
        keys, values = np.array(moved)
        if (keys != number).any() or (values != -number).any():
            return (
                f"of {2 * ROUNDS} reads, each after a write, number {at + 1} found "
                f"{float(keys.reshape(-1)[0]):g} in place of {number}"
            )
    page, row = np.divmod(order, shape[2])
    final = np.array(pools.keys[0])[page, :, row]
    if (final[: 2 * count] != ROUNDS).any() or final[2 * count :].any():
        return "rows that were not to be written have changed"
    return None
