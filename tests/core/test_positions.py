"""Positions: `lay_out` against a token-by-token twin and against the rules of TMRoPE.

The twin follows docs/architecture.md: a step begins at the counter, its tokens lie at their offsets
from there, and the counter moves on by one more than the largest offset that is kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnitide.history import History
from omnitide.positions import lay_out
from omnitide.units import Modality, Role, UnitBuilder, UnitKind

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)


def slow_lay_out(tokens: list[Any], start: int = 0) -> tuple[list[list[int]], int]:
    """Positions of plain tokens, and the counter behind them."""
    positions: list[list[int]] = []
    counter = start
    i = 0
    while i < len(tokens):
        step = []
        while i < len(tokens) and (
            not step or (tokens[i].unit, tokens[i].step) == (step[0].unit, step[0].step)
        ):
            step.append(tokens[i])
            i += 1
        for token in step:
            positions.append([counter + o for o in token.offset])
        reach = [max(t.offset) for t in step if t.advances] or [max(t.offset) for t in step]
        counter += max(reach) + 1
    return positions, counter


def history_of(streams: Any, sketches: list[Any]) -> tuple[History, list[Any]]:
    """The history of a stream and its plain tokens; slots are the orders."""
    history = History()
    plain: list[Any] = []
    for i, sketch in enumerate(sketches):
        unit = streams.build(sketch)
        history = history.append(unit, np.arange(len(plain), len(plain) + len(unit)))
        plain += streams.tokens(sketch, i)
    return history, plain


@SETTINGS
@given(data=st.data())
def test_a_whole_stream(streams: Any, data: st.DataObject) -> None:
    history, plain = history_of(streams, data.draw(st.lists(streams.units, max_size=6)))
    positions, counter = slow_lay_out(plain)

    assert history.cells["position"].tolist() == positions
    assert history.next_position == counter
    whole, after = lay_out(history.cells)
    assert whole.dtype == np.int32
    assert whole.tolist() == positions
    assert after == counter


@SETTINGS
@given(data=st.data(), start=st.integers(0, 10**6))
def test_any_cells_may_be_missing(streams: Any, data: st.DataObject, start: int) -> None:
    history, plain = history_of(streams, data.draw(st.lists(streams.units, max_size=5)))
    keep = data.draw(st.lists(st.booleans(), min_size=len(plain), max_size=len(plain)))
    kept = [t for t, k in zip(plain, keep, strict=True) if k]

    positions, counter = slow_lay_out(kept, start)
    ours, after = lay_out(history.cells[np.array(keep, bool)], start)
    assert ours.tolist() == positions
    assert after == counter


@SETTINGS
@given(data=st.data())
def test_keep_lays_out_what_is_kept_and_later_units_follow(
    streams: Any, data: st.DataObject
) -> None:
    history, plain = history_of(streams, data.draw(st.lists(streams.units, max_size=5)))
    for _ in range(2):
        keep = data.draw(st.lists(st.booleans(), min_size=len(plain), max_size=len(plain)))
        history = history.keep(np.array(keep, bool))
        plain = [t for t, k in zip(plain, keep, strict=True) if k]
        assert history.cells["position"].tolist() == slow_lay_out(plain)[0]

        sketch = data.draw(streams.units)
        more = streams.build(sketch)
        plain += streams.tokens(sketch, history.next_unit)
        history = history.append(more, np.arange(len(more)))
        positions, counter = slow_lay_out(plain)
        assert history.cells["position"].tolist() == positions
        assert history.next_position == counter


@SETTINGS
@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_a_reply_grows_token_by_token(counts: list[int]) -> None:
    opening = UnitBuilder().markers([1, 2]).content(3, [[0, 4, 2]], Modality.IMAGE).end_step()
    history = History().append(opening.build(UnitKind.MEDIA), np.arange(3))
    history = history.append(UnitBuilder().build(UnitKind.REPLY), np.arange(0), open=True)
    step = 0
    for count in counts:
        unit = UnitBuilder(first_step=step).text(np.arange(count)).build(UnitKind.REPLY)
        history = history.extend(unit, np.arange(len(history), len(history) + count))
        step += count
    total = sum(counts)

    # The markers take position 0, the picture reaches from 1 to 5.
    assert history.cells["position"][3:, 0].tolist() == list(range(6, 6 + total))
    assert history.next_position == 6 + total
    assert history.open_unit().length == total
    assert history.cells["order"].tolist() == list(range(3 + total))
    assert lay_out(history.cells)[0].tolist() == history.cells["position"].tolist()


@SETTINGS
@given(data=st.data())
def test_a_hole_of_whole_steps_shifts_by_its_position_span(
    streams: Any, data: st.DataObject
) -> None:
    sketches = data.draw(st.lists(streams.units, min_size=1, max_size=6))
    history, plain = history_of(streams, sketches)
    steps = sorted({(t.unit, t.step) for t in plain})
    gone = {s for s in steps if data.draw(st.booleans())}
    counter_at: dict[tuple[int, int], tuple[int, int]] = {}
    counter = 0
    for step in steps:
        _, after = slow_lay_out([t for t in plain if (t.unit, t.step) == step], counter)
        counter_at[step] = (counter, after)
        counter = after

    keep = np.array([(t.unit, t.step) not in gone for t in plain], bool)
    after_keep = history.keep(keep)
    before = history.cells["position"][keep]
    expected = []
    for token in (t for t in plain if (t.unit, t.step) not in gone):
        here = (token.unit, token.step)
        expected.append(sum(b - a for s, (a, b) in counter_at.items() if s in gone and s < here))
    assert (before - after_keep.cells["position"]).tolist() == [[s] * 3 for s in expected]
    lost = sum(b - a for s, (a, b) in counter_at.items() if s in gone)
    assert history.next_position - after_keep.next_position == lost


@SETTINGS
@given(data=st.data())
def test_one_axis_streams_shift_by_the_deleted_tokens_before(
    streams: Any, data: st.DataObject
) -> None:
    sketches = data.draw(st.lists(streams.one_axis(), min_size=1, max_size=6))
    history, plain = history_of(streams, sketches)
    keep = data.draw(st.lists(st.booleans(), min_size=len(plain), max_size=len(plain)))
    shift = [keep[:i].count(False) for i in range(len(plain)) if keep[i]]

    before = history.cells["position"][np.array(keep, bool)]
    after = history.keep(np.array(keep, bool))
    assert (before - after.cells["position"]).tolist() == [[s] * 3 for s in shift]
    assert history.next_position - after.next_position == keep.count(False)


def test_kept_tokens_of_a_step_keep_their_offsets_from_its_base() -> None:
    builder = UnitBuilder().text([1])
    picture = [[0, r, q] for r in range(4) for q in range(6)]
    builder.content(2, picture, Modality.IMAGE).end_step().text([3])
    history = History().append(builder.build(UnitKind.MEDIA), np.arange(26))
    assert history.cells["position"][-1].tolist() == [7, 7, 7]  # 1 + max(4, 6)

    keep = np.ones(26, bool)
    keep[1:25] = False
    keep[[2, 8]] = True  # (0, 0, 1) and (0, 1, 1): what is left reaches 1
    kept = history.keep(keep)
    assert kept.cells["position"].tolist() == [[0] * 3, [1, 1, 2], [1, 2, 2], [3] * 3]
    assert kept.next_position == 4


def test_a_step_whose_advancing_cells_are_gone_takes_what_is_left() -> None:
    builder = UnitBuilder().content(1, [[0, 9, 9]], Modality.IMAGE, advances=False)
    builder.content(2, [[0, 0, 0], [1, 1, 1]], Modality.AUDIO).end_step().text([3])
    history = History().append(builder.build(UnitKind.MEDIA), np.arange(4))
    assert history.cells["position"][-1].tolist() == [2] * 3  # sound alone counts

    kept = history.keep(np.array([True, False, False, True]))
    assert kept.cells["position"].tolist() == [[0, 9, 9], [10] * 3]


def test_equal_steps_of_two_units_are_two_steps() -> None:
    unit = UnitBuilder().markers([1, 2]).build(UnitKind.MEDIA)
    history = History().append(unit, np.arange(2)).append(unit, np.arange(2, 4))
    assert history.cells["position"][:, 0].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("seed", range(40))
def test_layouts_of_qwen_follow_tmrope(seed: int) -> None:
    """The rules of TMRoPE in the order in which its authors state them, counter and all."""
    rng = np.random.default_rng(seed)
    builder = UnitBuilder()
    expected: list[tuple[int, int, int]] = []
    counter = 0

    def word(count: int) -> None:
        nonlocal counter
        for _ in range(count):
            expected.append((counter,) * 3)
            counter += 1

    for _ in range(rng.integers(1, 6)):
        kind = rng.choice(["text", "audio", "image", "video", "film"])
        height, width, frames = (int(n) for n in rng.integers(1, 6, 3))
        sounds = int(rng.integers(1, 130))
        if kind == "text":
            builder.text(np.arange(sounds))
            word(sounds)
        elif kind == "audio":
            builder.text([1], Role.BOUNDARY)
            word(1)
            offsets = np.repeat(np.arange(sounds)[:, None], 3, axis=1)
            builder.content(2, offsets, Modality.AUDIO).end_step()
            word(sounds)
            builder.text([3], Role.BOUNDARY)
            word(1)
        elif kind in ("image", "video"):
            builder.text([1], Role.BOUNDARY)
            word(1)
            count = 1 if kind == "image" else frames
            seen = [
                (25 * k, r, q) for k in range(count) for r in range(height) for q in range(width)
            ]
            builder.content(2, seen, Modality.IMAGE).end_step()
            expected += [(counter + t, counter + r, counter + q) for t, r, q in seen]
            counter += max(25 * (count - 1), height - 1, width - 1) + 1
            builder.text([3], Role.BOUNDARY)
            word(1)
        else:
            builder.markers([1, 2])
            expected += [(counter,) * 3] * 2
            counter += 1
            pieces = []
            for bound in range(0, 25 * frames + sounds, 50):
                seen = [
                    (25 * k, r, q)
                    for k in range(frames)
                    for r in range(height)
                    for q in range(width)
                    if bound <= 25 * k < bound + 50
                ]
                heard = [(i, i, i) for i in range(bound, min(bound + 50, sounds))]
                pieces += [(Modality.IMAGE, seen)] if seen else []
                pieces += [(Modality.AUDIO, heard)] if heard else []
            for i, (modality, offsets) in enumerate(pieces):
                builder.content(2, offsets, modality, advances=i == len(pieces) - 1)
                expected += [(counter + t, counter + h, counter + w) for t, h, w in offsets]
            builder.end_step()
            # The counter follows the piece that came last, even where an earlier one reaches on.
            counter = max(max(p) for p in expected[-len(pieces[-1][1]) :]) + 1
            builder.markers([4, 5])
            expected += [(counter,) * 3] * 2
            counter += 1

    positions, after = lay_out(builder.build(UnitKind.MEDIA).cells)
    assert positions.tolist() == [list(p) for p in expected]
    assert after == counter


@pytest.mark.parametrize(
    ("frames", "height", "width", "sounds", "num_tokens", "span"),
    [
        (1, 4, 6, 0, 24 + 2, 6 + 2),  # an image of 8 x 12 patches
        (4, 2, 4, 0, 32 + 2, 76 + 2),  # a silent film
        (2, 16, 16, 50, 562 + 4, 50 + 2),  # two seconds of film at 448 x 448
        (2, 16, 16, 0, 512 + 2, 26 + 2),  # the same, silent
    ],
)
def test_worked_values_of_qwen(
    frames: int, height: int, width: int, sounds: int, num_tokens: int, span: int
) -> None:
    seen = [(25 * k, r, q) for k in range(frames) for r in range(height) for q in range(width)]
    edge = [1, 2] if sounds else [1]
    builder = UnitBuilder().markers(edge).content(3, seen, Modality.IMAGE, advances=not sounds)
    builder.content(4, [(i, i, i) for i in range(sounds)], Modality.AUDIO).end_step().markers(edge)
    unit = builder.build(UnitKind.MEDIA)
    assert len(unit) == num_tokens
    assert lay_out(unit.cells, 11)[1] == 11 + span
