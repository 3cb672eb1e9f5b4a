"""Pools of 8-bit keys and values on the GPU, and what is done with them.

Attention reads a layer's live rows as floats, in scratch that all layers share: made wide right
before, their keys turned by the angles of their slots. So no attention kernel knows of packed rows.

Invariant: if `rotation` is not None, the angles of all live cells are those that it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array
from omnitide.backends.cuda.arrays import cp, host_pages
from omnitide.backends.cuda.cache_writes import CacheWrites
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.backends.cuda.eight_bit import EightBitRows
from omnitide.backends.cuda.memory import enough_memory
from omnitide.backends.cuda.passes import Recorder
from omnitide.backends.cuda.pools import grown
from omnitide.backends.eight_bit import EightBitPools, grow_paged
from omnitide.backends.pools import check_cells
from omnitide.pages import PAGE_SIZE
from omnitide.step import Step


@dataclass(frozen=True, slots=True)
class Scratch:
    """What attention reads of the layer at hand, and what turns its keys.

    Attributes:
        wide: Turned keys and values in the backend's dtype, shaped as one layer's pools.
        angles: Cosines and sines of the cell in each slot, float32, (num_slots, head_dim / 2).
    """

    wide: tuple[Array, Array]
    angles: tuple[Array, Array]

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Scratch:
        """Undefined contents, for pools of that shape."""
        angles = (shape[0] * PAGE_SIZE, shape[3] // 2)
        return cls(
            (cp.empty(shape, dtype), cp.empty(shape, dtype)),
            (cp.empty(angles, np.float32), cp.empty(angles, np.float32)),
        )

    @staticmethod
    def bytes_for(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
        """Bytes of such scratch."""
        cells = shape[0] * PAGE_SIZE
        return cells * (2 * shape[1] * shape[3] * dtype.itemsize + 4 * shape[3])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in (*self.wide, *self.angles))


@dataclass(slots=True)
class CudaEightBitPools(EightBitPools):
    """Packed pools, the scratch they are read through, and what was made for these very arrays.

    `nbytes` counts what is kept of the cells, as on other backends, and not the scratch.

    Attributes:
        room: Where `factors` lie once they are made, float32, (kv_head, head_dim) a layer.
        scratch: Of the layer at hand.
        rotation: `Step.rotation` of the scratch's angles; None: not known to be right.
        recorder: Passes recorded over these very arrays; a new one when an array is replaced.
    """

    room: list[Array]
    scratch: Scratch
    rotation: int | None = None
    recorder: Recorder = field(default_factory=Recorder)

    def packed(self, layer: int) -> tuple[Array, Array, Array, Array]:
        """Keys, values and the scales of both, of a layer."""
        return (
            self.keys[layer],
            self.values[layer],
            self.key_scales[layer],
            self.value_scales[layer],
        )


class EightBitStore:
    """Operations on `CudaEightBitPools`; see `paged.Store`."""

    def __init__(self, writes: CacheWrites, rows: EightBitRows) -> None:
        self._writes = writes
        self._rows = rows

    def new(
        self, num_layers: int, shape: tuple[int, int, int, int], dtype: np.dtype[Any]
    ) -> CudaEightBitPools:
        """Pools with undefined contents.

        Raises:
            BackendError: There is not enough memory; nothing is kept.
        """
        rows = int(np.prod(shape[:3]))
        factors = 4 * num_layers * shape[1] * shape[3]
        needed = 2 * num_layers * rows * (shape[3] + 4) + factors + Scratch.bytes_for(shape, dtype)

        def arrays(size: tuple[int, ...], kind: Any) -> list[Array]:
            return [cp.empty(size, kind) for _ in range(num_layers)]

        with enough_memory("new_pools", needed):
            return CudaEightBitPools(
                keys=arrays(shape, np.int8),
                values=arrays(shape, np.int8),
                key_scales=arrays(shape[:3], np.float32),
                value_scales=arrays(shape[:3], np.float32),
                factors=[None] * num_layers,
                room=arrays(shape[1::2], np.float32),
                scratch=Scratch.empty(shape, dtype),
            )

    def grow(self, pools: CudaEightBitPools, num_pages: int) -> None:
        """Make all arrays larger; the scratch first, so that it always has a place for every row.

        Raises:
            BackendError: There is not enough memory; the pools are as usable as before.
        """
        wide = pools.scratch.wide[0]
        shape = (num_pages, *wide.shape[1:])
        with enough_memory("grow_pools", Scratch.bytes_for(shape, wide.dtype)):
            if num_pages > wide.shape[0]:
                pools.scratch = Scratch.empty(shape, wide.dtype)
                pools.rotation = None
            grow_paged(pools, num_pages, grown)

    def append(
        self, pools: CudaEightBitPools, layer: int, step: Step, at: DeviceStep, k: Array, v: Array
    ) -> None:
        """Pack k and v; the first rows of a layer make its factors."""
        if step.rotation is None:
            pools.rotation = None
        if not step.num_queries:
            return
        if pools.factors[layer] is None:
            self._rows.factors(k, pools.room[layer])
            pools.factors[layer] = pools.room[layer]
        angles = pools.scratch.angles
        self._rows.pack(pools.packed(layer), pools.room[layer], angles, k, v, at)

    def turn(self, pools: CudaEightBitPools, layers: Sequence[int], step: Step) -> None:
        """Place the angles of all cells, unless they lie there. They serve every layer."""
        if step.rotation is not None and pools.rotation == step.rotation:
            return
        if step.num_cells:
            check_cells(pools, step)
            tables = (np.ascontiguousarray(t, np.float32) for t in (step.cos, step.sin))
            self._rows.place_angles(
                pools.scratch.angles, cp.asarray(step.slots), *(cp.asarray(t) for t in tables)
            )
        pools.rotation = step.rotation

    def read(self, pools: CudaEightBitPools, layer: int, at: DeviceStep) -> tuple[Array, Array]:
        """Turned keys and values of a layer's live rows, until another layer is read."""
        scratch = pools.scratch
        self._rows.widen(pools.packed(layer), pools.room[layer], scratch.angles, scratch.wide, at)
        return scratch.wide

    def migrate(
        self,
        pools: CudaEightBitPools,
        source: NDArray[np.int64],
        destination: NDArray[np.int64],
    ) -> None:
        """Copy packed rows and their scales; angles are placed anew before they are read next."""
        pools.rotation = None
        elements = [*pools.keys, *pools.values]
        scales = [s.reshape((*s.shape, 1)) for s in (*pools.key_scales, *pools.value_scales)]
        # Together: elements without their scales would be other keys and values.
        self._writes.migrate_together([elements, scales], source, destination)

    def host_keys(
        self, pools: CudaEightBitPools, layer: int, pages: NDArray[np.integer[Any]]
    ) -> NDArray[np.float32]:
        """Un-rotated keys of pages, on the host, rounded to the backend's dtype."""
        dtype = pools.scratch.wide[0].dtype
        elements = host_pages(pools.keys[layer], pages).astype(np.float32)
        keys = elements * host_pages(pools.key_scales[layer], pages)[..., None]
        keys *= cp.asnumpy(pools.room[layer])[:, None]
        rounded: NDArray[np.float32] = keys.astype(dtype).astype(np.float32)
        return rounded
