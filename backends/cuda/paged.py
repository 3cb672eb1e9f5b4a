"""The paged cache on the GPU: pools, what a pass needs on the device, and recorded passes.

Kernels are given what they need of a step as a `DeviceStep`; it is checked and copied once a pass.
How keys and values are kept, and turned when angles have changed, is the matter of a `Store`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array, Pools
from omnitide.backends.cuda.arrays import copied, cp
from omnitide.backends.cuda.attention import Attention
from omnitide.backends.cuda.cache_writes import CacheWrites
from omnitide.backends.cuda.device_step import DeviceStep, packed
from omnitide.backends.cuda.eight_bit import EightBitRows
from omnitide.backends.cuda.eight_bit_pools import CudaEightBitPools, EightBitStore
from omnitide.backends.cuda.passes import Recorder
from omnitide.backends.cuda.pools import CudaPools, TurnedStore
from omnitide.backends.pools import check_cells, check_query_slots
from omnitide.step import Step

Forward = Callable[[Array, Pools, Step], Array]
AnyPools = CudaPools | CudaEightBitPools

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


class Store(Protocol):
    """One way to keep keys and values. `pools` are those that `new` gave."""

    def new(self, num_layers: int, shape: tuple[int, int, int, int], dtype: np.dtype[Any]) -> Any:
        """Pools with undefined contents."""
        ...

    def grow(self, pools: Any, num_pages: int) -> None:
        """Make all arrays larger; the contents stay, or are known to be lost."""
        ...

    def append(
        self, pools: Any, layer: int, step: Step, at: DeviceStep, k: Array, v: Array
    ) -> None:
        """Write new tokens to `step.query_slots`; `at` is the step on the device."""
        ...

    def turn(self, pools: Any, layers: Sequence[int], step: Step) -> None:
        """See to it that keys of those layers are read turned by the step's angles."""
        ...

    def read(self, pools: Any, layer: int, at: DeviceStep) -> tuple[Array, Array]:
        """What attention reads: turned keys and values, `[page][kv_head][64][head_dim]`."""
        ...

    def migrate(self, pools: Any, source: NDArray[np.int64], to: NDArray[np.int64]) -> None:
        """Copy rows of all layers as if all at once."""
        ...

    def host_keys(
        self, pools: Any, layer: int, pages: NDArray[np.integer[Any]]
    ) -> NDArray[np.float32]:
        """Un-rotated keys of pages, on the host."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """A checked step of a pass that can be recorded.

    Attributes:
        step, pools: Whose it is.
        tiles: Tiles that the pass has room for.
        words: The step, packed for that room.
    """

    step: Step
    pools: AnyPools
    tiles: int
    words: NDArray[np.int32]


class PagedCache:
    """Operations on pools. Arguments of one layer have been checked by the caller."""

    def __init__(self, writes: CacheWrites, rows: EightBitRows, attention: Attention) -> None:
        self._turned, self._packed = TurnedStore(writes), EightBitStore(writes, rows)
        self._attention = attention
        self._current: tuple[Step, AnyPools, DeviceStep] | None = None
        self._appending: tuple[Step, AnyPools] | None = None
        self._prepared: _Prepared | None = None

    def new_pools(
        self,
        num_layers: int,
        shape: tuple[int, int, int, int],
        dtype: np.dtype[Any],
        kv_bits: int | None,
    ) -> AnyPools:
        """Pools with undefined contents.

        Raises:
            BackendError: There is not enough memory; nothing is kept.
        """
        self.forget()  # the last pass may have been over pools that nobody else holds any more
        store = self._turned if kv_bits is None else self._packed
        return store.new(num_layers, shape, dtype)

    def _store(self, pools: AnyPools) -> Store:
        """How these pools are kept: the one place that asks."""
        return self._packed if isinstance(pools, CudaEightBitPools) else self._turned

    def grow(self, pools: AnyPools, num_pages: int) -> None:
        """Make all arrays larger. What was recorded for the old ones is dropped.

        Raises:
            BackendError: There is not enough memory; the pools are as usable as before.
        """
        self.forget()
        pools.recorder.clear()
        pools.recorder = Recorder()
        self._store(pools).grow(pools, num_pages)

    def forget(self) -> None:
        """Let go of the pools and steps of the last pass, and of the next one."""
        self._current = self._appending = self._prepared = None

    def append(self, pools: AnyPools, layer: int, step: Step, k: Array, v: Array) -> None:
        """Write k and v."""
        self._check_slots(step, pools)
        at = self.on_device(step, pools)
        self._store(pools).append(pools, layer, step, at, k, v)

    def attend(self, q: Array, pools: AnyPools, layer: int, step: Step, scale: float) -> Array:
        """Attention of the step's queries, at least one."""
        at = self.on_device(step, pools)
        self._turn(pools, (layer,), step)
        keys, values = self._store(pools).read(pools, layer, at)
        return self._attention(q, keys, values, at, scale)

    def mass(self, q: Array, pools: AnyPools, layer: int, step: Step, scale: float) -> Array:
        """Attention mass of the step's cells."""
        at = self.on_device(step, pools, "attention_mass")
        self._turn(pools, (layer,), step)
        keys, _ = self._store(pools).read(pools, layer, at)
        return self._attention.mass(q, keys, step, at, scale)

    def host_keys(
        self, pools: AnyPools, layer: int, pages: NDArray[np.integer[Any]]
    ) -> NDArray[np.float32]:
        """Un-rotated keys of pages, on the host, shape (num_pages, kv_head, 64, head_dim)."""
        return self._store(pools).host_keys(pools, layer, pages)

    def migrate(
        self, pools: AnyPools, source: NDArray[np.int64], destination: NDArray[np.int64]
    ) -> None:
        """Copy rows of keys and values in all layers."""
        self._store(pools).migrate(pools, source, destination)

    def prepare(self, pools: AnyPools, step: Step) -> None:
        """Check a step that may be recorded or replayed, and load it where it will be read."""
        if step.rotation is not None and not step.observed and step.num_queries > 0:
            ready = self._ready(pools, step)
            recording = pools.recorder.last()
            if recording is not None and recording.step.fits(ready.tiles, step.num_queries):
                recording.load(ready.words)
            self._prepared = ready

    def forward_pass(self, forward: Forward, x: Array, pools: AnyPools, step: Step) -> Array:
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
        try:
            return recorder.record(kind, room, kept, lambda: forward(kept, pools, step))
        finally:
            self._current = None  # from now on the room is that of the next pass

    def on_device(self, step: Step, pools: AnyPools, op: str = "attention") -> DeviceStep:
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

    def _ready(self, pools: AnyPools, step: Step) -> _Prepared:
        found = self._prepared
        if found is not None and found.step is step and found.pools is pools:
            return found
        self._check_slots(step, pools)
        check_cells(pools, step)
        tiles = room_for(len(step.tiles.subblocks))
        return _Prepared(step, pools, tiles, packed(step, tiles))

    def _check_slots(self, step: Step, pools: AnyPools) -> None:
        """Check where the new tokens go, once for all layers of a pass."""
        last = self._appending
        if last is None or last[0] is not step or last[1] is not pools:
            check_query_slots(pools, step)
            self._appending = (step, pools)

    def _turn(self, pools: AnyPools, layers: Sequence[int], step: Step) -> None:
        """See to it that keys of those layers are read turned by the step's angles."""
        self._store(pools).turn(pools, layers, step)
