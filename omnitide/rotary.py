"""Rotary angles of cells: which position axis turns which pair of a head, and by how much.

Keys are stored un-rotated and rotated when read, so angles are functions of the present positions
alone and nothing drifts, however often the history is re-indexed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnitide.errors import ConfigError

Table = NDArray[np.float32]

LEAST_KEPT = 1 << 10
"""Positions whose angles are kept at first."""

_AT_ONCE = 1 << 10  # positions whose angles are computed at a time: in float64 they are large

MOST_KEPT = 1 << 16
"""Positions whose angles are kept: 32 MiB at head_dim 128. Later ones are computed each time."""


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotation of the pairs (i, i + head_dim / 2) of a head.

    Attributes:
        head_dim: Size of a head, even.
        theta: Base of the frequencies: pair i turns by position * theta ** (-2 i / head_dim).
        sections: How many pairs the time, height and width axes turn, in that order (the split
            layout of Qwen2.5-VL and Qwen2.5-Omni). None: all pairs are turned by axis 0.
    """

    head_dim: int
    theta: float = 1e6
    sections: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        pairs = self.head_dim // 2
        if self.head_dim <= 0 or self.head_dim % 2:
            raise ConfigError(f"[rotary] head_dim must be even and positive, got {self.head_dim}")
        if not self.theta > 0:
            raise ConfigError(f"[rotary] theta must be positive, got {self.theta}")
        if self.sections is not None and (sum(self.sections) != pairs or min(self.sections) < 0):
            raise ConfigError(
                f"[rotary] sections {self.sections} must add up to head_dim / 2 = {pairs}, "
                "none below 0"
            )

    def tables(self, positions: NDArray[np.int32]) -> tuple[Table, Table]:
        """Cosines and sines for positions of shape (n, 3), each of shape (n, head_dim / 2).

        Angles are formed in float64: in float32 they would be off by 4e-4 at position 30,000.
        """
        pairs = self.head_dim // 2
        frequency = self.theta ** (-np.arange(pairs) / pairs)
        axis = np.repeat([0, 1, 2], self.pairs_by_axis)
        angles = positions[:, axis] * frequency
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    @property
    def pairs_by_axis(self) -> tuple[int, int, int]:
        """How many pairs each axis turns, the first ones axis 0."""
        return self.sections or (self.head_dim // 2, 0, 0)


class RotaryTables:
    """`Rotary.tables` for positions that come again and again: looked up, computed once.

    A look-up takes a fifth of the time. Not for several threads at once.
    """

    def __init__(self, rotary: Rotary) -> None:
        self._rotary = rotary
        self._kept: Table = np.empty((0, rotary.head_dim), np.float32)

    def look_up(self, positions: NDArray[np.int32]) -> Table:
        """Cosines, then sines, for positions of shape (n, 3), none below 0; (n, head_dim)."""
        largest = int(positions.max(initial=-1))
        if largest >= MOST_KEPT:
            return np.concatenate(self._rotary.tables(positions), axis=1)
        if largest >= len(self._kept):
            self._keep(min(max(2 * largest, LEAST_KEPT), MOST_KEPT))
        pairs = self._rotary.head_dim // 2
        out = np.empty((len(positions), 2 * pairs), np.float32)
        stop = 0
        for axis, count in enumerate(self._rotary.pairs_by_axis):
            start, stop = stop, stop + count
            for part in (slice(start, stop), slice(pairs + start, pairs + stop)):
                out[:, part] = self._kept[positions[:, axis], part]
        return out

    def _keep(self, count: int) -> None:
        kept = np.empty((count, self._rotary.head_dim), np.float32)
        kept[: len(self._kept)] = self._kept
        for start in range(len(self._kept), count, _AT_ONCE):
            part = np.arange(start, min(start + _AT_ONCE, count), dtype=np.int32)
            tables = self._rotary.tables(np.stack([part] * 3, axis=1))
            np.concatenate(tables, axis=1, out=kept[part[0] : part[-1] + 1])
        self._kept = kept
