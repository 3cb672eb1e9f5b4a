"""Retention policies against a second, slow implementation, worked examples and properties.

The slow ones are written from the paper's section 5.1 and design section 4: lists of plain tokens,
one decision at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnitide.config import RetentionConfig
from omnitide.errors import ConfigError
from omnitide.history import History
from omnitide.policies import POLICIES, make_policy
from omnitide.retention import RetentionPlan, make_plan
from omnitide.units import Modality, Role, Unit, UnitBuilder, UnitKind

SETTINGS = settings(max_examples=80, deadline=None, derandomize=True)


@dataclass
class Held:
    """A unit as the slow policies see it: tokens (with their orders), and how many it once had."""

    kind: UnitKind
    length: int
    open: bool = False
    tokens: list[tuple[int, Any]] = field(default_factory=list)

    @property
    def protected(self) -> bool:
        return self.open or self.kind == UnitKind.SYSTEM


def drop_until_low(units: list[Held], low: int, partial_first: bool) -> None:
    """Whole units go, oldest first, until `low` is met; the newest unit stays."""
    while sum(len(u.tokens) for u in units) > low:
        left = [u for u in units if u.tokens]
        droppable = [u for u in left[:-1] if not u.protected]
        partial = [u for u in droppable if len(u.tokens) < u.length]
        if not droppable:
            return
        victim = partial[0] if partial and partial_first else droppable[0]
        victim.tokens = []


def slow_omnipick(units: list[Held], config: RetentionConfig) -> None:
    """Cut `units` as the paper says."""
    others = [u for u in units if u.tokens and not u.protected]
    if config.recent_units is not None:
        count = config.recent_units
    else:
        count, total = 0, 0
        for unit in reversed(others):
            total += len(unit.tokens)
            if total > config.recent_share * config.low_watermark:
                break
            count += 1
    recent = [id(u) for u in list(reversed(others))[: max(count, 1)]]

    budget = config.text_budget
    sinks = {Modality.IMAGE: config.image_sink, Modality.AUDIO: config.audio_sink}
    for unit in units:
        if unit.protected or id(unit) in recent:
            continue
        kept: list[tuple[int, Any]] = []
        seen: dict[int, int] = {}
        for order, token in unit.tokens:
            rank = seen.get(token.span, 0)
            seen[token.span] = rank + 1
            if token.role in (Role.BOUNDARY, Role.SOURCE_IMAGE):
                stays = True
            elif token.modality == Modality.TEXT:
                stays = budget > 0
                budget -= 1
            else:
                stays = rank < sinks[token.modality]
            if stays:
                kept.append((order, token))
        unit.tokens = kept
    drop_until_low(units, config.low_watermark, partial_first=True)


def slow_fifo(units: list[Held], config: RetentionConfig) -> None:
    """Whole units go, oldest first."""
    drop_until_low(units, config.low_watermark, partial_first=False)


def slow_full(units: list[Held], config: RetentionConfig) -> None:
    """Nothing goes."""


SLOW = {"omnipick": slow_omnipick, "fifo": slow_fifo, "full": slow_full}


class Stream:
    """A history and its plain twin, fed with the same units."""

    def __init__(self, streams: Any) -> None:
        self.streams = streams
        self.history = History()
        self.held: list[Held] = []
        self.count = 0

    def add(self, sketch: Any, open: bool = False) -> None:
        unit = self.streams.build(sketch)
        tokens = self.streams.tokens(sketch, self.history.next_unit)
        slots = np.arange(self.count, self.count + len(unit))
        self.history = self.history.append(unit, slots, open=open)
        numbered = list(enumerate(tokens, self.count))
        self.held.append(Held(sketch.kind, len(tokens), open, numbered))
        self.count += len(tokens)

    def close(self) -> None:
        self.history = self.history.close()
        self.held[-1].open = False

    def evict(self, name: str, config: RetentionConfig) -> RetentionPlan:
        """One round of both; returns ours after comparing it."""
        plan = make_plan(make_policy(name), self.history, config)
        before = self.history
        SLOW[name](self.held, config)
        kept = [order for u in self.held for order, _ in u.tokens]
        assert before.cells["order"][plan.keep].tolist() == kept
        self.held = [u for u in self.held if u.tokens or u.open]
        self.history = before.keep(plan.keep)
        return plan


@pytest.mark.parametrize("name", list(SLOW))
def test_every_policy_has_a_slow_twin(name: str) -> None:
    assert set(SLOW) == set(POLICIES)
    policy = make_policy(name)
    assert policy.name == name
    assert policy.bounded == (name != "full")


@pytest.mark.parametrize("name", list(SLOW))
def test_rounds_of_evictions_equal_the_slow_twin(streams: Any, name: str) -> None:
    @SETTINGS
    @given(data=st.data())
    def rounds(data: st.DataObject) -> None:
        stream = Stream(streams)
        stream.add(data.draw(streams.system))
        for _ in range(data.draw(st.integers(1, 4))):
            for sketch in data.draw(st.lists(streams.units, min_size=1, max_size=5)):
                stream.add(sketch)
            if data.draw(st.booleans()):
                stream.add(data.draw(streams.units), open=True)
            plan = stream.evict(name, data.draw(streams.configs()))
            assert plan.num_kept == len(stream.history)
            if stream.held[-1].open:
                stream.close()

    rounds()


@pytest.mark.parametrize("name", list(SLOW))
def test_plans_keep_the_rules(streams: Any, name: str) -> None:
    @SETTINGS
    @given(data=st.data())
    def rules(data: st.DataObject) -> None:
        stream = Stream(streams)
        stream.add(data.draw(streams.system))
        for sketch in data.draw(st.lists(streams.units, min_size=1, max_size=8)):
            stream.add(sketch)
        stream.add(data.draw(streams.units), open=data.draw(st.booleans()))
        history, config = stream.history, data.draw(streams.configs())
        cells_before = history.cells.tobytes()
        policy = make_policy(name)
        plan = make_plan(policy, history, config)

        assert history.cells.tobytes() == cells_before
        again = make_plan(make_policy(name), history, replace(config))
        assert plan == again
        assert hash(plan) == hash(again)
        plan.validate(history)
        assert plan.num_kept + plan.num_deleted == len(history)
        untouchable = {u.id for u in history.units if u.kind == UnitKind.SYSTEM or u.open}
        assert plan.keep[[u in untouchable for u in history.cells["unit"].tolist()]].all()

        gone = [i for i, kept in enumerate(plan.keep.tolist()) if not kept]
        assert [i for a, b in plan.deleted_ranges for i in range(a, b)] == gone
        assert all(a < b for a, b in plan.deleted_ranges)
        after = history.keep(plan.keep)
        before = history.cells["position"][plan.keep]
        assert (after.cells["position"] - before).tolist() == plan.change.tolist()
        assert plan.summary() == (
            f"kept {plan.num_kept}, deleted {plan.num_deleted} of {len(history)} tokens"
        )

        # A target, not a bound: above it only the newest unit and the untouchable are left.
        if policy.bounded and plan.num_kept > config.low_watermark:
            newest = history.cells["unit"][-1]
            left = set(after.cells["unit"].tolist())
            assert left <= untouchable | {newest}

    rules()


@SETTINGS
@given(data=st.data())
def test_survivors_are_what_omnipick_leaves_of_a_unit_once_cut(
    streams: Any, data: st.DataObject
) -> None:
    policy, config = make_policy("omnipick"), data.draw(streams.configs(most=1))
    config = replace(
        config, high_watermark=10**6, low_watermark=10**6, recent_units=1, text_budget=10**6
    )
    history = History()
    expected: list[bool] = []
    for sketch in [*data.draw(st.lists(streams.units, max_size=4)), data.draw(streams.system)]:
        unit = streams.build(replace(sketch, kind=UnitKind.MEDIA))
        history = history.append(unit, np.arange(len(unit)))
        expected += policy.survivors(unit.cells, config).tolist()
    newest = UnitBuilder().text([1]).build(UnitKind.TEXT)
    history = history.append(newest, np.arange(1))
    assert policy.select(history, config).tolist() == [*expected, True]


@pytest.mark.parametrize(("name", "stays"), [("fifo", False), ("full", True)])
def test_survivors_of_the_other_policies(name: str, stays: bool) -> None:
    cells = UnitBuilder().markers([1, 2]).text([3]).build(UnitKind.MEDIA).cells
    mask = make_policy(name).survivors(cells, RetentionConfig())
    assert mask.dtype == np.bool_
    assert mask.tolist() == [stays] * 3


def clip(pictures: int = 4, sounds: int = 3, words: int = 0) -> Unit:
    """B, pictures, sounds, words, B."""
    builder = UnitBuilder().markers([1])
    builder.content(2, np.zeros((pictures, 3)), Modality.IMAGE)
    builder.content(3, np.zeros((sounds, 3)), Modality.AUDIO).end_step()
    return builder.text(np.arange(words)).markers([4]).build(UnitKind.MEDIA)


def prompt(count: int, kind: UnitKind = UnitKind.PROMPT) -> Unit:
    return UnitBuilder().text(np.arange(count)).build(kind)


def history_of(*units: Unit, open_last: bool = False) -> History:
    history = History()
    for i, unit in enumerate(units):
        last = open_last and i == len(units) - 1
        history = history.append(unit, np.arange(len(unit)), open=last)
    return history


def mask(text: str) -> list[bool]:
    """1 stays, 0 goes; blanks separate units."""
    return [c == "1" for c in text.replace(" ", "")]


SYSTEM = prompt(2, UnitKind.SYSTEM)


def settings_of(low: int, **given: Any) -> RetentionConfig:
    base = RetentionConfig(
        high_watermark=low, low_watermark=low, recent_units=1, image_sink=1, audio_sink=2
    )
    return replace(base, text_budget=3, **given)


EXAMPLES = {
    "sinks of an older unit, the newest whole": (
        history_of(SYSTEM, clip(), clip()),
        settings_of(20),
        "11 1 1000 110 1 1 1111 111 1",
    ),
    "two recent units": (
        history_of(SYSTEM, clip(), clip(), clip()),
        settings_of(40, recent_units=2),
        "11 110001101 111111111 111111111",
    ),
    "no sinks": (
        history_of(SYSTEM, clip(), clip()),
        RetentionConfig(20, 20, 1, image_sink=0, audio_sink=0),
        "11 1 0000 000 1 111111111",
    ),
    "the budget is shared by text and replies, oldest first": (
        history_of(SYSTEM, prompt(2), clip(words=2), prompt(2, UnitKind.REPLY), clip()),
        settings_of(30),
        "11 11 1 1000 110 10 1 00 111111111",
    ),
    "a budget of nothing": (
        history_of(SYSTEM, prompt(2), clip(1, 1, words=2), clip(1, 1)),
        replace(settings_of(30), text_budget=0),
        "11 00 111001 1111",
    ),
    "a unit is dropped to meet the target, and no more than one": (
        history_of(SYSTEM, clip(), clip(), clip()),
        settings_of(16),
        "11 000000000 110001101 111111111",
    ),
    "a target met exactly drops nothing": (
        history_of(SYSTEM, clip(), clip(), clip()),
        settings_of(21),
        "11 110001101 110001101 111111111",
    ),
    "one token above the target drops one unit": (
        history_of(SYSTEM, clip(), clip(), clip()),
        settings_of(20),
        "11 000000000 110001101 111111111",
    ),
    "cut units go before complete ones": (
        history_of(SYSTEM, prompt(3), clip(), clip()),
        settings_of(14),
        "11 111 000000000 111111111",
    ),
    "then complete ones, and one unit remains above the target": (
        history_of(SYSTEM, prompt(3), clip(), clip()),
        settings_of(1),
        "11 000 000000000 111111111",
    ),
    "complete recent units go after cut older ones": (
        history_of(SYSTEM, clip(), clip(), clip()),
        settings_of(11, recent_units=2),
        "11 000000000 000000000 111111111",
    ),
    "an open unit is kept beside the newest": (
        history_of(SYSTEM, clip(), clip(), prompt(2, UnitKind.REPLY), open_last=True),
        settings_of(40),
        "11 110001101 111111111 11",
    ),
    "an open unit is the one that remains": (
        history_of(SYSTEM, clip(), clip(), prompt(2, UnitKind.REPLY), open_last=True),
        settings_of(3),
        "11 000000000 000000000 11",
    ),
    "the recent window is a share of the target": (
        history_of(SYSTEM, clip(), clip(), clip()),  # two clips, 18 tokens, fit 0.75 * 24
        replace(settings_of(24), recent_units=None),
        "11 000000000 111111111 111111111",
    ),
    "the recent window is never empty": (
        history_of(clip(), clip()),
        replace(settings_of(10), recent_units=None, recent_share=0.1),
        "000000000 111111111",
    ),
}


@pytest.mark.parametrize("example", list(EXAMPLES))
def test_omnipick_by_hand(example: str) -> None:
    history, config, expected = EXAMPLES[example]
    plan = make_plan(make_policy("omnipick"), history, config)
    assert plan.keep.tolist() == mask(expected)


def test_omnipick_keeps_a_source_image_whole_and_cuts_its_slices() -> None:
    builder = UnitBuilder().markers([1])
    zeros = np.zeros((4, 3))
    builder.content(2, zeros, Modality.IMAGE, Role.SOURCE_IMAGE).end_step().markers([3])
    builder.content(2, zeros, Modality.IMAGE, Role.SLICE).end_step().markers([3])
    builder.content(2, zeros, Modality.IMAGE, Role.SLICE).end_step()
    history = history_of(builder.build(UnitKind.MEDIA), prompt(1))
    plan = make_plan(make_policy("omnipick"), history, settings_of(40))
    assert plan.keep.tolist() == mask("1 1111 1 1000 1 1000 1")


def test_omnipick_cuts_a_cut_unit_again() -> None:
    history = history_of(SYSTEM, clip(), clip())
    first = make_plan(make_policy("omnipick"), history, settings_of(30))
    history = history.keep(first.keep).append(clip(), np.arange(9))
    smaller = replace(settings_of(30), image_sink=0, audio_sink=1)
    second = make_plan(make_policy("omnipick"), history, smaller)
    assert second.keep.tolist() == mask("11 1 0 10 1 100001001 111111111")
    again = make_plan(make_policy("omnipick"), history.keep(second.keep), smaller)
    assert again.keep.all()


@pytest.mark.parametrize(
    ("low", "expected"),
    [
        (29, "11 111111111 111111111 111111111"),
        (28, "11 000000000 111111111 111111111"),
        (20, "11 000000000 111111111 111111111"),
        (19, "11 000000000 000000000 111111111"),
        (1, "11 000000000 000000000 111111111"),
    ],
)
def test_fifo_by_hand(low: int, expected: str) -> None:
    history = history_of(SYSTEM, clip(), clip(), clip())
    config = RetentionConfig(high_watermark=29, low_watermark=low)
    assert make_plan(make_policy("fifo"), history, config).keep.tolist() == mask(expected)


class Answers:
    """A policy that answers what it is told."""

    name = "answers"
    bounded = True

    def __init__(self, keep: Any) -> None:
        self.keep = keep

    def select(self, history: History, config: RetentionConfig) -> Any:
        return self.keep

    def survivors(self, cells: Any, config: RetentionConfig) -> Any:
        return np.zeros(len(cells), bool)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (np.array(mask("01 11 11")), "1 cells of the prefix or an open unit would go"),
        (np.array(mask("11 11 00")), "2 cells of the prefix or an open unit would go"),
        (np.array(mask("11 11 1")), r"mask of 6 cells, got bool of shape \(5,\)"),
        (np.array(mask("11 11 111")), r"mask of 6 cells, got bool of shape \(7,\)"),
        (np.arange(6), r"mask of 6 cells, got int64 of shape \(6,\)"),
    ],
    ids=["prefix", "open unit", "short", "long", "indices"],
)
def test_an_answer_that_breaks_the_contract_is_refused(keep: Any, message: str) -> None:
    history = history_of(SYSTEM, prompt(2), prompt(2, UnitKind.REPLY), open_last=True)
    with pytest.raises(ValueError, match=rf"\[retention\] .*{message}"):
        make_plan(Answers(keep), history, RetentionConfig())


def test_a_plan_for_another_history_is_refused() -> None:
    short, long = history_of(SYSTEM, prompt(2)), history_of(SYSTEM, prompt(3))
    plan = make_plan(make_policy("full"), short, RetentionConfig())
    with pytest.raises(ValueError, match=r"\[retention\] kept 4 \+ deleted 0 != 5 cells"):
        plan.validate(long)
    broken = RetentionPlan(np.ones(5, bool), plan.change)
    with pytest.raises(ValueError, match=r"\[retention\] 4 position changes for 5 kept"):
        broken.validate(long)


def test_plans_differ_where_keep_or_change_differ() -> None:
    plan = RetentionPlan(np.ones(2, bool), np.zeros((2, 3), np.int32))
    assert plan == RetentionPlan(np.ones(2, bool), np.zeros((2, 3), np.int32))
    assert plan != RetentionPlan(np.array([True, False]), np.zeros((2, 3), np.int32))
    assert plan != RetentionPlan(np.ones(2, bool), np.ones((2, 3), np.int32))
    assert plan != "plan"


def test_an_unknown_policy_is_named() -> None:
    message = r"\[policy\] expected one of omnipick, fifo, full; got 'lru'"
    with pytest.raises(ConfigError, match=message):
        make_policy("lru")
