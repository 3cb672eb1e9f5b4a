"""Keys and values of one layer, a row a token, oldest first.

Invariant: rows beyond those that the ledger counts are never read, so writing them changes nothing.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from omnitide.mlx_lm.rotation import Rotation, Shifts

STEP = 256
"""Rows by which the buffers grow, as those of mlx-lm's own cache do."""


class Rows:
    """Buffers of one layer.

    Attributes:
        keys, values: Shape (1, heads, capacity, head_dim) each, or None before the first token.
            Keys stand at their present positions.
        written: Keys as they were written, for the first rows: those that were there at the last
            eviction. None where no key has been turned.
    """

    __slots__ = ("keys", "values", "written")

    def __init__(self, keys: Any = None, values: Any = None, written: Any = None) -> None:
        self.keys, self.values, self.written = keys, values, written

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        arrays = (self.keys, self.values, self.written)
        return sum(int(a.nbytes) for a in arrays if a is not None)

    def append(self, at: int, keys: Any, values: Any) -> tuple[Any, Any]:
        """Write rows behind the first `at` ones. Changes the buffers in place.

        Returns:
            Keys and values of all rows, old and new.
        """
        stop = at + keys.shape[2]
        self.keys = _grown(self.keys, at, stop, keys)
        self.values = _grown(self.values, at, stop, values)
        self.keys[..., at:stop, :] = keys
        self.values[..., at:stop, :] = values
        return self.first(stop)

    def first(self, count: int) -> tuple[Any, Any]:
        """Keys and values of the first `count` rows."""
        if self.keys is None or self.keys.shape[2] == count:
            return self.keys, self.values
        return self.keys[..., :count, :], self.values[..., :count, :]

    def kept(
        self,
        keep: NDArray[np.int64],
        turned: int,
        shifts: Shifts,
        rotation: Rotation | None,
        reserve: int,
    ) -> Rows:
        """New buffers of the rows in `keep`, keys turned to their new positions.

        Args:
            keep: Rows that stay, rising.
            turned: How many of the first rows have been turned before, if any has.
            shifts: How far each row that stays now lies from where it was written, (len(keep),).
            rotation: Of the layer. None: its keys hold no position.
            reserve: Rows to make room for.
        """
        index = mx.array(keep)
        values = mx.take(self.values, index, axis=2)
        if rotation is None:
            return Rows(
                _padded(mx.take(self.keys, index, axis=2), reserve), _padded(values, reserve)
            )
        if self.written is None:
            written = mx.take(self.keys, index, axis=2)
        else:
            # Two takes rather than one of a whole copy: what was turned, then what never was.
            split = int(np.searchsorted(keep, turned))
            old = mx.take(self.written, index[:split], axis=2)
            written = mx.concatenate([old, mx.take(self.keys, index[split:], axis=2)], axis=2)
        if not shifts.any():
            return Rows(_padded(written, reserve), _padded(values, reserve))
        keys = rotation.turn(written, shifts)
        return Rows(_padded(keys, reserve), _padded(values, reserve), written)


def _grown(buffer: Any, used: int, stop: int, like: Any) -> Any:
    """A buffer with room for `stop` rows, which holds the first `used` rows of the one given."""
    if buffer is not None and buffer.shape[2] >= stop:
        return buffer
    if buffer is None:
        shape = (*like.shape[:2], -(-stop // STEP) * STEP, like.shape[3])
        return mx.zeros(shape, like.dtype)
    return _padded(buffer[..., :used, :], -(-stop // STEP) * STEP)


def _padded(rows: Any, capacity: int) -> Any:
    more = capacity - rows.shape[2]
    if more <= 0:
        return rows
    empty = mx.zeros((*rows.shape[:2], more, rows.shape[3]), rows.dtype)
    return mx.concatenate([rows, empty], axis=2)
