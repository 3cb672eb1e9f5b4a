"""The paper's layout: all that is new enters recent-context; survivors are packed afterwards.

Paper section 6.1: after retention the survivors of cut units are packed into fewer pages (tile
mode), and pages that are full of them are promoted to selected-history.
"""

from __future__ import annotations

import numpy as np

from omnitide.history import History
from omnitide.migration import MigrationPlan, cut_cells, plan_tile_mode
from omnitide.pages import PAGE_SIZE, PageClass, PageTable, Slots
from omnitide.retention import Fates
from omnitide.units import UnitKind


class Paper:
    """Class-aware placement with tile-mode migration."""

    name = "paper"
    simulated = False
    accept: str | None = "cost"

    def place(self, table: PageTable, survivors: Fates, kind: UnitKind) -> Slots:
        """Empty slots of recent-context pages, then free pages."""
        system = kind == UnitKind.SYSTEM
        return table.holes(
            len(survivors), PageClass.MUST_KEEP if system else PageClass.RECENT_CONTEXT
        )

    def plan(self, table: PageTable, history: History) -> MigrationPlan | None:
        """Tile mode over the survivors of cut units that are not in selected-history yet."""
        candidates = cut_cells(history)
        selected = table.page_class[candidates // PAGE_SIZE] == PageClass.SELECTED_HISTORY
        return plan_tile_mode(table, candidates[~selected])

    def settle(self, table: PageTable, history: History) -> None:
        """Promote full recent-context pages that hold survivors of cut units only."""
        cut = np.zeros(len(table.live), np.bool_)
        cut[cut_cells(history)] = True
        full_of_cut = np.count_nonzero(cut.reshape(-1, PAGE_SIZE), axis=1) == PAGE_SIZE
        recent = table.page_class == PageClass.RECENT_CONTEXT
        table.page_class[full_of_cut & recent] = PageClass.SELECTED_HISTORY
