"""Retention policies against a second, slow implementation, worked examples and properties.

The slow ones are written from the paper's sections 5.1 and 7.1 and what the
published baselines do: lists of plain tokens, one decision at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnitide.config import RetentionConfig
from omnitide.errors import ConfigError
from omnitide.history import History
from omnitide.migration import cut_cells
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
    seconds: float = 0.0
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


Masses = dict[int, float]
"""Attention mass of each order."""


def slow_omnipick(units: list[Held], config: RetentionConfig, masses: Masses) -> None:
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


def slow_fifo(units: list[Held], config: RetentionConfig, masses: Masses) -> None:
    """Whole units go, oldest first."""
    drop_until_low(units, config.low_watermark, partial_first=False)


def slow_full(units: list[Held], config: RetentionConfig, masses: Masses) -> None:
    """Nothing goes."""


def size(units: list[Held]) -> int:
    return sum(len(u.tokens) for u in units)


def loose_orders(units: list[Held]) -> list[int]:
    """Orders of the tokens that may go, oldest first."""
    return [order for u in units if not u.protected for order, _ in u.tokens]


def take_out(units: list[Held], order: int) -> None:
    for unit in units:
        unit.tokens = [(o, token) for o, token in unit.tokens if o != order]


def drop_tokens(units: list[Held], low: int, safe: int, victims: list[int]) -> None:
    """Tokens go one by one, in the order given, until `low` is met; the order `safe` stays."""
    for order in victims:
        if size(units) <= low:
            return
        if order != safe:
            take_out(units, order)


def newest_order(units: list[Held]) -> int:
    return max(order for u in units for order, _ in u.tokens)


def slow_token_sliding(units: list[Held], config: RetentionConfig, masses: Masses) -> None:
    """The oldest token goes, again and again."""
    drop_tokens(units, config.low_watermark, newest_order(units), loose_orders(units))


def slow_streaming_llm(units: list[Held], config: RetentionConfig, masses: Masses) -> None:
    """The oldest token behind the sinks goes; with no token left but these, the last sink."""
    loose = loose_orders(units)
    sinks, others = loose[: config.sink_tokens], loose[config.sink_tokens :]
    drop_tokens(units, config.low_watermark, newest_order(units), others[:-1])
    drop_tokens(units, config.low_watermark, newest_order(units), sinks[::-1])
    drop_tokens(units, config.low_watermark, newest_order(units), others[-1:])


def slow_h2o(units: list[Held], config: RetentionConfig, masses: Masses) -> None:
    """The least attended token that is not recent goes; of equals the newest."""
    loose = loose_orders(units)
    room = max(config.low_watermark - (size(units) - len(loose)), 0)
    recent = room - math.floor(config.heavy_share * room)
    older = loose[: len(loose) - recent] if recent else loose
    victims = sorted(older, key=lambda order: (masses[order], -order))
    drop_tokens(units, config.low_watermark, newest_order(units), victims)


def slow_streaming_vlm(units: list[Held], config: RetentionConfig, masses: Masses) -> None:
    """Windows first, then what still has to go; the newest unit is never touched."""
    left = [u for u in units if u.tokens]
    newest = left[-1]

    def is_text(unit: Held, token: Any) -> bool:
        if token.modality != Modality.TEXT:
            return False
        return token.role != Role.BOUNDARY or unit.kind != UnitKind.MEDIA

    text = [o for u in left if not u.protected for o, token in u.tokens if is_text(u, token)]
    sinks = text[: config.text_sink]
    window = text[len(text) - min(config.text_window, len(text)) :]
    seconds = 0.0
    watched: list[Held] = []
    for unit in reversed(left):
        seconds += unit.seconds
        if seconds > config.vision_window:
            break
        watched.append(unit)
    for unit in left:
        if unit.protected or unit is newest:
            continue
        unit.tokens = [
            (order, token)
            for order, token in unit.tokens
            if (order in sinks or order in window if is_text(unit, token) else unit in watched)
        ]
    cuttable = [u for u in left if not u.protected and u is not newest]
    for unit in cuttable:
        if size(units) > config.low_watermark:
            unit.tokens = [(o, token) for o, token in unit.tokens if is_text(unit, token)]
    of_newest = [order for order, _ in newest.tokens]
    victims = [order for order in window if order not in sinks] + sinks[::-1]
    victims = [order for order in victims if order not in of_newest]
    drop_tokens(units, config.low_watermark, -1, victims)


SLOW = {
    "omnipick": slow_omnipick,
    "streaming-vlm": slow_streaming_vlm,
    "streaming-llm": slow_streaming_llm,
    "h2o": slow_h2o,
    "token-sliding": slow_token_sliding,
    "fifo": slow_fifo,
    "full": slow_full,
}


class Stream:
    """A history and its plain twin, fed with the same units."""

    def __init__(self, streams: Any) -> None:
        self.streams = streams
        self.history = History()
        self.held: list[Held] = []
        self.masses: Masses = {}
        self.count = 0

    def add(self, sketch: Any, open: bool = False) -> None:
        seconds = 0.5 * (self.history.next_unit % 5)
        unit = replace(self.streams.build(sketch), seconds=seconds)
        tokens = self.streams.tokens(sketch, self.history.next_unit)
        slots = np.arange(self.count, self.count + len(unit))
        self.history = self.history.append(unit, slots, open=open)
        numbered = list(enumerate(tokens, self.count))
        self.held.append(Held(sketch.kind, len(tokens), open, seconds, numbered))
        self.count += len(tokens)
        # All are attended to a little more; whole numbers, so that many are equal.
        for order in range(self.count):
            self.masses[order] = self.masses.get(order, 0) + (order * 29 + self.count) % 4

    def mass(self) -> Any:
        return np.array([self.masses[o] for o in self.history.cells["order"].tolist()], float)

    def close(self) -> None:
        self.history = self.history.close()
        self.held[-1].open = False

    def evict(self, name: str, config: RetentionConfig) -> RetentionPlan:
        """One round of both; returns ours after comparing it."""
        plan = make_plan(make_policy(name), self.history, config, self.mass())
        before = self.history
        SLOW[name](self.held, config, self.masses)
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
    assert policy.needs_mass == (name == "h2o")


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
        policy, masses = make_policy(name), stream.mass()
        plan = make_plan(policy, history, config, masses)

        assert history.cells.tobytes() == cells_before
        assert masses.tolist() == stream.mass().tolist()
        again = make_plan(make_policy(name), history, replace(config), masses.copy())
        assert plan == again
        assert hash(plan) == hash(again)
        plan.validate(history)
        assert plan.num_kept + plan.num_deleted == len(history)
        untouchable = {u.id for u in history.units if u.kind == UnitKind.SYSTEM or u.open}
        assert plan.keep[[u in untouchable for u in history.cells["unit"].tolist()]].all()
        assert plan.keep[-1]

        after = plan.after
        assert after.cells["order"].tolist() == history.cells["order"][plan.keep].tolist()
        assert after.cells["slot"].tolist() == history.cells["slot"][plan.keep].tolist()

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


@pytest.mark.parametrize(
    ("name", "clip_stays", "words_stay"),
    [
        ("streaming-vlm", "0 00 00 111 0", "111"),
        ("streaming-llm", "0 00 00 000 0", "000"),
        ("h2o", "0 00 00 000 0", "000"),
        ("token-sliding", "0 00 00 000 0", "000"),
        ("fifo", "0 00 00 000 0", "000"),
        ("full", "1 11 11 111 1", "111"),
    ],
)
def test_survivors_of_the_other_policies(name: str, clip_stays: str, words_stay: str) -> None:
    words = UnitBuilder().text([1, 2]).text([3], Role.BOUNDARY).build(UnitKind.PROMPT)
    for unit, stays in ((clip(2, 2, words=3), clip_stays), (words, words_stay)):
        found = make_policy(name).survivors(unit.cells, RetentionConfig())
        assert found.dtype == np.bool_
        assert found.tolist() == mask(stays)


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


def weighed(heavy: dict[int, float], count: int) -> Any:
    """Masses of `count` cells: those given, 1 elsewhere."""
    return np.array([heavy.get(i, 1.0) for i in range(count)])


@pytest.mark.parametrize(
    ("low", "expected"),
    [
        (29, "11 111111111 111111111 111111111"),
        (28, "11 011111111 111111111 111111111"),
        (15, "11 000000000 000001111 111111111"),
        (3, "11 000000000 000000000 000000001"),
        (2, "11 000000000 000000000 000000001"),  # the newest token stays, above the target
        (1, "11 000000000 000000000 000000001"),
    ],
)
def test_token_sliding_by_hand(low: int, expected: str) -> None:
    history = history_of(SYSTEM, clip(), clip(), clip())
    plan = make_plan(make_policy("token-sliding"), history, RetentionConfig(29, low))
    assert plan.keep.tolist() == mask(expected)


@pytest.mark.parametrize(
    ("low", "sinks", "expected"),
    [
        (29, 2, "11 111111111 111111111 111111111"),
        (28, 2, "11 110111111 111111111 111111111"),
        (15, 2, "11 110000000 000000011 111111111"),
        (15, 0, "11 000000000 000001111 111111111"),
        (15, 10, "11 111111111 100000000 000000111"),
        (6, 10, "11 111000000 000000000 000000001"),  # the newest token goes before the sinks
        (2, 2, "11 000000000 000000000 000000001"),
    ],
)
def test_streaming_llm_by_hand(low: int, sinks: int, expected: str) -> None:
    history = history_of(SYSTEM, clip(), clip(), clip())
    config = RetentionConfig(29, low, sink_tokens=sinks)
    plan = make_plan(make_policy("streaming-llm"), history, config)
    assert plan.keep.tolist() == mask(expected)


def test_streaming_llm_keeps_the_same_sinks_for_ever() -> None:
    history = history_of(clip(), clip())  # no prefix: the sinks are the first tokens of all
    for _ in range(5):
        plan = make_plan(make_policy("streaming-llm"), history, RetentionConfig(12, 12))
        history = history.keep(plan.keep)
        assert history.cells["order"][:2].tolist() == [0, 1]
        assert len(history) == 12
        history = history.append(clip(), np.arange(9))


@pytest.mark.parametrize(
    ("low", "share", "heavy", "expected"),
    [
        (29, 0.5, {}, "11 111111111 111111111 111111111"),
        # 13 beside the prefix: 7 recent, 6 heavy; of equals the oldest.
        (15, 0.5, {}, "11 111111000 000000000 001111111"),
        (15, 0.5, {7: 3, 14: 2, 15: 2}, "11 111001000 000110000 001111111"),
        (15, 0.5, {22: 0, 28: 0, 0: 0}, "11 111111000 000000000 001111111"),
        (15, 0.0, {7: 3}, "11 000000000 000001111 111111111"),
        (15, 0.9, {28: 0, 20: 9}, "11 111111111 100000000 100000011"),
        (3, 0.5, {7: 3}, "11 000000000 000000000 000000001"),
        (1, 0.5, {7: 3}, "11 000000000 000000000 000000001"),
    ],
)
def test_h2o_by_hand(low: int, share: float, heavy: dict[int, float], expected: str) -> None:
    history = history_of(SYSTEM, clip(), clip(), clip())
    config = RetentionConfig(29, low, heavy_share=share)
    plan = make_plan(make_policy("h2o"), history, config, weighed(heavy, 29))
    assert plan.keep.tolist() == mask(expected)


def test_h2o_without_mass_is_refused() -> None:
    history = history_of(SYSTEM, clip())
    with pytest.raises(ConfigError, match=r"\[policy\] h2o chooses by attention mass, which only"):
        make_plan(make_policy("h2o"), history, RetentionConfig())
    with pytest.raises(ValueError, match=r"\[retention\] mass of shape \(10,\) for 11 cells"):
        make_plan(make_policy("h2o"), history, RetentionConfig(), np.ones(10))


def seconds_each(unit: Unit, seconds: float = 2.0) -> Unit:
    return replace(unit, seconds=seconds)


WATCHED = history_of(
    SYSTEM,
    seconds_each(clip(words=1)),  # B iiii aaa t B
    prompt(3),
    seconds_each(clip()),
    prompt(3, UnitKind.REPLY),
    seconds_each(clip()),
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "11 1 1111 111 1 1 111 111111111 111 111111111"),
        ({"vision_window": 4.0}, "11 0 0000 000 1 0 111 111111111 111 111111111"),
        ({"vision_window": 3.9}, "11 0 0000 000 1 0 111 000000000 111 111111111"),
        # The newest unit stays even outside the window.
        ({"vision_window": 0.0}, "11 0 0000 000 1 0 111 000000000 111 111111111"),
        (
            {"vision_window": 0.0, "text_sink": 2, "text_window": 1},
            "11 0 0000 000 1 0 100 000000000 001 111111111",
        ),
        (
            {"vision_window": 0.0, "text_sink": 0, "text_window": 0},
            "11 0 0000 000 0 0 000 000000000 000 111111111",
        ),
        # To meet the target pictures go first, oldest unit first,
        ({"low_watermark": 35}, "11 0 0000 000 1 0 111 111111111 111 111111111"),
        ({"low_watermark": 26}, "11 0 0000 000 1 0 111 000000000 111 111111111"),
        # then the window of text from its old end,
        (
            {"low_watermark": 16, "text_sink": 2, "text_window": 4},
            "11 0 0000 000 1 0 100 000000000 111 111111111",
        ),
        (
            {"low_watermark": 15, "text_sink": 2, "text_window": 4},
            "11 0 0000 000 1 0 100 000000000 011 111111111",
        ),
        # then its sinks from their new end,
        (
            {"low_watermark": 12, "text_sink": 2, "text_window": 4},
            "11 0 0000 000 1 0 000 000000000 000 111111111",
        ),
        # and the newest unit is what remains.
        ({"low_watermark": 1}, "11 0 0000 000 0 0 000 000000000 000 111111111"),
    ],
)
def test_streaming_vlm_by_hand(given: dict[str, Any], expected: str) -> None:
    config = replace(RetentionConfig(36, 36), **given)
    plan = make_plan(make_policy("streaming-vlm"), WATCHED, config)
    assert plan.keep.tolist() == mask(expected)


def test_streaming_vlm_keeps_a_question_just_asked() -> None:
    history = history_of(SYSTEM, seconds_each(clip()), prompt(3))
    config = RetentionConfig(5, 5, text_sink=0, text_window=0)
    plan = make_plan(make_policy("streaming-vlm"), history, config)
    assert plan.keep.tolist() == mask("11 000000000 111")


@pytest.mark.parametrize("name", ["token-sliding", "streaming-llm", "h2o"])
def test_a_torn_unit_keeps_truthful_records(name: str) -> None:
    """A cut through a picture: lengths, spans, positions and slots say what is left."""
    builder = UnitBuilder().markers([1])
    offsets = [(0, row, column) for row in range(3) for column in range(3)]
    builder.content(2, offsets, Modality.IMAGE).end_step().markers([3])
    history = History()
    for slots in (np.arange(11), np.arange(50, 61)):
        history = history.append(builder.build(UnitKind.MEDIA), slots)
    config = RetentionConfig(16, 16, sink_tokens=2, heavy_share=0.25)
    heavy = weighed({0: 3, 4: 2, 7: 2, 8: 2}, 22)
    plan = make_plan(make_policy(name), history, config, heavy)
    kept = {
        "token-sliding": "00000011111 11111111111",  # row 1, column 2 and row 2, boundary
        "streaming-llm": "11000000111 11111111111",  # two sinks, row 2, columns 1 and 2, boundary
        "h2o": "10001001101 11111111111",  # four heavy hitters, boundary
    }[name]
    assert plan.keep.tolist() == mask(kept)

    after = history.keep(plan.keep)
    first, second = after.units
    assert (first.length, second.length) == (11, 11)
    slots = [i for i, stays in enumerate(mask(kept)[:11]) if stays]
    assert cut_cells(after).tolist() == slots
    (_, spans), (_, whole) = after.spans()
    roles = {
        "token-sliding": [(0, 4, Modality.IMAGE), (4, 5, Modality.TEXT)],
        "streaming-llm": [
            (0, 1, Modality.TEXT), (1, 4, Modality.IMAGE), (4, 5, Modality.TEXT)
        ],
        "h2o": [(0, 1, Modality.TEXT), (1, 4, Modality.IMAGE), (4, 5, Modality.TEXT)],
    }[name]  # fmt: skip
    assert [(s.start, s.stop, s.modality) for s in spans] == roles
    assert [s.stop - s.start for s in whole] == [1, 9, 1]
    # Holes inside the picture keep each cell at its row and column from the base of its step.
    base = 1 if 0 in slots else 0
    pictures = [offsets[slot - 1] for slot in slots if 1 <= slot <= 9]
    wanted = [[base + axis for axis in offset] for offset in pictures]
    found = after.cells["position"][: len(slots)]
    assert found[[1 <= slot <= 9 for slot in slots]].tolist() == wanted
    assert found[-1].tolist() == [base + 3] * 3


class Answers:
    """A policy that answers what it is told."""

    name = "answers"
    bounded = True
    needs_mass = False

    def __init__(self, keep: Any) -> None:
        self.keep = keep

    def select(self, history: History, config: RetentionConfig, mass: Any = None) -> Any:
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
    broken = RetentionPlan(np.ones(5, bool), short)
    with pytest.raises(ValueError, match=r"\[retention\] a history of 4 cells for 5 kept"):
        broken.validate(long)


def test_plans_differ_where_what_is_kept_or_left_differs() -> None:
    history, other = history_of(SYSTEM, prompt(2)), history_of(SYSTEM, prompt(2, UnitKind.REPLY))
    other.cells["position"][-1] += 1
    every = np.ones(len(history), bool)
    plan = RetentionPlan(every, history)
    assert plan == RetentionPlan(every.copy(), history_of(SYSTEM, prompt(2)))
    assert plan != RetentionPlan(np.arange(len(every)) > 0, history)
    assert plan != RetentionPlan(every, other)
    assert plan != "plan"


def test_an_unknown_policy_is_named() -> None:
    names = "omnipick, streaming-vlm, streaming-llm, h2o, token-sliding, fifo, full"
    with pytest.raises(ConfigError, match=rf"\[policy\] expected one of {names}; got 'lru'"):
        make_policy("lru")
