"""What writes to the pools: new tokens, keys turned anew, and rows that move.

Invariant: a slot of `rotated` holds the key of the same slot of `keys`, turned by its cell's
angles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array
from omnitide.backends.cuda.accesses import ACCESS_BYTES, DTYPES, access_width, widths
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.backends.cuda.instances import C_TYPES, Instance

THREADS = 128  # of append.cu
MOVING_THREADS = 256  # of migrate.cu
MOVED_BY_BLOCK = 4 * MOVING_THREADS  # units

SCRATCH_BYTES = 1 << 28
"""Most scratch of a migration; with more rows to save it works through the arrays in groups."""

UNITS = {"uint4": ACCESS_BYTES, "unsigned": 4, "unsigned short": 2}
"""Bytes of the units that rows move in. head_dim is even, so that the smallest always fits."""

Rows = NDArray[np.integer[Any]]
"""Slots, on the host."""

_TABLES_KEPT = 16


@cache
def _written(name: str, dtype: str, width: int) -> Instance:
    return Instance("append", f"{name}<{C_TYPES[dtype]}, {width}>")


@cache
def _moved(name: str, unit: str) -> Instance:
    return Instance("migrate", f"{name}<{unit}>")


def instances() -> tuple[Instance, ...]:
    """Every instance that `CacheWrites` can launch."""
    written = [
        _written(name, dtype, width)
        for name in ("append", "turn")
        for dtype in DTYPES
        for width in widths(dtype)
    ]
    moved = [_moved(name, unit) for name in ("gather_rows", "move_rows") for unit in UNITS]
    return (*written, *moved)


@dataclass(frozen=True, slots=True, eq=False)
class _Move:
    """How rows of some arrays move.

    Attributes:
        table: The arrays' addresses, on the device.
        unit: One of `UNITS`.
        sizes: KV heads, and units of a row of each.
        at_once: Arrays whose saved rows the scratch holds.
        scratch: For saved rows.
    """

    table: Array
    unit: str
    sizes: tuple[int, int]
    at_once: int
    scratch: Array


class CacheWrites:
    """Writes to pool arrays `[page][kv_head][64][head_dim]`, on CuPy's current stream."""

    def __init__(self, compiler: Compiler, scratch_bytes: int = SCRATCH_BYTES) -> None:
        self._compiler = compiler
        self._scratch_bytes = scratch_bytes
        self._tables: dict[tuple[int, ...], tuple[Array, bool]] = {}

    def append(
        self, keys: Array, rotated: Array, values: Array, k: Array, v: Array, step: DeviceStep
    ) -> None:
        """Write new tokens to `step.query_slots` of one layer. Changes the three pool arrays.

        k, v (num_queries, num_kv_heads, head_dim), un-rotated; their tokens may lie any distance
        apart. Keys and values are exact.
        """
        num_queries, num_kv_heads, head_dim = k.shape
        strides = [x.strides[0] // x.dtype.itemsize if num_queries > 1 else 0 for x in (k, v)]
        width = access_width((keys, rotated, values, k, v), head_dim // 2, *strides)
        items = num_queries * num_kv_heads * (head_dim // 2 // width)
        if items == 0:
            return
        self._compiler(_written("append", str(k.dtype), width))(
            (-(-items // THREADS),),
            (THREADS,),
            (
                k,
                v,
                *(np.int64(stride) for stride in strides),
                step.query_slots,
                step.query_cos,
                step.query_sin,
                keys,
                rotated,
                values,
                np.int32(num_queries),
                np.int32(num_kv_heads),
                np.int32(head_dim),
            ),
            overlap=True,
        )

    def turn(
        self, keys: Sequence[Array], rotated: Sequence[Array], slots: Array, cos: Array, sin: Array
    ) -> None:
        """Turn the keys of some slots anew, in all layers at once. Changes `rotated`.

        slots int32 (num_cells,), distinct; cos, sin float32 (num_cells, head_dim / 2), all on the
        device. Gives the bits that `append` would with the same angles.
        """
        _, num_kv_heads, _, head_dim = keys[0].shape
        width = access_width((*keys, *rotated, cos, sin), head_dim // 2)
        items = len(slots) * num_kv_heads * (head_dim // 2 // width)
        if items == 0:
            return
        self._compiler(_written("turn", str(keys[0].dtype), width))(
            (-(-items // THREADS), len(keys)),
            (THREADS,),
            (
                self._table(keys)[0],
                self._table(rotated)[0],
                slots,
                cos,
                sin,
                np.int32(len(slots)),
                np.int32(num_kv_heads),
                np.int32(head_dim),
            ),
        )

    def migrate(self, arrays: Sequence[Array], source: Rows, destination: Rows) -> None:
        """Copy rows `source` to rows `destination`, as if all at once. Changes the arrays.

        Rows that are not overwritten themselves are copied directly, in one launch where that is
        all of them; the others are gathered into scratch first.

        Args:
            arrays: Pool arrays of one shape and dtype: all layers' keys, values and so on.
            source: Slots, on the host, shape (num_rows,).
            destination: Slots, distinct, on the host, same shape.
        """
        self.migrate_together([arrays], source, destination)

    def migrate_together(
        self, kinds: Sequence[Sequence[Array]], source: Rows, destination: Rows
    ) -> None:
        """`migrate` of arrays of several kinds, each kind of one shape and dtype.

        What memory that takes is there before the first row moves: if there is not enough, no row
        has moved.
        """
        saved, origins, targets = plan(source, destination)
        if len(targets) == 0:
            return
        words = cp.asarray(np.concatenate([saved, origins, targets]).astype(np.int32))
        moves = [self._move_of(arrays, len(saved)) for arrays in kinds]
        to_save, rows = words[: len(saved)], words[len(saved) :]
        from_to = rows[: len(targets)], rows[len(targets) :]
        for move in moves:
            for first in range(0, len(move.table), move.at_once):
                pools = move.table[first : first + move.at_once]
                if len(saved):
                    gathered = (pools, move.scratch, to_save)
                    self._launch_rows("gather_rows", move.unit, gathered, len(saved), *move.sizes)
                moved = (pools, move.scratch, *from_to)
                sizes = (len(saved), *move.sizes)
                self._launch_rows("move_rows", move.unit, moved, len(targets), *sizes)

    def _move_of(self, arrays: Sequence[Array], num_saved: int) -> _Move:
        """How rows of these arrays move, so many of them by way of scratch."""
        _, num_kv_heads, _, head_dim = arrays[0].shape
        row_bytes = head_dim * arrays[0].dtype.itemsize
        table, aligned = self._table(arrays)
        fitting = [unit for unit, size in UNITS.items() if row_bytes % size == 0]
        unit = next(unit for unit in fitting if aligned or unit != "uint4")
        saved_bytes = num_saved * num_kv_heads * row_bytes
        at_once = len(arrays)
        if saved_bytes:
            at_once = max(1, min(at_once, self._scratch_bytes // saved_bytes))
        scratch = cp.empty(max(ACCESS_BYTES, at_once * saved_bytes), np.uint8)
        return _Move(table, unit, (num_kv_heads, row_bytes // UNITS[unit]), at_once, scratch)

    def _launch_rows(
        self, name: str, unit: str, arrays: tuple[Array, ...], num_rows: int, *sizes: int
    ) -> None:
        """Launch a kernel on rows of all pools of a table; the sizes end with a row's."""
        units = num_rows * sizes[-2] * sizes[-1]
        self._compiler(_moved(name, unit))(
            (-(-units // MOVED_BY_BLOCK), len(arrays[0])),
            (MOVING_THREADS,),
            (*arrays, *(np.int32(size) for size in (num_rows, *sizes))),
        )

    def _table(self, arrays: Sequence[Array]) -> tuple[Array, bool]:
        """The arrays' addresses on the device, and whether all are aligned to an access.

        Kept as long as the arrays lie there.
        """
        addresses = tuple(array.data.ptr for array in arrays)
        if addresses not in self._tables:
            if len(self._tables) == _TABLES_KEPT:
                del self._tables[next(iter(self._tables))]
            aligned = all(address % ACCESS_BYTES == 0 for address in addresses)
            self._tables[addresses] = cp.asarray(np.array(addresses, np.uint64)), aligned
        return self._tables[addresses]


def plan(
    source: Rows, destination: Rows
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """How to move rows with the least scratch.

    Returns:
        Slots to save first, rising; of each row that moves its slot, or ~index of its saved slot;
        of each row that moves its destination.
    """
    moved = source != destination
    sources, targets = source[moved], destination[moved]
    num_slots = max(sources.max(initial=-1), targets.max(initial=-1)) + 1
    written, endangered = np.zeros((2, num_slots), np.bool_)
    written[targets] = True
    overwritten = written[sources]
    endangered[sources[overwritten]] = True
    saved = np.flatnonzero(endangered)
    place = np.empty(num_slots, np.int64)
    place[saved] = np.arange(len(saved))
    origins = np.where(overwritten, ~place[sources], sources)
    return saved, origins, targets
