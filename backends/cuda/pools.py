"""The pools on the GPU: beside the keys a copy that is turned by the cells' rotary angles.

Attention reads the turned copy, so that no kernel turns keys again and again. It costs half as much
memory again, and is made anew from the un-rotated keys whenever angles change, so nothing drifts.

Invariant: if `rotations[layer]` is not None, the turned keys of all live cells of that layer are
those of the angles it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array
from omnitide.backends.cuda.arrays import copy_into, cp, host_pages
from omnitide.backends.cuda.cache_writes import CacheWrites
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.backends.cuda.memory import enough_memory
from omnitide.backends.cuda.passes import Recorder
from omnitide.backends.pools import PagedPools, check_cells, grow_each
from omnitide.step import Step


@dataclass(slots=True)
class CudaPools(PagedPools):
    """K and V of every layer, turned keys, and what was made for these very arrays.

    Attributes:
        rotated: Turned keys, one array a layer, shaped as `keys`.
        rotations: `Step.rotation` of each layer's turned keys; None: not known to be right.
        recorder: Passes recorded over these very arrays; a new one when an array is replaced.
    """

    rotated: list[Array] = field(default_factory=list)
    rotations: list[int | None] = field(default_factory=list)
    recorder: Recorder = field(default_factory=Recorder)

    @property
    def num_pages(self) -> int:
        """Pages that every array has."""
        return min(int(array.shape[0]) for array in (*self.keys, *self.values, *self.rotated))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in (*self.keys, *self.values, *self.rotated))

    def forget_rotations(self) -> None:
        """Let every layer's keys be turned anew before they are read."""
        self.rotations = [None] * len(self.rotations)


class TurnedStore:
    """Operations on `CudaPools`; see `paged.Store`."""

    def __init__(self, writes: CacheWrites) -> None:
        self._writes = writes

    def new(
        self, num_layers: int, shape: tuple[int, int, int, int], dtype: np.dtype[Any]
    ) -> CudaPools:
        """Pools with undefined contents.

        Raises:
            BackendError: There is not enough memory; nothing is kept.
        """
        needed = 3 * num_layers * int(np.prod(shape)) * dtype.itemsize
        with enough_memory("new_pools", needed):
            keys, values, rotated = (
                [cp.empty(shape, dtype) for _ in range(num_layers)] for _ in range(3)
            )
        return CudaPools(keys, values, rotated, [None] * num_layers)

    def grow(self, pools: CudaPools, num_pages: int) -> None:
        """Make all arrays larger.

        Raises:
            BackendError: There is not enough memory; the pools are as usable as before.
        """
        page = pools.keys[0].nbytes // pools.keys[0].shape[0]
        with enough_memory("grow_pools", num_pages * page):
            grow_each(pools, num_pages, grown)
            for layer, array in enumerate(pools.rotated):
                if array.shape[0] < num_pages:
                    pools.rotated[layer] = grown(array, num_pages - array.shape[0])

    def append(
        self, pools: CudaPools, layer: int, step: Step, at: DeviceStep, k: Array, v: Array
    ) -> None:
        """Write k, k turned, and v."""
        if step.rotation is None:
            pools.rotations[layer] = None
        if step.num_queries:
            self._writes.append(
                pools.keys[layer], pools.rotated[layer], pools.values[layer], k, v, at
            )

    def turn(self, pools: CudaPools, layers: Sequence[int], step: Step) -> None:
        """Turn the keys of those layers whose turned copies are of other angles."""
        known = step.rotation is not None
        stale = [i for i in layers if not known or pools.rotations[i] != step.rotation]
        if stale and step.num_cells:
            check_cells(pools, step)
            self._writes.turn(
                [pools.keys[layer] for layer in stale],
                [pools.rotated[layer] for layer in stale],
                cp.asarray(step.slots),
                *(cp.asarray(np.ascontiguousarray(t, np.float32)) for t in (step.cos, step.sin)),
            )
        for layer in stale:
            pools.rotations[layer] = step.rotation

    def read(self, pools: CudaPools, layer: int, at: DeviceStep) -> tuple[Array, Array]:
        """Turned keys and values of a layer."""
        return pools.rotated[layer], pools.values[layer]

    def migrate(
        self, pools: CudaPools, source: NDArray[np.int64], destination: NDArray[np.int64]
    ) -> None:
        """Copy rows of keys and values; turned keys are made anew before they are read next."""
        pools.forget_rotations()
        self._writes.migrate([*pools.keys, *pools.values], source, destination)

    def host_keys(
        self, pools: CudaPools, layer: int, pages: NDArray[np.integer[Any]]
    ) -> NDArray[np.float32]:
        """Un-rotated keys of pages, on the host."""
        return host_pages(pools.keys[layer], pages).astype(np.float32)


def grown(array: Array, more_pages: int) -> Array:
    """A copy with so many pages more, of undefined contents."""
    larger = cp.empty((array.shape[0] + more_pages, *array.shape[1:]), array.dtype)
    copy_into(larger, array)  # the pages that there were come first
    return larger
