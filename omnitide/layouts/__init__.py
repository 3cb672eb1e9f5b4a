"""Physical layouts, one file each: where new cells go, and what is moved after an eviction.

To add one: write it, name it here, add it to the tests.
"""

from __future__ import annotations

from typing import Protocol, cast

from omnitide.config import SPAN_PAGES
from omnitide.errors import ConfigError
from omnitide.history import History
from omnitide.layouts.contiguous import Contiguous
from omnitide.layouts.eager import Eager
from omnitide.layouts.native import Native
from omnitide.layouts.paged import Paged
from omnitide.layouts.paper import Paper
from omnitide.layouts.predictive import Predictive
from omnitide.layouts.suffix import Suffix
from omnitide.migration import MigrationPlan
from omnitide.pages import PageTable, Slots
from omnitide.retention import Fates
from omnitide.units import UnitKind


class Layout(Protocol):
    """Places cells in the page table and plans migrations."""

    name: str
    simulated: bool  # for comparison only: holes are lost to it, so no bounded pool can serve it
    accept: str | None  # the rule for its moves unless another is chosen; None: it makes none

    def place(self, table: PageTable, survivors: Fates, kind: UnitKind) -> Slots:
        """Take slots for the cells of a new unit. Changes `table`.

        Args:
            survivors: What is expected of the cells once the unit is old, (num_tokens,).
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


class Committing(Layout, Protocol):
    """A layout for comparison that commits memory as it needs it, where others have a pool."""

    def committed_pages(self, table: PageTable) -> int:
        """Pages of physical memory that the table takes."""
        ...


def committed_pages(layout: Layout, table: PageTable) -> int:
    """Pages of physical memory behind a table: the whole pool, unless the layout commits less."""
    if hasattr(layout, "committed_pages"):
        return cast(Committing, layout).committed_pages(table)
    return table.num_pages


LAYOUTS: dict[str, type[Layout]] = {
    "predictive": Predictive,
    "paper": Paper,
    "native": Native,
    "eager": Eager,
    "suffix": Suffix,
    "paged": Paged,
    "contiguous": Contiguous,
}


def make_layout(name: str, span_pages: int = SPAN_PAGES) -> Layout:
    """A layout by name.

    Args:
        name: A key of `LAYOUTS`.
        span_pages: Of the ordered suffix: pages by which a packing must shorten the span.

    Raises:
        ConfigError: No layout has that name, or `span_pages` is below 1.
    """
    if name not in LAYOUTS:
        raise ConfigError(f"[layout] expected one of {', '.join(LAYOUTS)}; got {name!r}")
    if name == Suffix.name:
        return Suffix(span_pages)
    return LAYOUTS[name]()


def check_servable(name: str) -> None:
    """Refuse a layout that a session's bounded pools can't serve.

    Raises:
        ConfigError: The layout is unknown, or is there for comparison in simulations only.
    """
    if make_layout(name).simulated:
        served = [other for other, layout in LAYOUTS.items() if not layout.simulated]
        raise ConfigError(
            f"[layout] {name!r} never fills a hole, so bounded pools can't serve it; "
            f"take one of {', '.join(served)}, or compare it with `omnitide simulate`"
        )
