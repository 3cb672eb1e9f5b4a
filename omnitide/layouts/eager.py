"""Eager layout: after each eviction all live cells are packed into a contiguous prefix.

The paper's yardstick (sections 6 and 7.1): the smallest footprint there is, for the most copies. So
its moves run whatever they cost, unless a rule is asked for.
"""

from __future__ import annotations

import numpy as np

from omnitide.history import History
from omnitide.migration import MigrationPlan, simulate
from omnitide.pages import PageTable, Slots
from omnitide.retention import Fates
from omnitide.units import UnitKind


class Eager:
    """The lowest free slots; physical order is kept when packing."""

    name = "eager"
    simulated = False
    accept: str | None = "layout"

    def place(self, table: PageTable, survivors: Fates, kind: UnitKind) -> Slots:
        """The lowest free slots."""
        return table.first_free(len(survivors))

    def plan(self, table: PageTable, history: History) -> MigrationPlan | None:
        """Every live cell to the lowest slot that its rank allows; None if all lie there."""
        live = np.flatnonzero(table.live).astype(np.int32)
        packed = np.arange(len(live), dtype=np.int32)
        moves = live != packed
        return simulate(table, live[moves], packed[moves]) if moves.any() else None

    def settle(self, table: PageTable, history: History) -> None:
        """Pages have no class here."""
