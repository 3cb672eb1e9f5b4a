"""Layouts: where cells go, what is promoted, and the goals on whole streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from omnitide.config import RetentionConfig
from omnitide.errors import CapacityError, ConfigError
from omnitide.history import History
from omnitide.layouts import LAYOUTS, committed_pages, make_layout
from omnitide.layouts.suffix import plan_suffix
from omnitide.migration import cut_cells, plan_tile_mode
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE, PageClass, PageTable
from omnitide.policies import make_policy
from omnitide.retention import Fate, foresee
from omnitide.units import Modality, Role, Unit, UnitBuilder, UnitKind

CONFIG = RetentionConfig(2500, 1800)
NUM_UNITS = 150


def qwen(rng: np.random.Generator) -> Unit:
    """Two seconds at 448 x 448 with sound: 566 tokens, 52 positions."""
    builder = UnitBuilder().markers([1, 2])
    pictures = [(t, r, q) for t in (0, 25) for r in range(16) for q in range(16)]
    builder.content(3, pictures, Modality.IMAGE, advances=False)
    builder.content(4, [(i, i, i) for i in range(50)], Modality.AUDIO).end_step()
    return builder.markers([5, 6]).build(UnitKind.MEDIA)


def minicpm(rng: np.random.Generator) -> Unit:
    """One second: 64 tokens of picture, 10 of sound, now and then some words."""
    builder = UnitBuilder().text([1, 2], Role.BOUNDARY)
    builder.content(3, [(i, i, i) for i in range(64)], Modality.IMAGE).end_step()
    builder.text([9], Role.BOUNDARY)
    builder.content(4, [(i, i, i) for i in range(10)], Modality.AUDIO).end_step()
    if rng.random() < 0.3:
        builder.text(np.arange(rng.integers(4, 20)))
    return builder.text([7], Role.BOUNDARY).build(UnitKind.MEDIA)


def sliced(rng: np.random.Generator) -> Unit:
    """One second with a source image and nine slices: 680 tokens and some words."""
    builder = UnitBuilder().text([1, 2], Role.BOUNDARY)
    offsets = [(i, i, i) for i in range(64)]
    builder.content(3, offsets, Modality.IMAGE, Role.SOURCE_IMAGE).end_step()
    builder.text([9], Role.BOUNDARY)
    for _ in range(9):
        builder.text([1], Role.BOUNDARY)
        builder.content(3, offsets, Modality.IMAGE, Role.SLICE).end_step()
        builder.text([9], Role.BOUNDARY)
    builder.content(4, offsets[:10], Modality.AUDIO).end_step()
    if rng.random() < 0.3:
        builder.text(np.arange(rng.integers(4, 20)))
    return builder.text([7], Role.BOUNDARY).build(UnitKind.MEDIA)


SERVED = [name for name, layout in LAYOUTS.items() if not layout.simulated]

STREAMS = {"qwen": qwen, "minicpm": minicpm, "sliced": sliced}


@dataclass
class Run:
    """What a stream cost under a layout."""

    live: int = 0
    subblock_slots: int = 0
    evictions: int = 0
    rows_moved: int = 0
    live_at_evictions: int = 0
    largest: int = 0

    @property
    def ratio(self) -> float:
        """Slots of active subblocks for each live cell, over the stream."""
        return self.subblock_slots / self.live


@pytest.fixture(scope="module")
def runs(streams: Any) -> dict[tuple[str, str], Run]:
    """Every stream under every layout, with OmniPick and fixed seeds."""
    policy = make_policy("omnipick")
    out = {}
    for shape, make in STREAMS.items():
        for name in SERVED:
            rng, layout, run = np.random.default_rng(0), make_layout(name), Run()
            table, history = PageTable((2500 + 700) // PAGE_SIZE + 8), History()
            system = UnitBuilder().text(np.arange(32)).build(UnitKind.SYSTEM)
            for i in range(NUM_UNITS):
                unit = make(rng) if i else system
                expected = foresee(policy, unit, history, CONFIG)
                history = history.append(unit, layout.place(table, expected, unit.kind))
                run.largest = max(run.largest, len(history))
                if len(history) > CONFIG.high_watermark:
                    history, _, moves = streams.evict(policy, layout, table, history, CONFIG)
                    run.evictions += 1
                    run.rows_moved += moves.rows_moved if moves else 0
                    run.live_at_evictions += len(history)
                    table.check_integrity(history.cells)
                run.live += len(history)
                run.subblock_slots += table.active_subblocks * SUBBLOCK_SIZE
            out[shape, name] = run
    return out


@pytest.mark.parametrize("shape", list(STREAMS))
def test_predictive_placement_reaches_the_goal_without_moving(runs: Any, shape: str) -> None:
    run = runs[shape, "predictive"]
    assert run.evictions >= 10
    assert run.ratio <= 1.04
    assert run.rows_moved == 0


@pytest.mark.parametrize("shape", list(STREAMS))
def test_native_placement_leaves_holes(runs: Any, shape: str) -> None:
    run = runs[shape, "native"]
    assert run.rows_moved == 0
    assert run.ratio > 1.1
    assert run.ratio > runs[shape, "predictive"].ratio + 0.05


@pytest.mark.parametrize("shape", list(STREAMS))
def test_the_layout_of_the_paper_moves_part_of_what_lives(runs: Any, shape: str) -> None:
    run = runs[shape, "paper"]
    assert 0 < run.rows_moved < 0.25 * run.live_at_evictions


def test_the_layout_of_the_paper_packs_small_units_better_than_native(runs: Any) -> None:
    assert runs["minicpm", "paper"].ratio < runs["minicpm", "native"].ratio - 0.05


@pytest.mark.parametrize("shape", list(STREAMS))
def test_layouts_do_not_change_what_is_kept(runs: Any, shape: str) -> None:
    same = {(r.live, r.evictions, r.largest) for (s, _), r in runs.items() if s == shape}
    assert len(same) == 1
    assert same.pop()[2] <= CONFIG.high_watermark + 700


def mask(*runs: tuple[int, bool]) -> np.ndarray:
    return np.concatenate([np.full(n, flag) for n, flag in runs])


def fates(*each: Fate) -> np.ndarray:
    return np.array(each, np.uint8)


def test_predictive_places_survivors_apart() -> None:
    table, layout = PageTable(5), make_layout("predictive")
    assert layout.place(table, mask((3, True)), UnitKind.SYSTEM).tolist() == [0, 1, 2]
    slots = layout.place(table, mask((28, True), (3, False), (4, True)), UnitKind.MEDIA)
    assert slots.tolist() == [*range(3, 31), 128, 129, 130, 31, 64, 65, 66]
    slots = layout.place(table, fates(Fate.MAY_STAY, Fate.LASTS, Fate.LASTS), UnitKind.MEDIA)
    assert slots.tolist() == [192, 32, 33], "a budget's cells have a ring of their own"
    slots = layout.place(table, fates(Fate.STAYS, Fate.LEAVES), UnitKind.REPLY)
    assert slots.tolist() == [34, 131], "what is walked anyway is filled first"
    assert table.page_class.tolist() == [
        PageClass.MUST_KEEP,
        PageClass.SELECTED_HISTORY,
        PageClass.RECENT_CONTEXT,
        PageClass.SELECTED_HISTORY,
        PageClass.FREE,
    ]


def test_predictive_refuses_both_rings_at_once() -> None:
    table, layout = PageTable(2), make_layout("predictive")
    layout.place(table, mask((30, False)), UnitKind.MEDIA)
    before = table.live.tobytes(), table.page_class.tobytes(), dict(table.cursors)
    # Either ring alone would fit.
    with pytest.raises(CapacityError, match=r"100 slots asked for, 98 are free"):
        layout.place(table, mask((50, True), (50, False)), UnitKind.MEDIA)
    assert (table.live.tobytes(), table.page_class.tobytes(), dict(table.cursors)) == before
    assert len(set(layout.place(table, mask((50, True), (48, False)), UnitKind.MEDIA))) == 98


@pytest.mark.parametrize(("live", "moves"), [(128, False), (127, True)])
def test_predictive_migrates_only_once_tiles_are_sparse(live: int, moves: bool) -> None:
    """Five subblocks behind two free pages: 128 cells would fit four, but 1.25 * 128 is 160."""
    table, layout = PageTable(5), make_layout("predictive")
    slots = np.concatenate([np.arange(b * 32, b * 32 + 26) for b in range(4, 9)]).astype(np.int32)
    table.take(slots, PageClass.SELECTED_HISTORY)
    unit = UnitBuilder().text(np.arange(len(slots))).build(UnitKind.TEXT)
    history = History().append(unit, slots)
    keep = np.arange(len(slots)) < live
    table.release(slots[~keep])
    history = history.keep(keep)
    assert plan_tile_mode(table, cut_cells(history)) is not None
    plan = layout.plan(table, history)
    assert (plan is not None) is moves
    if plan is not None:
        assert (plan.before.active_subblocks, plan.after.active_subblocks) == (5, 4)


def test_the_paper_promotes_full_pages_of_cut_units_alone() -> None:
    table, layout = PageTable(6), make_layout("paper")
    history = History()
    for count in (160, 64):
        unit = UnitBuilder().text(np.arange(count)).build(UnitKind.MEDIA)
        slots = layout.place(table, np.ones(count, bool), unit.kind)
        history = history.append(unit, slots)
    assert set(table.page_class.tolist()) == {PageClass.FREE, PageClass.RECENT_CONTEXT}
    keep = mask((159, True), (1, False), (64, True))
    table.release(history.cells["slot"][~keep])
    history = history.keep(keep)
    layout.settle(table, history)
    # The second unit fills page 3 in part and page 2 beside the first; it is not cut.
    assert table.page_class.tolist() == [
        PageClass.SELECTED_HISTORY,
        PageClass.SELECTED_HISTORY,
        PageClass.RECENT_CONTEXT,
        PageClass.RECENT_CONTEXT,
        PageClass.FREE,
        PageClass.FREE,
    ]
    table.release(np.array([5], np.int32))
    assert layout.place(table, np.ones(1, bool), UnitKind.MEDIA).tolist() == [159]


def test_the_paper_moves_nothing_out_of_selected_history() -> None:
    table, layout = PageTable(4), make_layout("paper")
    selected = np.arange(64, 84, dtype=np.int32)
    recent = np.array([128, 129, 170, 171, 200], np.int32)
    table.take(selected, PageClass.SELECTED_HISTORY)
    table.take(recent, PageClass.RECENT_CONTEXT)
    unit = UnitBuilder().text(np.arange(25)).build(UnitKind.MEDIA)
    history = History().append(unit, np.concatenate([selected, recent]))
    keep = np.arange(25) < 24
    table.release(recent[-1:])
    history = history.keep(keep)

    plan = layout.plan(table, history)
    assert plan is not None
    assert plan.source == (128, 129, 170, 171)
    assert plan.destination == (0, 1, 2, 3)


def test_the_paper_keeps_the_prefix_in_pages_of_its_own() -> None:
    table, layout = PageTable(3), make_layout("paper")
    layout.place(table, np.ones(5, bool), UnitKind.SYSTEM)
    assert layout.place(table, np.ones(2, bool), UnitKind.MEDIA).tolist() == [64, 65]
    assert table.page_class.tolist() == [PageClass.MUST_KEEP, PageClass.RECENT_CONTEXT, 0]


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_layouts_by_name(name: str) -> None:
    assert make_layout(name).name == name


def test_an_unknown_layout_is_named() -> None:
    message = r"\[layout\] expected one of predictive, paper, .*, contiguous; got 'best'"
    with pytest.raises(ConfigError, match=message):
        make_layout("best")


def scattered(rng: np.random.Generator) -> PageTable:
    """Up to six pages, each row live with a chance of its page's own."""
    table = PageTable(int(rng.integers(1, 7)))
    share = rng.random(table.num_pages).repeat(PAGE_SIZE) ** 2
    table.take(np.flatnonzero(rng.random(len(share)) < share).astype(np.int32), PageClass.MIXED)
    return table


def span_of(slots: list[int]) -> int:
    return max((s // PAGE_SIZE + 1 for s in slots), default=0)


@pytest.mark.parametrize("pages", [1, 2, 3])
@pytest.mark.parametrize("seed", range(25))
def test_the_suffix_is_the_shortest_that_saves_enough(seed: int, pages: int) -> None:
    """Against trying every suffix, from the end on."""
    table = scattered(np.random.default_rng(seed))
    live = np.flatnonzero(table.live).tolist()
    expected: list[int] | None = None
    for first in reversed(range(len(live))):
        begin = live[first - 1] + 1 if first else 0
        packed = live[:first] + list(range(begin, begin + len(live) - first))
        if span_of(live) - span_of(packed) >= pages:
            expected = packed
            break
    plan = plan_suffix(table, pages)
    assert (plan is None) == (expected is None)
    if plan is not None and expected is not None:
        plan.validate(table)
        moves = dict(zip(plan.source, plan.destination, strict=True))
        assert [moves.get(s, s) for s in live] == expected
        assert all(s != d for s, d in moves.items())
        assert plan_suffix(table, pages) == plan


@pytest.mark.parametrize("seed", range(10))
def test_eager_packs_everything_in_order(seed: int) -> None:
    table = scattered(np.random.default_rng(seed))
    live = np.flatnonzero(table.live).tolist()
    plan = make_layout("eager").plan(table, History())
    moves = dict(zip(plan.source, plan.destination, strict=True)) if plan else {}
    assert [moves.get(s, s) for s in live] == list(range(len(live)))


def test_paged_gives_back_whole_pages_only() -> None:
    table, layout = PageTable(3), make_layout("paged")
    assert layout.place(table, mask((100, True)), UnitKind.MEDIA).tolist() == list(range(100))
    table.release(np.arange(1, 64, dtype=np.int32))
    assert layout.place(table, mask((2, True)), UnitKind.MEDIA).tolist() == [100, 101]
    with pytest.raises(CapacityError, match="91 slots asked for, whole pages leave 90"):
        layout.place(table, mask((91, True)), UnitKind.MEDIA)
    table.release(np.array([0], np.int32))
    assert committed_pages(layout, table) == 1
    slots = layout.place(table, mask((91, True)), UnitKind.MEDIA).tolist()
    assert slots == [*range(102, 128), *range(64), 128]
    assert committed_pages(layout, table) == 3
    assert committed_pages(make_layout("native"), PageTable(3)) == 3  # a pool is there as a whole


def test_contiguous_grows_at_its_end_only() -> None:
    table, layout = PageTable(6), make_layout("contiguous")
    layout.place(table, mask((256, True)), UnitKind.MEDIA)
    assert committed_pages(layout, table) == 4
    table.release(np.arange(255, dtype=np.int32))
    assert layout.place(table, mask((1, True)), UnitKind.MEDIA).tolist() == [256]
    assert (table.active_pages, committed_pages(layout, table)) == (2, 8)
    with pytest.raises(CapacityError, match="128 slots asked for, the span leaves 127"):
        layout.place(table, mask((128, True)), UnitKind.MEDIA)


@pytest.mark.parametrize("pages", [0, -1])
def test_a_suffix_must_save_a_page(pages: int) -> None:
    with pytest.raises(ConfigError, match="span pages must be at least 1"):
        make_layout("suffix", pages)
