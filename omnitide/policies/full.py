"""Full context: nothing is ever dropped. The yardstick, and the cost that others avoid."""

from __future__ import annotations

import numpy as np

from omnitide.config import RetentionConfig
from omnitide.history import History
from omnitide.retention import Mask, Mass
from omnitide.units import Cells


class FullContext:
    """Keeps everything; the pools grow with the stream."""

    name = "full"
    bounded = False
    needs_mass = False

    def select(self, history: History, config: RetentionConfig, mass: Mass | None = None) -> Mask:
        """All cells."""
        return np.ones(len(history), np.bool_)

    def survivors(self, cells: Cells, config: RetentionConfig) -> Mask:
        """All cells."""
        return np.ones(len(cells), np.bool_)
