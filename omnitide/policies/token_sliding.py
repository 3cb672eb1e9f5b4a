"""Token sliding: the newest tokens stay, whatever they belong to (the paper's token-basic).

The cut is made at a token, so a unit may lose its opening markers, a picture its first rows, and a
turn its beginning: what is left need not read as a conversation. That is the point of this
baseline. The system prefix stays, as under every policy.
"""

from __future__ import annotations

import numpy as np

from omnitide.config import RetentionConfig
from omnitide.history import History
from omnitide.retention import Mask, Mass, protected, room_beside
from omnitide.units import Cells


class TokenSliding:
    """A strict sliding window: the oldest tokens leave until the low watermark is met.

    The target is met exactly, unless the protected cells alone exceed it; the newest token stays
    even then.
    """

    name = "token-sliding"
    bounded = True
    needs_mass = False

    def select(self, history: History, config: RetentionConfig, mass: Mass | None = None) -> Mask:
        """The protected cells and the newest others."""
        held = protected(history)
        free = np.flatnonzero(~held)
        keep = held.copy()
        keep[free[max(len(free) - room_beside(held, config), 0) :]] = True
        keep[-1:] = True
        return keep

    def survivors(self, cells: Cells, config: RetentionConfig) -> Mask:
        """None: every token leaves."""
        return np.zeros(len(cells), np.bool_)
