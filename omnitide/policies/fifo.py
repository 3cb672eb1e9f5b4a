"""Unit FIFO: whole units leave, oldest first (the paper's unit-level sliding baseline)."""

from __future__ import annotations

import numpy as np

from omnitide.config import RetentionConfig
from omnitide.history import History
from omnitide.retention import Mask, Mass, protected
from omnitide.runs import run_lengths
from omnitide.units import Cells


class UnitFifo:
    """Drops the oldest units until the low watermark is met or one unit remains."""

    name = "fifo"
    bounded = True
    needs_mass = False

    def select(self, history: History, config: RetentionConfig, mass: Mass | None = None) -> Mask:
        """The system prefix and the newest units."""
        held = protected(history)
        starts = history.unit_starts()
        lengths = run_lengths(starts, len(history))
        # Tokens left once this unit and all droppable ones before it are gone.
        droppable = ~held[starts]
        droppable[-1] = False
        left = len(history) - np.cumsum(np.where(droppable, lengths, 0))
        before = left + np.where(droppable, lengths, 0)
        drop = droppable & (before > config.low_watermark)
        return ~np.repeat(drop, lengths)

    def survivors(self, cells: Cells, config: RetentionConfig) -> Mask:
        """None: every unit leaves whole."""
        return np.zeros(len(cells), np.bool_)
