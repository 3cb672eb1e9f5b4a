"""PagedAttention's allocation, for comparison: pages are taken as the history grows.

Cells fill pages in stream order. A page is given back when all its cells have left, and only then;
a hole in it is never used again, because block tables map whole pages of consecutive tokens
(Kwon et al. 2023). One cell that stays holds its page.
"""

from __future__ import annotations

from omnitide.errors import CapacityError
from omnitide.history import History
from omnitide.migration import MigrationPlan
from omnitide.pages import PAGE_SIZE, PageClass, PageTable, Slots
from omnitide.retention import Fates
from omnitide.units import UnitKind


class Paged:
    """The next rows of the last page, then free pages. Holes are lost, so bounded pools run out."""

    name = "paged"
    simulated = True
    accept: str | None = None

    def place(self, table: PageTable, survivors: Fates, kind: UnitKind) -> Slots:
        """Rows behind the last cell of the stream, then the lowest free pages.

        Raises:
            CapacityError: Too few pages are free; nothing was taken.
        """
        count = len(survivors)
        _, row = table.cursors.get((PageClass.MIXED, 0), (-1, PAGE_SIZE))
        room = PAGE_SIZE - row + PAGE_SIZE * (table.num_pages - table.active_pages)
        if count > room:
            raise CapacityError(f"[pages] {count:,} slots asked for, whole pages leave {room:,}")
        return table.ring(count, PageClass.MIXED)

    def plan(self, table: PageTable, history: History) -> MigrationPlan | None:
        """Nothing moves."""
        return None

    def settle(self, table: PageTable, history: History) -> None:
        """Pages have no class here."""

    def committed_pages(self, table: PageTable) -> int:
        """Pages of physical memory: those that hold a cell."""
        return table.active_pages
