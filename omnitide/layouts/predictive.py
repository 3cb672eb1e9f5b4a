"""Predictive layout: what will survive is known when it is written, so it is written apart.

Retention is structural: boundaries, sinks and text of a new unit are expected to stay, the rest to
go (design section 6). Each kind fills its own ring of pages in stream order. Units leave oldest
first, so eviction empties whole pages and nearly nothing is left to move. Units of text have a ring
of their own, for they stay whole, and whole units outlive cut ones.
"""

from __future__ import annotations

import numpy as np

from omnitide.history import History
from omnitide.migration import MigrationPlan, cut_cells, plan_tile_mode
from omnitide.pages import SUBBLOCK_SIZE, PageClass, PageTable, Slots
from omnitide.retention import Mask
from omnitide.units import UnitKind

# Rings of selected-history: what is left of media units, and units of text.
_MARKS, _WORDS = 0, 1


class Predictive:
    """Rings of pages by expected fate; tile mode only for what prediction did not foresee.

    Attributes:
        slack: Migration is considered once active subblocks could hold this many times the live
            cells.
    """

    name = "predictive"
    slack = 1.25

    def place(self, table: PageTable, survivors: Mask, kind: UnitKind) -> Slots:
        """Expected survivors into selected-history, the rest into recent-context."""
        if kind == UnitKind.SYSTEM:
            return table.ring(len(survivors), PageClass.MUST_KEEP)
        # Checked for both rings at once: nothing is taken unless all fits.
        table.check_free(len(survivors))
        stay, go = np.count_nonzero(survivors), np.count_nonzero(~survivors)
        lane = _MARKS if kind == UnitKind.MEDIA else _WORDS
        slots = np.empty(len(survivors), np.int32)
        slots[survivors] = table.ring(int(stay), PageClass.SELECTED_HISTORY, lane)
        slots[~survivors] = table.ring(int(go), PageClass.RECENT_CONTEXT)
        return slots

    def plan(self, table: PageTable, history: History) -> MigrationPlan | None:
        """Tile mode over the survivors of cut units, if the tiles have become sparse."""
        if table.active_subblocks * SUBBLOCK_SIZE <= self.slack * len(history):
            return None
        return plan_tile_mode(table, cut_cells(history))

    def settle(self, table: PageTable, history: History) -> None:
        """Classes were right from the start."""
