"""vAttention's allocation, for comparison: one contiguous virtual span that grows at its end.

Virtual space is reserved once and physical memory is committed in chunks as the span grows (Prabhu
et al. 2025). K and V must stay contiguous in virtual space, so a new cell always goes behind the
last one: a hole is never filled, even where a whole chunk of it could give its memory back. Slots
here are virtual. The span that attention walks is all that was ever appended, save what has left at
the very end, and committed memory is that span rounded up to a chunk.
"""

from __future__ import annotations

import numpy as np

from omnitide.errors import CapacityError
from omnitide.history import History
from omnitide.migration import MigrationPlan
from omnitide.pages import PAGE_SIZE, PageClass, PageTable, Slots
from omnitide.retention import Fates
from omnitide.units import UnitKind

CHUNK_PAGES = 4
"""Pages of one physical chunk. vAttention commits 64 KiB to 2 MiB; 256 tokens of one layer's K at
8 KV heads of 128 in float16 are 512 KiB."""


class Contiguous:
    """Slots behind the last live one. Nothing in between is used again."""

    name = "contiguous"
    simulated = True
    accept: str | None = None

    def place(self, table: PageTable, survivors: Fates, kind: UnitKind) -> Slots:
        """The slots behind the highest live one.

        Raises:
            CapacityError: The virtual span ends; nothing was taken.
        """
        count = len(survivors)
        live = np.flatnonzero(table.live)
        first = int(live[-1]) + 1 if len(live) else 0
        if count > len(table.live) - first:
            raise CapacityError(
                f"[pages] {count:,} slots asked for, the span leaves {len(table.live) - first:,}"
            )
        slots = np.arange(first, first + count, dtype=np.int32)
        table.take(slots, PageClass.MIXED)
        return slots

    def plan(self, table: PageTable, history: History) -> MigrationPlan | None:
        """Nothing moves."""
        return None

    def settle(self, table: PageTable, history: History) -> None:
        """Pages have no class here."""

    def committed_pages(self, table: PageTable) -> int:
        """Pages of physical memory behind the span: whole chunks up to its end."""
        chunk = CHUNK_PAGES * PAGE_SIZE
        return -(-table.physical_span // chunk) * CHUNK_PAGES
