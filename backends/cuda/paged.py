"""The paged cache on the GPU: pools, what a pass needs on the device, and recorded passes.

Kernels are given what they need of a step as a `DeviceStep`; it is checked and copied once a pass.
Keys are turned when they are appended, and again, all at once, when angles have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array, Pools
from omnitide.backends.cuda.arrays import copied, copy_into, cp
from omnitide.backends.cuda.attention import Attention
from omnitide.backends.cuda.cache_writes import CacheWrites
from omnitide.backends.cuda.device_step import DeviceStep, packed
from omnitide.backends.cuda.memory import enough_memory
from omnitide.backends.cuda.passes import Recorder
from omnitide.backends.cuda.pools import CudaPools
from omnitide.backends.pools import check_cells, check_query_slots, grow_each
from omnitide.step import Step

Forward = Callable[[Array, Pools, Step], Array]

LEAST_TILES = 128
"""Tiles that a recorded pass has room for at least."""


def room_for(tiles: int) -> int:
    """Room for tiles in a recorded pass: a quarter more than needed at most.

    So that a history that grows is recorded anew four times while it doubles.
    """
    if tiles <= LEAST_TILES:
        return LEAST_TILES
    unit = 1 << (tiles - 1).bit_length() - 3
    return -(-tiles // unit) * unit


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """A checked step of a pass that can be recorded.

    Attributes:
        step, pools: Whose it is.
        tiles: Tiles that the pass has room for.
        words: The step, packed for that room.
    """

    step: Step
    pools: CudaPools
    tiles: int
    words: NDArray[np.int32]


class PagedCache:
    """Operations on `CudaPools`. Arguments of one layer have been checked by the caller."""

    def __init__(self, writes: CacheWrites, attention: Attention) -> None:
        self._writes = writes
        self._attention = attention
        self._current: tuple[Step, CudaPools, DeviceStep] | None = None
        self._appending: tuple[Step, CudaPools] | None = None
        self._prepared: _Prepared | None = None

    def new_pools(self, num_layers: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> CudaPools:
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
        """Make all arrays larger. What was recorded for the old ones is dropped.

        Raises:
            BackendError: There is not enough memory; the pools are as usable as before.
        """
        self.forget()
        pools.recorder = Recorder()
        page = pools.keys[0].nbytes // pools.keys[0].shape[0]
        with enough_memory("grow_pools", num_pages * page):
            grow_each(pools, num_pages, _grown)
            for layer, array in enumerate(pools.rotated):
                if array.shape[0] < num_pages:
                    pools.rotated[layer] = _grown(array, num_pages - array.shape[0])

    def forget(self) -> None:
        """Let go of the pools and steps of the last pass, and of the next one."""
        self._current = self._appending = self._prepared = None

    def append(self, pools: CudaPools, layer: int, step: Step, k: Array, v: Array) -> None:
        """Write k, k turned, and v."""
        self._check_slots(step, pools)
        at = self.on_device(step, pools)
        if step.rotation is None:
            pools.rotations[layer] = None
        if step.num_queries:
            self._writes.append(
                pools.keys[layer], pools.rotated[layer], pools.values[layer], k, v, at
            )

    def attend(self, q: Array, pools: CudaPools, layer: int, step: Step, scale: float) -> Array:
        """Attention of the step's queries, at least one."""
        at = self.on_device(step, pools)
        self._turn(pools, (layer,), step)
        return self._attention(q, pools.rotated[layer], pools.values[layer], at, scale)

    def mass(self, q: Array, pools: CudaPools, layer: int, step: Step, scale: float) -> Array:
        """Attention mass of the step's cells."""
        at = self.on_device(step, pools, "attention_mass")
        self._turn(pools, (layer,), step)
        return self._attention.mass(q, pools.rotated[layer], step, at, scale)

    def migrate(
        self, pools: CudaPools, source: NDArray[np.int64], destination: NDArray[np.int64]
    ) -> None:
        """Copy rows of keys and values; turned keys are made anew before they are read next."""
        pools.forget_rotations()
        self._writes.migrate([*pools.keys, *pools.values], source, destination)

    def prepare(self, pools: CudaPools, step: Step) -> None:
        """Check a step that may be recorded or replayed, and load it where it will be read."""
        if step.rotation is not None and not step.observed and step.num_queries > 0:
            ready = self._ready(pools, step)
            recording = pools.recorder.last()
            if recording is not None and recording.step.fits(ready.tiles, step.num_queries):
                recording.load(ready.words)
            self._prepared = ready

    def forward_pass(self, forward: Forward, x: Array, pools: CudaPools, step: Step) -> Array:
        """The pass, replayed from a recording if there is one of its kind."""
        if step.rotation is None:
            return forward(x, pools, step)  # each layer's keys are turned when they are read
        self._turn(pools, range(len(pools.keys)), step)
        if step.observed or step.num_queries == 0:
            return forward(x, pools, step)
        ready, self._prepared = self._ready(pools, step), None
        kind = (forward, ready.tiles, x.shape)
        recorder = pools.recorder
        recording = recorder.find(kind)
        if recording is not None:
            if recording.words is not ready.words:
                recording.load(ready.words)
            return recording.replay(x)
        if not recorder.is_worth_recording(kind, step.num_queries):
            return forward(x, pools, step)
        room = DeviceStep.empty(ready.tiles, step.num_queries, pools.keys[0].shape[3] // 2)
        room.load_words(ready.words)
        kept = copied(cp.ascontiguousarray(x))
        self._current = (step, pools, room)
        return recorder.record(kind, room, kept, lambda: forward(kept, pools, step))

    def on_device(self, step: Step, pools: CudaPools, op: str = "attention") -> DeviceStep:
        """The step on the device, checked and copied once for all layers of a pass."""
        current = self._current
        if current is not None and current[1] is pools:
            if current[0] is step:
                return current[2]
            if current[0].newest is step:
                return current[2].newest()
        check_cells(pools, step, op)
        at = DeviceStep.of(step)
        self._current = (step, pools, at)
        return at

    def _ready(self, pools: CudaPools, step: Step) -> _Prepared:
        found = self._prepared
        if found is not None and found.step is step and found.pools is pools:
            return found
        self._check_slots(step, pools)
        check_cells(pools, step)
        tiles = room_for(len(step.tiles.subblocks))
        return _Prepared(step, pools, tiles, packed(step, tiles))

    def _check_slots(self, step: Step, pools: CudaPools) -> None:
        """Check where the new tokens go, once for all layers of a pass."""
        last = self._appending
        if last is None or last[0] is not step or last[1] is not pools:
            check_query_slots(pools, step)
            self._appending = (step, pools)

    def _turn(self, pools: CudaPools, layers: Sequence[int], step: Step) -> None:
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


def _grown(array: Array, more_pages: int) -> Array:
    larger = cp.empty((array.shape[0] + more_pages, *array.shape[1:]), array.dtype)
    copy_into(larger, array)  # the pages that there were come first
    return larger
