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
        axis = (
            np.zeros(pairs, int) if self.sections is None else np.repeat([0, 1, 2], self.sections)
        )
        angles = positions[:, axis] * frequency
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
