"""The page table: which slots hold a live cell, and which class each page belongs to.

Invariant: a page is `FREE` exactly when none of its slots is live.

A table is a value: change a copy, and let the owner take it when all else has gone well.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from omnitide.errors import CapacityError, IntegrityError
from omnitide.units import Cells

PAGE_SIZE = 64
"""Slots of a page: one key tile of the prefill kernels."""

SUBBLOCK_SIZE = 32
"""Slots of a subblock: one key tile of the decode kernels, one bit each in a 32-bit mask."""

Slots = NDArray[np.int32]


class PageClass(IntEnum):
    """Allocation class of a page (paper section 6.1)."""

    FREE = 0
    MUST_KEEP = 1
    SELECTED_HISTORY = 2
    RECENT_CONTEXT = 3
    MIXED = 4  # layouts that don't sort by retention


# A plain number: to compare an array with a member of an enumeration takes five times as long.
_FREE = int(PageClass.FREE)


class PageTable:
    """Slots of a pool of `num_pages` pages."""

    def __init__(self, num_pages: int) -> None:
        self.live: NDArray[np.bool_] = np.zeros(num_pages * PAGE_SIZE, np.bool_)
        self.page_class: NDArray[np.uint8] = np.zeros(num_pages, np.uint8)
        # Of each ring, named by class and lane: the page being filled and its next row.
        self.cursors: dict[tuple[PageClass, int], tuple[int, int]] = {}

    @property
    def num_pages(self) -> int:
        """Pages of the pool, free or not."""
        return len(self.page_class)

    @property
    def num_live(self) -> int:
        """Live cells."""
        return int(np.count_nonzero(self.live))

    @property
    def num_free(self) -> int:
        """Slots that hold nothing."""
        return len(self.live) - self.num_live

    @property
    def active_pages(self) -> int:
        """Pages with at least one live cell."""
        return int(np.count_nonzero(self.page_class))

    @property
    def active_subblocks(self) -> int:
        """Subblocks with at least one live cell."""
        return int(np.count_nonzero(_any(self.live, SUBBLOCK_SIZE)))

    @property
    def physical_span(self) -> int:
        """Highest live slot + 1, rounded up to a page."""
        pages = np.flatnonzero(self.page_class)
        return 0 if len(pages) == 0 else (int(pages[-1]) + 1) * PAGE_SIZE

    def copy(self) -> PageTable:
        """An independent copy."""
        other = PageTable.__new__(PageTable)
        other.live = self.live.copy()
        other.page_class = self.page_class.copy()
        other.cursors = dict(self.cursors)
        return other

    def grow(self, num_pages: int) -> None:
        """Add free pages at the end until there are `num_pages`. Changes self."""
        more = num_pages - self.num_pages
        if more > 0:
            self.live = np.concatenate([self.live, np.zeros(more * PAGE_SIZE, np.bool_)])
            self.page_class = np.concatenate([self.page_class, np.zeros(more, np.uint8)])

    def rows(self, page: int) -> NDArray[np.bool_]:
        """Live flags of one page, a view of shape (PAGE_SIZE,)."""
        return self.live[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]

    def occupancy(self) -> NDArray[np.int64]:
        """Live cells of each page, shape (num_pages,)."""
        counts: NDArray[np.int64] = np.count_nonzero(self.live.reshape(-1, PAGE_SIZE), axis=1)
        return counts

    def take(self, slots: Slots, page_class: PageClass) -> None:
        """Mark free slots live; their free pages get `page_class`. Changes self.

        A ring whose next rows are taken forgets its place.

        Raises:
            IntegrityError: A slot is live already.
        """
        if len(slots) == 0:
            return
        if self.live[slots].any():
            raise IntegrityError(f"[take] {int(self.live[slots].sum())} slots are live already")
        self.live[slots] = True
        pages = slots // PAGE_SIZE
        self.page_class[pages[self.page_class[pages] == _FREE]] = int(page_class)
        self._drop_used_cursors()

    def release(self, slots: Slots) -> None:
        """Mark live slots free; pages left empty become `FREE`. Changes self.

        Raises:
            IntegrityError: A slot is free already, or given twice.
        """
        before = self.num_live
        were = self.live[slots]
        self.live[slots] = False
        if before - self.num_live != len(slots):
            self.live[slots] = were
            raise IntegrityError("[release] slots must be live and distinct")
        self._free_empty_pages()

    def check_free(self, count: int) -> None:
        """Refuse to take more slots than are free.

        Raises:
            CapacityError: Fewer than `count` slots are free.
        """
        if count > self.num_free:
            raise CapacityError(f"[pages] {count:,} slots asked for, {self.num_free:,} are free")

    def ring(self, count: int, page_class: PageClass, lane: int = 0) -> Slots:
        """Take `count` slots after the ring's cursor, in stream order. Changes self.

        A class may have several rings (lanes), for cells that will leave in different orders.
        A ring never fills a hole, so that units that leave oldest first leave whole pages behind.
        Only when no free page is left do the holes serve: capacity is never lost to the layout.

        Raises:
            CapacityError: Fewer than `count` slots are free.
        """
        if count == 0:
            return np.empty(0, np.int32)
        self.check_free(count)
        page, row = self.cursors.get((page_class, lane), (-1, PAGE_SIZE))
        first = page * PAGE_SIZE + row
        slots = np.arange(first, first + min(count, PAGE_SIZE - row), dtype=np.int32)
        if len(slots) < count:
            needed = -(-(count - len(slots)) // PAGE_SIZE)
            pages = (self.page_class == _FREE).nonzero()[0][:needed]
            self.page_class[pages] = int(page_class)
            rows = (pages[:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)).reshape(-1)
            slots = np.concatenate([slots, rows[: count - len(slots)]], dtype=np.int32)
        self.live[slots] = True  # free by choice, and no other ring's next rows
        if len(slots):
            last = int(slots[-1])
            self.cursors[page_class, lane] = (last // PAGE_SIZE, last % PAGE_SIZE + 1)
        if len(slots) < count:
            slots = np.concatenate([slots, self.holes(count - len(slots), page_class)])
        return slots

    def holes(self, count: int, page_class: PageClass) -> Slots:
        """Take the lowest free slots: pages of the class first, then free pages, then any.

        Changes self.

        Raises:
            CapacityError: Fewer than `count` slots are free.
        """
        if count == 0:
            return np.empty(0, np.int32)
        self.check_free(count)
        free = np.flatnonzero(~self.live)
        classes = self.page_class[free // PAGE_SIZE]
        rank = np.where(classes == int(page_class), 0, np.where(classes == _FREE, 1, 2))
        slots = free[np.argsort(rank, kind="stable")[:count]].astype(np.int32)
        self.take(slots, page_class)
        return slots

    def first_free(self, count: int) -> Slots:
        """Take the lowest free slots, whatever the page. Changes self.

        Raises:
            CapacityError: Fewer than `count` slots are free.
        """
        self.check_free(count)
        slots = np.flatnonzero(~self.live)[:count].astype(np.int32)
        self.take(slots, PageClass.MIXED)
        return slots

    def spare(self, page_class: PageClass) -> Slots:
        """Free slots of subblocks that are walked anyway, in pages of a class, rising."""
        pages = (self.page_class == int(page_class)).nonzero()[0]
        live = self.live.reshape(-1, PAGE_SIZE)[pages].reshape(-1)
        spare = (_any(live, SUBBLOCK_SIZE).repeat(SUBBLOCK_SIZE) & ~live).nonzero()[0]
        slots: Slots = pages[spare // PAGE_SIZE] * PAGE_SIZE + spare % PAGE_SIZE
        return slots.astype(np.int32)

    def move(self, source: Slots, destination: Slots) -> None:
        """Account for cells moved from `source` to `destination`, pairwise. Changes self.

        A destination page that was free gets the class of the page its first cell came from.
        """
        classes = self.page_class[source // PAGE_SIZE]
        self.live[source] = False
        self.live[destination] = True
        pages, first = np.unique(destination // PAGE_SIZE, return_index=True)
        free = self.page_class[pages] == _FREE
        self.page_class[pages[free]] = classes[first[free]]
        self._free_empty_pages()
        self._drop_used_cursors()

    def check_integrity(self, cells: Cells) -> None:
        """Compare with the history that lies in this table.

        Raises:
            IntegrityError: A cell without a slot, a slot with two cells, a live slot without a
                cell, a page whose class contradicts its contents, or a cursor on a used row.
        """
        slots = cells["slot"]
        if len(slots) and not (slots.min() >= 0 and slots.max() < len(self.live)):
            raise IntegrityError(f"[pages] slots must lie in [0, {len(self.live)})")
        distinct = len(np.unique(slots))
        if not (len(slots) == distinct == self.num_live) or not self.live[slots].all():
            raise IntegrityError(
                f"[pages] {len(slots)} cells, {distinct} distinct slots, {self.num_live} live"
            )
        empty = self.occupancy() == 0
        wrong = np.flatnonzero(empty != (self.page_class == _FREE))
        if len(wrong):
            raise IntegrityError(f"[pages] class contradicts contents of pages {wrong.tolist()}")
        for (page_class, lane), (page, row) in self.cursors.items():
            if self.page_class[page] != page_class or self.rows(page)[row:].any():
                raise IntegrityError(
                    f"[pages] cursor of {page_class.name}, lane {lane}, is on a used row"
                )

    def _free_empty_pages(self) -> None:
        self.page_class[~_any(self.live, PAGE_SIZE)] = _FREE
        self._drop_used_cursors()

    def _drop_used_cursors(self) -> None:
        self.cursors = {
            ring: (page, row)
            for ring, (page, row) in self.cursors.items()
            if self.page_class.item(page) == ring[0] and not np.count_nonzero(self.rows(page)[row:])
        }


def _any(live: NDArray[np.bool_], size: int) -> NDArray[np.bool_]:
    """Whether each run of `size` slots has a live one.

    Eight flags are read as one integer: a reduction over so short an axis takes ten times as long.
    """
    words = live.view(np.uint64).reshape(-1, size // 8)
    found = words[:, 0].copy()
    for column in range(1, size // 8):
        found |= words[:, column]
    active: NDArray[np.bool_] = found != 0
    return active
