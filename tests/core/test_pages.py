"""The page table: rings, holes, refusals, and that the integrity check sees each kind of damage."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnitide.errors import CapacityError, IntegrityError
from omnitide.history import History
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE, PageClass, PageTable
from omnitide.units import Cells, UnitBuilder, UnitKind

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)
SELECTED, RECENT = PageClass.SELECTED_HISTORY, PageClass.RECENT_CONTEXT


def slots(*ranges: tuple[int, int]) -> np.ndarray:
    return np.concatenate([np.arange(a, b, dtype=np.int32) for a, b in ranges])


def frozen(table: PageTable) -> tuple[bytes, bytes, dict[PageClass, tuple[int, int]]]:
    return table.live.tobytes(), table.page_class.tobytes(), dict(table.cursors)


def test_tiles_divide_pages() -> None:
    assert PAGE_SIZE == 64
    assert SUBBLOCK_SIZE == 32


@SETTINGS
@given(live=st.sets(st.integers(0, 5 * PAGE_SIZE - 1), max_size=40))
def test_counts_are_recounts(live: set[int]) -> None:
    table = PageTable(5)
    table.take(np.array(sorted(live), np.int32), RECENT)
    assert table.num_pages == 5
    assert table.num_live == len(live)
    assert table.num_free == 5 * PAGE_SIZE - len(live)
    assert table.active_pages == len({s // 64 for s in live})
    assert table.active_subblocks == len({s // 32 for s in live})
    assert table.physical_span == max((64 * (s // 64 + 1) for s in live), default=0)
    assert table.occupancy().tolist() == [sum(s // 64 == p for s in live) for p in range(5)]
    assert np.flatnonzero(table.rows(3)).tolist() == sorted(s - 192 for s in live if s // 64 == 3)


def test_a_ring_goes_on_where_it_stopped_and_never_fills_a_hole() -> None:
    table = PageTable(4)
    assert table.ring(70, RECENT).tolist() == list(range(70))
    assert table.ring(3, SELECTED).tolist() == [128, 129, 130]
    table.release(slots((0, 10), (65, 67)))
    assert table.ring(60, RECENT).tolist() == [*range(70, 128), 192, 193]
    assert table.ring(1, SELECTED).tolist() == [131]
    assert table.page_class.tolist() == [RECENT, RECENT, SELECTED, RECENT]


def test_a_ring_begins_a_new_page_once_its_own_was_emptied() -> None:
    table = PageTable(3)
    table.ring(3, SELECTED)
    table.ring(5, RECENT)
    table.release(slots((64, 69)))
    assert table.ring(2, RECENT).tolist() == [64, 65]
    table.release(slots((64, 66)))
    assert table.ring(1, SELECTED).tolist() == [3]
    assert table.page_class.tolist() == [SELECTED, 0, 0]


def test_a_ring_takes_holes_when_no_page_is_free_own_class_first() -> None:
    table = PageTable(3)
    table.ring(64, SELECTED)
    table.ring(128, RECENT)
    table.release(slots((3, 5), (190, 192), (70, 71)))
    assert table.ring(4, RECENT).tolist() == [70, 190, 191, 3]
    assert table.num_free == 1
    assert table.page_class.tolist() == [SELECTED, RECENT, RECENT]


def test_holes_take_own_pages_then_free_ones_then_any() -> None:
    table = PageTable(4)
    table.take(slots((0, 63)), SELECTED)
    table.take(slots((128, 190)), RECENT)
    table.take(slots((192, 256)), RECENT)
    assert table.holes(3, RECENT).tolist() == [190, 191, 64]
    assert table.holes(64, SELECTED).tolist() == [63, *range(65, 128)]
    assert table.num_free == 0
    assert table.page_class.tolist() == [SELECTED, RECENT, RECENT, RECENT]


def test_first_free_takes_the_lowest_whatever_the_page() -> None:
    table = PageTable(3)
    table.take(slots((0, 2), (64, 66)), SELECTED)
    assert table.first_free(63).tolist() == [*range(2, 64), 66]
    table.first_free(62)
    assert table.page_class.tolist() == [SELECTED, SELECTED, PageClass.MIXED]


@pytest.mark.parametrize("take", ["ring", "holes", "first_free"])
def test_too_many_slots_are_refused_with_the_numbers(take: str) -> None:
    table = PageTable(20)
    table.ring(100, RECENT)
    before = frozen(table)
    arguments = (1181,) if take == "first_free" else (1181, SELECTED)
    with pytest.raises(CapacityError, match=r"\[pages\] 1,181 slots asked for, 1,180 are free"):
        getattr(table, take)(*arguments)
    assert frozen(table) == before
    arguments = (1180, *arguments[1:])
    assert sorted(getattr(table, take)(*arguments).tolist()) == list(range(100, 1280))


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 128])
def test_every_count_is_given_whole(count: int) -> None:
    table = PageTable(4)
    for total in (count, 2 * count if 2 * count <= 256 else count):
        more = table.ring(total - table.num_live, RECENT)
        assert len(np.unique(more)) == len(more)
        assert more.dtype == np.int32
        assert table.num_live == total


@pytest.mark.parametrize("taker", ["first_free", "take", "holes"])
def test_a_ring_forgets_its_place_when_others_take_the_rows(taker: str) -> None:
    table = PageTable(3)
    table.ring(10, RECENT)
    if taker == "first_free":
        table.first_free(2)
    elif taker == "take":
        table.take(slots((10, 12)), RECENT)
    else:
        table.holes(2, RECENT)
    assert table.ring(2, RECENT).tolist() == [64, 65]


def test_taking_a_live_slot_is_a_bug() -> None:
    table = PageTable(1)
    table.take(slots((3, 6)), RECENT)
    with pytest.raises(IntegrityError, match=r"\[take\] 2 slots are live already"):
        table.take(slots((4, 8)), RECENT)


@pytest.mark.parametrize("lost", [[9], [3, 9], [3, 3]], ids=["free", "one free", "twice"])
def test_releasing_what_is_not_there_is_a_bug(lost: list[int]) -> None:
    table = PageTable(1)
    table.take(slots((3, 6)), RECENT)
    with pytest.raises(IntegrityError, match=r"\[release\] slots must be live and distinct"):
        table.release(np.array(lost, np.int32))
    assert np.flatnonzero(table.live).tolist() == [3, 4, 5]


def test_release_frees_pages() -> None:
    table = PageTable(2)
    table.take(slots((0, 64), (70, 72)), RECENT)
    table.release(slots((0, 64), (70, 71)))
    assert table.page_class.tolist() == [PageClass.FREE, RECENT]
    table.release(slots((71, 72)))
    assert table.page_class.tolist() == [0, 0]
    assert table.cursors == {}
    assert (table.active_pages, table.active_subblocks, table.physical_span) == (0, 0, 0)


def test_growing_keeps_contents_and_never_shrinks() -> None:
    table = PageTable(2)
    table.ring(70, RECENT)
    live, cursors = table.live.copy(), dict(table.cursors)
    table.grow(5)
    assert table.num_pages == 5
    assert table.live[:128].tolist() == live.tolist()
    assert not table.live[128:].any()
    assert table.page_class.tolist() == [RECENT, RECENT, 0, 0, 0]
    assert table.cursors == cursors
    assert table.ring(60, RECENT).tolist() == [*range(70, 128), 128, 129]
    table.grow(3)
    assert table.num_pages == 5


def test_lanes_of_one_class_are_rings_of_their_own() -> None:
    table = PageTable(4)
    assert table.ring(3, SELECTED).tolist() == [0, 1, 2]
    assert table.ring(2, SELECTED, lane=1).tolist() == [64, 65]
    assert table.ring(2, SELECTED).tolist() == [3, 4]
    assert table.ring(63, SELECTED, lane=1).tolist() == [*range(66, 128), 128]
    assert table.page_class.tolist() == [SELECTED, SELECTED, SELECTED, 0]


def test_a_copy_is_independent() -> None:
    table = PageTable(3)
    table.ring(70, RECENT)
    before = frozen(table)
    copy = table.copy()
    assert frozen(copy) == before
    copy.cursors[SELECTED, 0] = (2, 0)
    copy.ring(30, RECENT)
    copy.release(slots((0, 70)))
    assert frozen(table) == before


def whole() -> tuple[PageTable, Cells]:
    """Three pages: 40 recent cells, 5 selected ones, nothing; and the cells that lie there."""
    table = PageTable(3)
    places = [table.ring(40, RECENT), table.ring(5, SELECTED)]
    unit = UnitBuilder().text(np.arange(45)).build(UnitKind.TEXT)
    return table, History().append(unit, np.concatenate(places)).cells


def duplicate_slot(table: PageTable, cells: Cells) -> None:
    cells["slot"][7] = cells["slot"][8]


def dead_slot(table: PageTable, cells: Cells) -> None:
    table.live[[7, 50]] = [False, True]


def stray_live_slot(table: PageTable, cells: Cells) -> None:
    table.live[50] = True


def lost_live_slot(table: PageTable, cells: Cells) -> None:
    table.live[7] = False


def slot_below(table: PageTable, cells: Cells) -> None:
    cells["slot"][7] = -1


def slot_above(table: PageTable, cells: Cells) -> None:
    cells["slot"][7] = 192


def used_page_is_free(table: PageTable, cells: Cells) -> None:
    table.page_class[1] = PageClass.FREE


def empty_page_has_a_class(table: PageTable, cells: Cells) -> None:
    table.page_class[2] = RECENT


def cursor_too_low(table: PageTable, cells: Cells) -> None:
    table.cursors[RECENT, 0] = (0, 39)


def cursor_in_another_class(table: PageTable, cells: Cells) -> None:
    table.cursors[RECENT, 0] = (1, 5)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (duplicate_slot, "45 cells, 44 distinct slots, 45 live"),
        (dead_slot, "45 cells, 45 distinct slots, 45 live"),
        (stray_live_slot, "45 cells, 45 distinct slots, 46 live"),
        (lost_live_slot, "45 cells, 45 distinct slots, 44 live"),
        (slot_below, r"slots must lie in \[0, 192\)"),
        (slot_above, r"slots must lie in \[0, 192\)"),
        (used_page_is_free, r"class contradicts contents of pages \[1\]"),
        (empty_page_has_a_class, r"class contradicts contents of pages \[2\]"),
        (cursor_too_low, "cursor of RECENT_CONTEXT, lane 0, is on a used row"),
        (cursor_in_another_class, "cursor of RECENT_CONTEXT, lane 0, is on a used row"),
    ],
)
def test_damage_is_seen(spoil: Callable[[PageTable, Cells], None], message: str) -> None:
    table, cells = whole()
    table.check_integrity(cells)
    spoil(table, cells)
    with pytest.raises(IntegrityError, match=rf"\[pages\] {message}"):
        table.check_integrity(cells)
