"""Migration plans against a sequential greedy that follows the paper word by word.

Paper section 6.2: candidates are visited in physical order and assigned to earlier empty slots; a
destination page is empty or of the same class; full pages stay; a plan counts only if active pages
or active subblocks fall.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnitide.history import History
from omnitide.migration import (
    Footprint,
    MigrationPlan,
    cut_cells,
    plan_tile_mode,
    rounds,
    simulate,
)
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE, PageClass, PageTable
from omnitide.units import CELL, UnitBuilder, UnitKind

SETTINGS = settings(max_examples=120, deadline=None, derandomize=True)
CLASSES = [PageClass.MUST_KEEP, PageClass.SELECTED_HISTORY, PageClass.RECENT_CONTEXT]


@st.composite
def tables(draw: st.DrawFn) -> PageTable:
    """A table of a few pages, each empty, sparse, dense or full, of any class."""
    table = PageTable(draw(st.integers(1, 9)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    for page in range(table.num_pages):
        share = draw(st.sampled_from([0.0, 0.02, 0.2, 0.5, 0.9, 1.0]))
        rows = page * PAGE_SIZE + np.flatnonzero(rng.random(PAGE_SIZE) < share)
        table.take(rows.astype(np.int32), draw(st.sampled_from(CLASSES)))
    return table


def recount(live: set[int]) -> Footprint:
    """The footprint of a set of live slots."""
    return Footprint(
        len({s // PAGE_SIZE for s in live}),
        len({s // SUBBLOCK_SIZE for s in live}),
        max((s // PAGE_SIZE + 1 for s in live), default=0) * PAGE_SIZE,
    )


def slow_tile_mode(table: PageTable, candidates: list[int]) -> list[tuple[int, int]]:
    """The moves of the paper's tile mode, before the question whether they pay."""
    live = {s for s, flag in enumerate(table.live.tolist()) if flag}
    owner = table.page_class.tolist()
    taken: set[int] = set()
    moves = []
    for source in sorted(candidates):
        page = source // PAGE_SIZE
        if all(page * PAGE_SIZE + r in live for r in range(PAGE_SIZE)):
            continue
        for slot in range(source):
            home = slot // PAGE_SIZE
            if slot in live or slot in taken:
                continue
            if owner[home] not in (PageClass.FREE, table.page_class[page]):
                continue
            owner[home] = table.page_class[page]
            taken.add(slot)
            moves.append((source, slot))
            break
    return moves


@SETTINGS
@given(data=st.data())
def test_tile_mode_is_the_greedy_of_the_paper(data: st.DataObject) -> None:
    table = data.draw(tables())
    live = np.flatnonzero(table.live).tolist()
    share = data.draw(st.sampled_from([0.1, 0.5, 1.0]))
    seed = data.draw(st.integers(0, 2**32 - 1))
    chosen = np.random.default_rng(seed).random(len(live)) < share
    candidates = [s for s, c in zip(live, chosen, strict=True) if c]
    frozen = table.live.tobytes(), table.page_class.tobytes()

    moves = slow_tile_mode(table, candidates)
    after = (set(live) - {s for s, _ in moves}) | {d for _, d in moves}
    was, will = recount(set(live)), recount(after)
    pays = will.active_pages < was.active_pages or will.active_subblocks < was.active_subblocks

    plan = plan_tile_mode(table, np.array(candidates, np.int32))
    assert (table.live.tobytes(), table.page_class.tobytes()) == frozen
    assert (plan is not None) == pays
    if plan is not None:
        plan.validate(table)
        assert list(zip(plan.source, plan.destination, strict=True)) == moves
        assert (plan.before, plan.after) == (was, will)
        # What a committed history refers to is never overwritten.
        assert not table.live[list(plan.destination)].any()


def test_cut_cells_are_the_cells_of_shortened_units() -> None:
    history = History()
    for first in (100, 0, 50):
        unit = UnitBuilder().text(np.arange(4)).build(UnitKind.MEDIA)
        history = history.append(unit, first + np.arange(4))
    assert cut_cells(history).tolist() == []
    keep = np.ones(12, bool)
    keep[[1, 9]] = False
    assert cut_cells(history.keep(keep)).tolist() == [50, 52, 53, 100, 102, 103]


@SETTINGS
@given(data=st.data())
def test_any_valid_plan_loses_nothing(data: st.DataObject) -> None:
    """Gather, then scatter, on a dict of payloads; the table and the history follow."""
    table = data.draw(tables())
    live = np.flatnonzero(table.live)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    cells = np.zeros(len(live), CELL)
    cells["order"] = np.arange(len(live))
    cells["unit"] = np.sort(rng.integers(0, 5, len(live)))
    cells["position"] = rng.integers(0, 99, (len(live), 3))
    cells["slot"] = rng.permutation(live)
    history = History(cells=cells)
    source = rng.permutation(live)[: rng.integers(0, len(live) + 1)].astype(np.int32)
    empty = np.flatnonzero(~table.live)
    destination = rng.permutation(np.concatenate([source, empty]))[: len(source)].astype(np.int32)

    plan = simulate(table, source, destination)
    plan.validate(table)
    assert plan.rows_moved == len(source)
    assert plan.before == recount(set(live.tolist()))
    payload = {int(s): int(o) for s, o in zip(cells["slot"], cells["order"], strict=True)}
    scratch = [payload.pop(s) for s in plan.source]
    payload.update(zip(plan.destination, scratch, strict=True))
    assert plan.after == recount(set(payload))
    assert sorted(payload.values()) == list(range(len(live)))

    moved = history.move(source, destination)
    table.move(source, destination)
    table.check_integrity(moved.cells)
    assert dict(zip(moved.cells["slot"].tolist(), moved.cells["order"].tolist(), strict=True)) == (
        payload
    )
    for name in ("order", "unit", "position"):
        assert (moved.cells[name] == cells[name]).all()


def test_moved_cells_keep_their_class() -> None:
    table = PageTable(4)
    table.take(np.array([128, 129], np.int32), PageClass.SELECTED_HISTORY)
    table.take(np.array([192], np.int32), PageClass.RECENT_CONTEXT)
    plan = plan_tile_mode(table, np.array([128, 129, 192], np.int32))
    assert plan is None  # each page is one subblock before and after

    table.take(np.array([160], np.int32), PageClass.SELECTED_HISTORY)
    plan = plan_tile_mode(table, np.array([128, 129, 160, 192], np.int32))
    assert plan is not None
    assert dict(zip(plan.source, plan.destination, strict=True)) == {
        128: 0,
        129: 1,
        160: 2,
        192: 64,
    }
    assert (plan.before, plan.after) == (Footprint(2, 3, 256), Footprint(2, 2, 128))
    table.move(*plan.arrays())
    assert table.page_class.tolist() == [2, 3, 0, 0]


def test_filling_holes_without_gain_is_refused() -> None:
    table = PageTable(2)
    table.take(np.array([0, 2, 64, 65], np.int32), PageClass.RECENT_CONTEXT)
    assert plan_tile_mode(table, np.array([65], np.int32)) is None
    plan = plan_tile_mode(table, np.array([64, 65], np.int32))
    assert plan is not None
    assert plan.destination == (1, 3)


@pytest.mark.parametrize(
    ("source", "destination", "message"),
    [
        ((0, 1), (5,), "2 sources, 1 destinations"),
        ((0, 0), (5, 6), "a slot is named twice"),
        ((0, 1), (5, 5), "a slot is named twice"),
        ((-1,), (5,), r"a source lies outside \[0, 128\)"),
        ((128,), (5,), r"a source lies outside \[0, 128\)"),
        ((0,), (-1,), r"a destination lies outside \[0, 128\)"),
        ((0,), (128,), r"a destination lies outside \[0, 128\)"),
        ((4,), (5,), "a source is not live"),
        ((0, 1), (2, 3), "2 destinations hold live cells"),
        ((0, 1), (1, 2), "1 destinations hold live cells"),
    ],
)
def test_bad_plans_are_refused(source: Any, destination: Any, message: str) -> None:
    table = PageTable(2)
    table.take(np.arange(4, dtype=np.int32), PageClass.RECENT_CONTEXT)
    footprint = Footprint.of(table)
    plan = MigrationPlan(source, destination, footprint, footprint)
    with pytest.raises(ValueError, match=rf"\[migration\] {message}"):
        plan.validate(table)


@pytest.mark.parametrize(
    ("pages", "subblocks", "span", "smaller"),
    [
        (4, 8, 640, False),
        (3, 8, 640, True),
        (4, 7, 640, True),
        (4, 8, 64, False),
        (5, 7, 640, True),
    ],
)
def test_a_footprint_is_smaller_if_pages_or_subblocks_fall(
    pages: int, subblocks: int, span: int, smaller: bool
) -> None:
    assert Footprint(pages, subblocks, span).is_smaller(Footprint(4, 8, 640)) is smaller


def carried_out(table: PageTable, plan: MigrationPlan) -> tuple[dict[int, int], int]:
    """Where each live slot's payload ends, batch by batch, and the number of batches."""
    payload = {slot: slot for slot in np.flatnonzero(table.live).tolist()}
    batches = rounds(plan, table)
    for source, destination in batches:
        assert not set(destination.tolist()) & set(payload), "a live row was overwritten"
        scratch = [payload.pop(slot) for slot in source.tolist()]
        payload.update(zip(destination.tolist(), scratch, strict=True))
    return {payload[slot]: slot for slot in payload}, len(batches)


def test_a_shift_by_one_takes_few_rounds() -> None:
    """Each of 299 rows waits for the one before; 84 slots are free to park in.

    One by one it would take 299 rounds. Parking takes two for each 84 rows, and up to one more for
    rows whose place was still held when theirs came up.
    """
    table = PageTable(6)
    table.take(np.arange(1, 300, dtype=np.int32), PageClass.MIXED)
    source = np.arange(1, 300, dtype=np.int32)
    ends, count = carried_out(table, simulate(table, source, source - 1))
    assert ends == {slot: slot - 1 for slot in range(1, 300)}
    assert count <= 3 * -(-299 // 84)


def test_cycles_need_one_free_slot() -> None:
    table = PageTable(1)
    table.take(np.arange(63, dtype=np.int32), PageClass.MIXED)
    source = np.arange(63, dtype=np.int32)
    ends, _ = carried_out(table, simulate(table, source, np.roll(source, 1)))
    assert ends == {slot: (slot - 1) % 63 for slot in range(63)}
    table.take(np.array([63], np.int32), PageClass.MIXED)
    with pytest.raises(ValueError, match="a cycle of moves needs a free slot"):
        rounds(simulate(table, source[:2], source[1::-1]), table)


def test_moves_to_free_slots_are_one_round() -> None:
    table = PageTable(2)
    table.take(np.arange(64, 70, dtype=np.int32), PageClass.MIXED)
    plan = simulate(table, np.arange(64, 70, dtype=np.int32), np.arange(6, dtype=np.int32))
    assert carried_out(table, plan)[1] == 1
    assert rounds(simulate(table, plan.arrays()[0][:0], plan.arrays()[1][:0]), table) == []
