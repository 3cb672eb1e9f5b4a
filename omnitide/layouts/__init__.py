"""Physical layouts, one file each: where new cells go, and what is moved after an eviction.

To add one: write it, name it here, add it to the tests.
"""

from __future__ import annotations

from typing import Protocol

from omnitide.errors import ConfigError
from omnitide.history import History
from omnitide.layouts.native import Native
from omnitide.layouts.paper import Paper
from omnitide.layouts.predictive import Predictive
from omnitide.migration import MigrationPlan
from omnitide.pages import PageTable, Slots
from omnitide.retention import Fates
from omnitide.units import UnitKind


class Layout(Protocol):
    """Places cells in the page table and plans migrations."""

    name: str

    def place(self, table: PageTable, survivors: Fates, kind: UnitKind) -> Slots:
        """Take slots for the cells of a new unit. Changes `table`.

        Args:
            survivors: Which cells are expected to stay once the unit is old, (num_tokens,).
            kind: Kind of the unit; the system prefix is must-keep.

        Raises:
            CapacityError: Too few slots are free; nothing was taken.
        """
        ...

    def plan(self, table: PageTable, history: History) -> MigrationPlan | None:
        """The migration worth making after an eviction, or None. Changes nothing."""
        ...

    def settle(self, table: PageTable, history: History) -> None:
        """Re-class pages after an eviction and its migration. Changes `table`."""
        ...


LAYOUTS: dict[str, type[Layout]] = {
    "predictive": Predictive,
    "paper": Paper,
    "native": Native,
}


def make_layout(name: str) -> Layout:
    """A layout by name.

    Raises:
        ConfigError: No layout has that name.
    """
    if name not in LAYOUTS:
        raise ConfigError(f"[layout] expected one of {', '.join(LAYOUTS)}; got {name!r}")
    return LAYOUTS[name]()
