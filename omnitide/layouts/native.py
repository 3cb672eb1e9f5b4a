"""Native layout: a new cell takes the first free slot, holes stay where eviction left them."""

from __future__ import annotations

from omnitide.history import History
from omnitide.migration import MigrationPlan
from omnitide.pages import PageTable, Slots
from omnitide.retention import Fates
from omnitide.units import UnitKind


class Native:
    """What a cache without paging does; never moves anything."""

    name = "native"
    simulated = False
    accept: str | None = None

    def place(self, table: PageTable, survivors: Fates, kind: UnitKind) -> Slots:
        """The lowest free slots."""
        return table.first_free(len(survivors))

    def plan(self, table: PageTable, history: History) -> MigrationPlan | None:
        """Nothing moves."""
        return None

    def settle(self, table: PageTable, history: History) -> None:
        """Pages have no class here."""
