"""What writes to the pools: new tokens, keys turned anew, and rows that move.

Invariant: a slot of `rotated` holds the key of the same slot of `keys`, turned by its cell's
angles.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array
from omnitide.backends.cuda.accesses import ACCESS_BYTES, DTYPES, access_width, widths
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.backends.cuda.instances import C_TYPES, Instance
from omnitide.pages import Slots

THREADS = 128  # of append.cu
MOVED_BY_BLOCK = 256 * 4  # units, of migrate.cu

SCRATCH_BYTES = 1 << 28
"""Most scratch of a migration; with more rows to save it works through the arrays in groups."""

UNITS = {"uint4": ACCESS_BYTES, "unsigned": 4}
"""Bytes of the units that rows move in. head_dim is even, so that the smaller always fits."""

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


class CacheWrites:
    """Writes to pool arrays `[page][kv_head][64][head_dim]`, on CuPy's current stream."""

    def __init__(self, compiler: Compiler, scratch_bytes: int = SCRATCH_BYTES) -> None:
        self._compiler = compiler
        self._scratch_bytes = scratch_bytes
        self._tables: dict[tuple[int, ...], Array] = {}

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
                self._table(keys),
                self._table(rotated),
                slots,
                cos,
                sin,
                np.int32(len(slots)),
                np.int32(num_kv_heads),
                np.int32(head_dim),
            ),
        )

    def migrate(self, arrays: Sequence[Array], source: Slots, destination: Slots) -> None:
        """Copy rows `source` to rows `destination`, as if all at once. Changes the arrays.

        Rows that are not overwritten themselves are copied directly, in one launch where that is
        all of them; the others are gathered into scratch first.

        Args:
            arrays: Pool arrays of one shape and dtype: all layers' keys, values and so on.
            source: Slots, on the host, shape (num_rows,).
            destination: Slots, distinct, on the host, same shape.
        """
        saved, origins, targets = plan(source, destination)
        if len(targets) == 0:
            return
        _, num_kv_heads, _, head_dim = arrays[0].shape
        row_bytes = head_dim * arrays[0].dtype.itemsize
        unit = "uint4" if access_width(arrays, head_dim) > 1 else "unsigned"
        size = row_bytes // UNITS[unit]
        table = self._table(arrays)
        words = cp.asarray(np.concatenate([saved, origins, targets]).astype(np.int32))
        to_save, froms, tos = cp.split(words, [len(saved), len(saved) + len(targets)])
        saved_bytes = len(saved) * num_kv_heads * row_bytes
        group = len(arrays)
        if saved_bytes:
            group = max(1, min(group, self._scratch_bytes // saved_bytes))
        scratch = cp.empty(max(ACCESS_BYTES, group * saved_bytes), np.uint8)
        gather = self._compiler(_moved("gather_rows", unit)) if len(saved) else None
        move = self._compiler(_moved("move_rows", unit))
        shape = (np.int32(num_kv_heads), np.int32(size))
        for first in range(0, len(arrays), group):
            pools = table[first : first + group]
            if gather is not None:
                blocks = -(-len(saved) * num_kv_heads * size // MOVED_BY_BLOCK)
                gather(
                    (blocks, len(pools)),
                    (256,),
                    (pools, scratch, to_save, np.int32(len(saved)), *shape),
                )
            blocks = -(-len(targets) * num_kv_heads * size // MOVED_BY_BLOCK)
            move(
                (blocks, len(pools)),
                (256,),
                (
                    pools,
                    scratch,
                    froms,
                    tos,
                    np.int32(len(targets)),
                    np.int32(len(saved)),
                    *shape,
                ),
            )

    def _table(self, arrays: Sequence[Array]) -> Array:
        """The arrays' addresses on the device. Kept until the arrays are replaced."""
        addresses = tuple(array.data.ptr for array in arrays)
        if addresses not in self._tables:
            if len(self._tables) == _TABLES_KEPT:
                del self._tables[next(iter(self._tables))]
            self._tables[addresses] = cp.asarray(np.array(addresses, np.uint64))
        return self._tables[addresses]


def plan(
    source: Slots, destination: Slots
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """How to move rows with the least scratch.

    Returns:
        Slots to save first, rising; of each row that moves its slot, or ~index of its saved slot;
        of each row that moves its destination.
    """
    moves = source != destination
    sources, targets = source[moves].astype(np.int64), destination[moves].astype(np.int64)
    overwritten = np.isin(sources, targets)
    saved = np.unique(sources[overwritten])
    origins = np.where(overwritten, ~np.searchsorted(saved, sources), sources)
    return saved, origins, targets
