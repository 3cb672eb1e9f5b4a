"""Predictive layout: what will survive is known when it is written, so it is written apart.

Retention is structural: boundaries, sinks and text of a new unit are expected to stay, the rest to
go. Each fate fills its own ring of pages in stream order. Units leave oldest
first, so eviction empties whole pages and nearly nothing is left to move. Units of text that will
outlast the cut ones lie behind the system prefix, where they disturb no ring.
"""

from __future__ import annotations

import numpy as np

from omnitide.history import History
from omnitide.migration import MigrationPlan, cut_cells, plan_tile_mode, simulate
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE, PageClass, PageTable, Slots
from omnitide.retention import Fate, Fates
from omnitide.runs import run_lengths
from omnitide.units import UnitKind

FEW = 24
"""Strays are gathered from subblocks that hold at most this many cells."""

# Looked up once: on Python 3.11 a look-up in an enumeration costs as much as a small array.
_LEAVES, _STAYS, _LASTS, _MAY_STAY = (int(fate) for fate in Fate)
_SYSTEM = UnitKind.SYSTEM
_MUST_KEEP, _SELECTED = PageClass.MUST_KEEP, PageClass.SELECTED_HISTORY
_RECENT = PageClass.RECENT_CONTEXT


class Predictive:
    """Rings of pages by expected fate; tile mode only for what prediction did not foresee.

    Attributes:
        slack: Migration is considered once active subblocks could hold this many times the live
            cells.
    """

    name = "predictive"
    simulated = False
    accept: str | None = "cost"
    slack = 1.25

    def place(self, table: PageTable, survivors: Fates, kind: UnitKind) -> Slots:
        """Expected survivors into selected-history, the rest into recent-context."""
        if kind == _SYSTEM:
            return table.holes(len(survivors), _MUST_KEEP)
        # Checked for all rings at once: nothing is taken unless all fits.
        table.check_free(len(survivors))
        slots = np.empty(len(survivors), np.int32)
        lasting, staying, maybe, leaving = (
            (survivors == fate).nonzero()[0] for fate in (_LASTS, _STAYS, _MAY_STAY, _LEAVES)
        )
        if len(lasting):
            slots[lasting] = table.holes(len(lasting), _MUST_KEEP)
        if len(staying):
            spare = table.spare(_MUST_KEEP)[: len(staying)]
            if len(spare):
                table.take(spare, _MUST_KEEP)
                slots[staying[: len(spare)]] = spare
            rest = staying[len(spare) :]
            slots[rest] = table.ring(len(rest), _SELECTED)
        if len(maybe):
            slots[maybe] = table.ring(len(maybe), _SELECTED, 1)
        if len(leaving):
            slots[leaving] = table.ring(len(leaving), _RECENT)
        return slots

    def plan(self, table: PageTable, history: History) -> MigrationPlan | None:
        """Strays to the pages of what lasts; tile mode, if the tiles have become sparse."""
        if table.active_subblocks * SUBBLOCK_SIZE > self.slack * len(history):
            return plan_tile_mode(table, cut_cells(history))
        strays = _strays(table, history)
        if len(strays) == 0 or len(strays) > table.num_free:
            return None
        after = table.copy()
        destination = after.holes(len(strays), _MUST_KEEP)
        plan = simulate(table, strays, destination)
        return plan if plan.after.is_smaller(plan.before) else None

    def settle(self, table: PageTable, history: History) -> None:
        """Classes were right from the start."""


def _strays(table: PageTable, history: History) -> Slots:
    """Slots of cells that were foreseen to leave earlier than they do, where few hold a subblock.

    They are what lies outside must-keep pages of whole units older than a cut one, and what older
    units still have in recent-context. Only subblocks that hold nothing else count.
    """
    starts = history.unit_starts()
    lengths = run_lengths(starts, len(history))
    whole = lengths == np.array([u.length for u in history.records()])
    cut = (~whole).nonzero()[0]
    if len(cut) == 0:
        return np.empty(0, np.int32)
    older = slice(0, int(cut[-1]) + 1)
    slots = history.cells["slot"][: int(lengths[older].sum())]
    home = table.page_class[slots // PAGE_SIZE]
    lasting = whole[older].repeat(lengths[older]) & (home != int(_MUST_KEEP))
    strays: Slots = slots[lasting | (home == int(_RECENT))]
    if len(strays) == 0:
        return strays
    blocks, counts = np.unique(strays // SUBBLOCK_SIZE, return_counts=True)
    live = np.count_nonzero(table.live.reshape(-1, SUBBLOCK_SIZE)[blocks], axis=1)
    alone = blocks[(counts == live) & (counts <= FEW)]
    return np.sort(strays[np.isin(strays // SUBBLOCK_SIZE, alone)])
