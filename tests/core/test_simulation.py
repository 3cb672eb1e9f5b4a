"""The simulator against a slow re-count, and the stream shapes against the families' token counts.

The re-count knows nothing of tables, masks and plans: it looks at which token lies in which slot
before and after each step.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from omnitide.acceptance import Always
from omnitide.capacity import bounded_capacity
from omnitide.config import MigrationConfig, RetentionConfig
from omnitide.costs import NOMINAL, Costs
from omnitide.errors import CapacityError, ConfigError, IntegrityError
from omnitide.history import History
from omnitide.layouts import LAYOUTS, make_layout
from omnitide.layouts.native import Native
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE, PageClass, PageTable
from omnitide.policies import POLICIES, make_policy
from omnitide.simulation import minicpm, qwen, simulator
from omnitide.simulation.result import MAPS, Content, Timeline
from omnitide.simulation.shapes import SHAPES, make_shape
from omnitide.simulation.simulator import Simulator, eager_rows, needs_model, simulate
from omnitide.simulation.stream import MOST_UNITS, shape_stream
from omnitide.units import Modality, Role, Unit, UnitBuilder, UnitKind

SMALL = RetentionConfig(high_watermark=900, low_watermark=600)
POLICY_NAMES = [name for name in POLICIES if not needs_model(name)]


def places(history: History) -> dict[int, int]:
    """The slot of each live token, by its order, oldest first."""
    return dict(zip(*(history.cells[name].tolist() for name in ("order", "slot")), strict=True))


def recount(shape: str, count: int, policy: str, layout: str, config: RetentionConfig) -> Any:
    """Figures of a stream, counted from sets of slots after each unit."""
    stream = shape_stream(make_shape(shape), count)
    chosen, placer = make_policy(policy), make_layout(layout)
    capacity = bounded_capacity(config, stream.prefix, stream.largest_unit, stream.reply)
    run = Simulator(chosen, placer, config, capacity, Always())
    found: Counter[str] = Counter()
    spans, walked, live_sum = [], 0, 0
    for unit in stream.units():
        run.append(unit)
        slots = set(run.history.cells["slot"].tolist())
        assert len(slots) == len(run.history)
        spans.append(max(slots) // PAGE_SIZE * PAGE_SIZE + PAGE_SIZE)
        before = places(run.history)
        waits = unit.kind in (UnitKind.SYSTEM, UnitKind.PROMPT)
        if not waits and run.evict() is not None:
            after = places(run.history)
            assert after.keys() < before.keys()
            found["evictions"] += 1
            found["deleted"] += len(before) - len(after)
            found["moved"] += sum(before[order] != slot for order, slot in after.items())
            packed = {order: place for place, order in enumerate(before)}
            found["eager"] += sum(packed[order] != place for place, order in enumerate(after))
        slots = set(run.history.cells["slot"].tolist())
        walked += len({s // SUBBLOCK_SIZE for s in slots}) * SUBBLOCK_SIZE
        live_sum += len(slots)
    return {
        "live_cells": len(slots),
        "active_pages": len({s // PAGE_SIZE for s in slots}),
        "active_subblocks": len({s // SUBBLOCK_SIZE for s in slots}),
        "active_subblock_ratio": pytest.approx(walked / live_sum, abs=1e-6),
        "physical_span": (max(slots) // PAGE_SIZE + 1) * PAGE_SIZE,
        "peak_span": max(spans),
        "rows_moved": found["moved"],
        "rows_moved_share_of_eager": pytest.approx(found["moved"] / found["eager"], abs=1e-6),
        "evictions": found["evictions"],
        "tokens_evicted": found["deleted"],
    }


@pytest.mark.parametrize("layout", ["native", "paper", "predictive"])
@pytest.mark.parametrize(
    ("shape", "policy"), [("minicpm-duplex", "omnipick"), ("audio", "omnipick"), ("mix", "fifo")]
)
def test_figures_are_those_of_a_slow_recount(shape: str, policy: str, layout: str) -> None:
    stream = shape_stream(make_shape(shape), 60)
    result = simulate(stream, policy, layout, SMALL, migration=MigrationConfig("layout")).as_dict()
    expected = recount(shape, 60, policy, layout, SMALL)
    assert expected["evictions"] > 2
    assert {name: result[name] for name in expected} == expected


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_policy_goes_with_every_layout_within_the_capacity(policy: str, layout: str) -> None:
    stream = shape_stream(make_shape("mix"), 40)
    result = simulate(stream, policy, layout, SMALL)
    assert result.tokens_seen == sum(len(unit) for unit in stream.units())
    assert result.live_cells == result.tokens_seen - result.tokens_evicted
    assert result.peak_pages <= result.capacity_pages
    kept = (result.kept_boundary, result.kept_text, result.kept_audio, result.kept_image)
    assert sum(kept) == result.live_cells


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_what_is_kept_does_not_depend_on_where_it_lies(policy: str) -> None:
    stream = shape_stream(make_shape("qwen-448"), 30)
    rows = [simulate(stream, policy, layout) for layout in ("native", "paper", "predictive")]
    names = ("live_cells", "evictions", "kept_image", "kept_text", "kept_audio", "kept_units")
    assert len({tuple(getattr(row, name) for name in names) for row in rows}) == 1


def test_equal_inputs_give_equal_figures() -> None:
    stream = shape_stream(make_shape("mix"), 40, seed=3)
    rows = [simulate(stream, config=SMALL).as_dict() for _ in range(2)]
    for row in rows:
        del row["plan_ms_p50"], row["plan_ms_max"]
    assert rows[0] == rows[1]


def test_full_context_drops_nothing_and_grows() -> None:
    stream = shape_stream(make_shape("dialogue"), 60)
    result = simulate(stream, "full", "native")
    assert (result.evictions, result.tokens_evicted, result.rows_moved) == (0, 0, 0)
    assert result.live_cells == result.tokens_seen
    assert result.rows_moved_share_of_eager == 0
    assert result.physical_span == -(-result.tokens_seen // PAGE_SIZE) * PAGE_SIZE


@pytest.mark.parametrize(
    ("keep", "rows"),
    [("1110", 0), ("0111", 3), ("1011", 2), ("1010", 1), ("110111001", 4), ("0000", 0)],
)
def test_rows_that_eager_moves(keep: str, rows: int) -> None:
    assert eager_rows(np.array([c == "1" for c in keep])) == rows


def test_estimates_count_tiles_and_rows() -> None:
    units = [qwen.system(), qwen.sound(0.0), qwen.prompt(2.0, 5), qwen.reply(2.0, 20)]
    timeline = Timeline()
    stream = shape_stream(make_shape("audio"), 3)
    stream = type(stream)("given", lambda: units, 3, len(units[0]), 100, 25)
    result = simulate(stream, costs=Costs(tile_us=1000.0, row_us=7.0), timeline=timeline)
    # One pass each over system, sound and prompt, one a token of the reply; a pass costs 1 ms a
    # subblock that is live then.
    passes = [1, 1, 1, 25]
    expected = sum(p * tiles for p, tiles in zip(passes, timeline.subblocks, strict=True))
    assert result.attention_ms == expected
    assert result.copy_ms == 0
    moved = simulate(shape_stream(make_shape("minicpm-duplex"), 60), layout="paper", config=SMALL)
    assert moved.copy_ms == pytest.approx(moved.rows_moved * NOMINAL.row_us / 1e3, abs=1e-3)
    assert moved.rows_moved > 0


def test_the_timeline_tells_each_unit() -> None:
    timeline = Timeline()
    stream = shape_stream(make_shape("minicpm-duplex"), 60)
    result = simulate(stream, config=SMALL, timeline=timeline)
    assert len(timeline.kept) == len(timeline.span) == result.units == 61
    assert timeline.kept[-1].sum() == result.live_cells
    assert timeline.kept[-1][Content.NOTHING] == 0
    assert len(timeline.maps) == result.evictions
    last = timeline.maps[-1]
    assert np.count_nonzero(last.contents) == timeline.kept[last.unit].sum()
    for content in (Content.BOUNDARY, Content.TEXT, Content.AUDIO, Content.IMAGE):
        assert np.count_nonzero(last.contents == content) == timeline.kept[last.unit][content]
    assert last.contents.size == timeline.span[last.unit]


def test_a_cut_waits_for_the_reply_and_no_longer() -> None:
    timeline = Timeline()
    film, asked, reply = qwen.film(0.0, 448), qwen.prompt(2.0, 400), qwen.reply(2.0, 20)
    units = [qwen.system(), film, asked, reply, asked, film]
    stream = shape_stream(make_shape("audio"), 1)
    stream = type(stream)("given", lambda: units, 5, len(units[0]), 600, 25)
    result = simulate(stream, "fifo", config=SMALL, timeline=timeline)
    assert [page_map.unit for page_map in timeline.maps] == [3, 5]
    assert result.evictions == 2


def test_long_timelines_keep_few_maps_evenly() -> None:
    timeline, history, table = Timeline(), History(), PageTable(1)
    for unit in range(3 * MAPS):
        timeline.add_map(unit, history, table)
    units = [m.unit for m in timeline.maps]
    assert MAPS // 2 <= len(units) <= MAPS
    assert len(set(np.diff(units).tolist())) == 1


class Endless(Native):
    """Slots behind the last one ever taken."""

    name = "endless"
    simulated = True

    def place(self, table: PageTable, survivors: Any, kind: UnitKind) -> Any:
        """Never fills a hole."""
        first = int(np.flatnonzero(table.live)[-1]) + 1 if table.num_live else 0
        if first + len(survivors) > len(table.live):
            raise CapacityError("the table ends")
        slots = np.arange(first, first + len(survivors), dtype=np.int32)
        table.take(slots, PageClass.MIXED)
        return slots


def test_a_layout_that_fills_no_hole_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAYOUTS, "endless", Endless)
    result = simulate(shape_stream(make_shape("audio"), 60), layout="endless", config=SMALL)
    assert result.physical_span == -(-result.tokens_seen // PAGE_SIZE) * PAGE_SIZE
    assert result.evictions > 2
    monkeypatch.setattr(Endless, "simulated", False)
    with pytest.raises(CapacityError, match="the table ends"):
        simulate(shape_stream(make_shape("audio"), 60), layout="endless", config=SMALL)


def test_integrity_is_checked_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(table: PageTable, unit: Unit, *_: Any) -> Any:
        return table.first_free(len(unit)) * 0  # all cells into slot 0

    monkeypatch.setattr(simulator, "place", wrong)
    done: list[int] = []
    with pytest.raises(IntegrityError):
        simulate(shape_stream(make_shape("audio"), 3), progress=done.append)
    assert done == []


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_seeded_and_begins_with_its_prefix(name: str) -> None:
    shape = SHAPES[name]
    first, again, other = (
        [unit.cells.tobytes() for unit in shape.units(40, seed)] for seed in (5, 5, 6)
    )
    assert first == again
    assert name == "silence" or first != other
    kinds = [unit.kind for unit in shape.units(40)]
    assert len(kinds) == 41
    assert kinds[0] == UnitKind.SYSTEM
    assert UnitKind.SYSTEM not in kinds[1:]


@pytest.mark.parametrize(
    ("unit", "tokens", "positions"),
    [
        (minicpm.unit(0.0, frames=0), 13, 13),
        (minicpm.unit(0.0), 79, 79),
        (minicpm.unit(0.0, words=18), 98, 98),
        (minicpm.unit(0.0, slices=9), 79 + 9 * 66, 79 + 9 * 66),
        (qwen.film(0.0, 448), 566, 52),
        (qwen.film(0.0, 448, sound=False), 514, 28),
        (qwen.film(0.0, 1344), 2 * 48 * 48 + 50 + 4, 52),
        (qwen.sound(0.0), 52, 52),
        (qwen.still(0.0, 448), 258, 18),
    ],
)
def test_units_have_the_tokens_and_positions_of_their_family(
    unit: Unit, tokens: int, positions: int
) -> None:
    assert len(unit) == tokens
    history = History().append(unit, np.arange(tokens, dtype=np.int32))
    assert history.next_position == positions


def test_a_sliced_unit_has_a_source_image_and_slices() -> None:
    cells = minicpm.unit(0.0, slices=9).cells
    assert np.count_nonzero(cells["role"] == Role.SOURCE_IMAGE) == 64
    assert np.count_nonzero(cells["role"] == Role.SLICE) == 9 * 64
    assert np.count_nonzero(cells["modality"] == Modality.AUDIO) == 10


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": RetentionConfig(high_watermark=60, low_watermark=20)}, "system prefix"),
        ({"max_kv_size": 100}, "too small"),
        ({"config": RetentionConfig(high_watermark=2**31 - 1)}, "at most 16,777,216"),
        ({"policy": "none"}, "expected one of"),
        ({"layout": "none"}, "expected one of"),
    ],
)
def test_what_cannot_be_simulated_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulate(shape_stream(make_shape("qwen-448"), 2), **changes)


def test_full_context_ends_at_its_bound() -> None:
    with pytest.raises(CapacityError, match="capacity leaves"):
        simulate(shape_stream(make_shape("qwen-448"), 20), "full", max_kv_size=2048)


def test_a_policy_that_needs_attention_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(POLICIES["fifo"], "needs_mass", True, raising=False)
    with pytest.raises(ConfigError, match="attention of a model"):
        simulate(shape_stream(make_shape("audio"), 2), "fifo")


@pytest.mark.parametrize(
    ("count", "seed", "message"),
    [
        (0, 0, "--units must be at least 1, got 0"),
        (-1, 0, "--units must be at least 1, got -1"),
        (1, -1, "--seed must be at least 0, got -1"),
        (MOST_UNITS + 1, 0, "--units must be at most 100,000 for a shape, got 100,001"),
    ],
)
def test_streams_of_no_length_are_refused(count: int, seed: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        shape_stream(make_shape("audio"), count, seed)


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_costs_must_be_numbers(cost: float) -> None:
    with pytest.raises(ConfigError, match="--tile-cost-us must be at least 0"):
        Costs(cost, 1.0)
    with pytest.raises(ConfigError, match="--row-cost-us must be at least 0"):
        Costs(1.0, cost)


@pytest.mark.parametrize(
    ("layout", "own", "moves"),
    [("eager", "layout", True), ("paper", "cost", True), ("native", None, False)],
)
def test_the_rule_is_the_layouts_own_or_the_one_chosen(
    layout: str, own: str | None, moves: bool
) -> None:
    stream = shape_stream(make_shape("minicpm-duplex"), 60)
    plain = simulate(stream, layout=layout, config=SMALL)
    chosen = simulate(stream, layout=layout, config=SMALL, migration=MigrationConfig("span", 1000))
    assert plain.accept == own
    assert chosen.accept == ("span" if moves else None)
    assert (plain.rows_moved > 0) is moves
    assert chosen.rows_moved == 0  # no move shortens the span by a thousand pages


def test_copies_that_cost_more_than_they_save_are_not_made() -> None:
    stream = shape_stream(make_shape("minicpm-duplex"), 60)
    free, dear = (
        simulate(stream, layout="paper", config=SMALL, costs=Costs(10.0, row_us))
        for row_us in (0.0, 1e6)
    )
    assert free.rows_moved > dear.rows_moved == 0
    given = MigrationConfig(tile_cost_us=10.0, row_cost_us=0.0)
    assert simulate(stream, layout="paper", config=SMALL, migration=given).attention_ms == (
        free.attention_ms
    )


def test_memory_is_the_pool_or_what_was_committed() -> None:
    stream = shape_stream(make_shape("audio"), 60)
    native, paged, contiguous = (
        simulate(stream, layout=name, config=SMALL) for name in ("native", "paged", "contiguous")
    )
    assert native.peak_memory_pages == native.capacity_pages
    assert paged.peak_memory_pages == paged.peak_pages
    chunk = 4 * PAGE_SIZE
    assert contiguous.peak_memory_pages == -(-contiguous.peak_span // chunk) * 4


def test_a_policy_that_cuts_nothing_has_no_watermarks() -> None:
    result = simulate(shape_stream(make_shape("audio"), 5), "full")
    assert result.high_watermark is result.low_watermark is None


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected one of minicpm-duplex"):
        make_shape("film")


def test_units_that_do_not_fit_are_refused() -> None:
    stream = shape_stream(make_shape("audio"), 2)
    big = UnitBuilder().text([0] * 5000).build(UnitKind.TEXT)
    stream = type(stream)("given", lambda: [qwen.system(), big], 1, 43, 100, 0)
    with pytest.raises(
        CapacityError, match=r"text unit has 5,000 tokens.*raise --high-watermark or"
    ):
        simulate(stream)
