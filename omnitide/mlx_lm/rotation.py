"""Turning stored keys to other positions, by the model's own rotary embedding.

Models of mlx-lm rotate keys before a cache sees them. A key that was written at position p is
brought to position q by turning it by q - p, an exact integer, from the key *as it was written*: so
it has been rounded once more than a key written at q, however often positions have changed.
"""

from __future__ import annotations

from typing import Any, Protocol

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Shifts = NDArray[np.int32]

Shape = tuple[int, int, int]
"""Of a layer: heads, size of a key, size of a value."""


class Rotary(Protocol):
    """What models call on queries and keys: rotates row b of a batch by positions from `offset`."""

    def __call__(self, x: Any, offset: Any = 0) -> Any: ...


class Rotation:
    """Turns the keys of one layer.

    Some embeddings also scale what they rotate (YaRN, LongRoPE). Stored keys have been scaled when
    they were written, so what a turn scales is divided out again.
    """

    def __init__(self, rotary: Rotary) -> None:
        self._rotary = rotary
        self._unscale: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Rotation:
        return self  # a part of the model, which copies of a cache share

    def turn(self, keys: Any, shifts: Shifts) -> Any:
        """Keys with row r turned by `shifts[r]` positions; rows that don't shift are not touched.

        Args:
            keys: As they were written, shape (1, heads, rows, head_dim).
            shifts: Shape (rows,); may be negative.

        Returns:
            A new array of the same shape and dtype. Angles and products are float32.
        """
        if not shifts.any():
            return keys
        size = keys.shape[-1]
        if self._unscale is None or self._unscale.shape[-1] != size:
            self._unscale = 1 / self._rotary(mx.ones((1, 1, 1, size), mx.float32), offset=0)
        # Rows become a batch, because an embedding takes one offset for each entry of a batch.
        rows = keys.transpose(2, 1, 0, 3).astype(mx.float32)
        turned = self._rotary(rows, offset=mx.array(shifts)) * self._unscale
        turned = turned.transpose(2, 1, 0, 3).astype(keys.dtype)
        return mx.where(mx.array(shifts == 0)[None, None, :, None], keys, turned)
