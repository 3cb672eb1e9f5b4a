"""Ordered suffix: the paper's layout for kernels that walk the physical span (section 6.2).

After an eviction the shortest suffix of the cache is packed whose packing shortens the page-rounded
span by at least a given number of pages. What lies before it stays, and so does the order of what
is packed, so only a part of the history is copied.
"""

from __future__ import annotations

import numpy as np

from omnitide.config import SPAN_PAGES
from omnitide.errors import ConfigError
from omnitide.history import History
from omnitide.migration import MigrationPlan, simulate
from omnitide.pages import PAGE_SIZE, PageTable, Slots
from omnitide.retention import Fates
from omnitide.units import UnitKind


class Suffix:
    """The lowest free slots; packs a suffix once that shortens the span enough.

    Attributes:
        span_pages: Least pages by which the span must become shorter, at least 1.
    """

    name = "suffix"
    simulated = False
    accept: str | None = "cost"

    def __init__(self, span_pages: int = SPAN_PAGES) -> None:
        if span_pages < 1:
            raise ConfigError(f"[layout] span pages must be at least 1, got {span_pages}")
        self.span_pages = span_pages

    def place(self, table: PageTable, survivors: Fates, kind: UnitKind) -> Slots:
        """The lowest free slots."""
        return table.first_free(len(survivors))

    def plan(self, table: PageTable, history: History) -> MigrationPlan | None:
        """The moves of the shortest suffix that is worth packing, or None."""
        return plan_suffix(table, self.span_pages)

    def settle(self, table: PageTable, history: History) -> None:
        """Pages have no class here."""


def plan_suffix(table: PageTable, span_pages: int) -> MigrationPlan | None:
    """Pack the shortest suffix that shortens the span by `span_pages` pages, keeping its order.

    A suffix begins at a live cell; its cells go to the slots behind the live cell before it. Of all
    that meet the threshold the shortest moves the fewest rows, for each longer one packs it too.
    """
    live = np.flatnonzero(table.live).astype(np.int32)
    if len(live) == 0:
        return None
    # A suffix of cells i, i + 1, ... begins behind cell i - 1 (or at slot 0).
    begin = np.append(0, live[:-1] + 1)
    span = -(-(begin + len(live) - np.arange(len(live))) // PAGE_SIZE)
    enough = np.flatnonzero(table.physical_span // PAGE_SIZE - span >= span_pages)
    if len(enough) == 0:
        return None
    first = int(enough[-1])
    source = live[first:]
    destination = (begin[first] + np.arange(len(source))).astype(np.int32)
    moves = source != destination
    return simulate(table, source[moves], destination[moves])
