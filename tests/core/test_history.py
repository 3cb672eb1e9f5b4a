"""The history: spans, open units, moves, and that it is a value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnitide.history import History, UnitRecord
from omnitide.units import Modality, Role, Span, UnitBuilder, UnitKind

SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)


def words(count: int, kind: UnitKind = UnitKind.TEXT) -> Any:
    return UnitBuilder().text(np.arange(count)).build(kind, time=3.0, seconds=1.0)


@SETTINGS
@given(data=st.data())
def test_units_orders_and_slots_of_a_stream(streams: Any, data: st.DataObject) -> None:
    history = History()
    unit_of: list[int] = []
    lengths: list[int] = []
    for i, sketch in enumerate(data.draw(st.lists(streams.units, max_size=6))):
        unit = streams.build(sketch)
        history = history.append(unit, 1000 - len(history) - np.arange(len(unit)))
        unit_of += [i] * len(unit)
        lengths.append(len(unit))
    count = sum(lengths)

    assert history.cells["unit"].tolist() == unit_of
    assert history.cells["order"].tolist() == list(range(count))
    assert history.cells["slot"].tolist() == list(range(1000, 1000 - count, -1))
    assert [u.id for u in history.units] == list(range(len(lengths)))
    assert [u.length for u in history.units] == lengths
    assert (history.next_unit, history.next_order) == (len(lengths), count)
    assert history.tokens_seen == len(history) == count
    assert history.unit_starts().tolist() == [
        i for i, u in enumerate(unit_of) if i == 0 or unit_of[i - 1] != u
    ]


@SETTINGS
@given(data=st.data())
def test_spans_of_a_cut_history(streams: Any, data: st.DataObject) -> None:
    sketches = data.draw(st.lists(streams.units, min_size=1, max_size=5))
    history = History()
    plain: list[Any] = []
    for i, sketch in enumerate(sketches):
        unit = streams.build(sketch)
        history = history.append(unit, np.arange(len(plain), len(plain) + len(unit)))
        plain += streams.tokens(sketch, i)
    keep = data.draw(st.lists(st.booleans(), min_size=len(plain), max_size=len(plain)))
    history = history.keep(np.array(keep, bool))

    expected: dict[int, list[Span]] = {}
    last = None
    for token in (t for t, k in zip(plain, keep, strict=True) if k):
        spans = expected.setdefault(token.unit, [])
        if spans and (token.unit, token.span) == last:
            spans[-1] = Span(spans[-1].start, spans[-1].stop + 1, token.modality, token.role)
        else:
            start = spans[-1].stop if spans else 0
            spans.append(Span(start, start + 1, token.modality, token.role))
        last = (token.unit, token.span)
    assert {u.id: list(spans) for u, spans in history.spans()} == expected
    assert [u.length for u in history.units] == [
        len(streams.tokens(sketches[u.id])) for u in history.units
    ]
    assert history.cells["order"].tolist() == [i for i, k in enumerate(keep) if k]


def test_a_reply_opens_grows_and_closes() -> None:
    history = History().append(words(3), np.arange(3))
    history = history.append(words(0, UnitKind.REPLY), np.arange(0), open=True)
    assert history.open_unit() == UnitRecord(1, UnitKind.REPLY, 3.0, 1.0, 0, open=True)
    assert [spans for _, spans in history.spans()] == [
        (Span(0, 3, Modality.TEXT, Role.CONTENT),),
        (),
    ]
    history = history.extend(words(2), np.array([7, 9]))
    history = history.close()
    assert history.units[-1] == UnitRecord(1, UnitKind.REPLY, 3.0, 1.0, 2, words=2)
    assert history.cells["slot"].tolist() == [0, 1, 2, 7, 9]
    assert history.cells["unit"].tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("units", [0, 1])
def test_growing_or_closing_asks_for_an_open_unit(units: int) -> None:
    history = History()
    for _ in range(units):
        history = history.append(words(2), np.arange(2))
    with pytest.raises(ValueError, match=r"\[history\] no unit is open"):
        history.extend(words(1), np.array([5]))
    with pytest.raises(ValueError, match=r"\[history\] no unit is open"):
        history.close()


def test_an_open_unit_without_cells_outlives_an_eviction() -> None:
    history = History().append(words(2), np.arange(2)).append(words(0), np.arange(0))
    history = history.append(words(0, UnitKind.REPLY), np.arange(0), open=True)
    history = history.keep(np.zeros(2, bool))
    assert [u.id for u in history.units] == [2]
    assert history.next_position == 0
    history = history.extend(words(1), np.array([4]))
    assert history.cells["position"].tolist() == [[0, 0, 0]]
    history = history.extend(UnitBuilder(1, 1).text([8, 9]).build(UnitKind.REPLY), np.array([5, 6]))
    assert history.cells["order"].tolist() == [2, 3, 4]  # orders are never used twice
    assert (history.next_order, history.tokens_seen) == (5, 5)


@pytest.mark.parametrize("length", [0, 4, 6])
def test_a_mask_of_another_length_is_refused(length: int) -> None:
    history = History().append(words(5), np.arange(5))
    with pytest.raises(ValueError, match=rf"\[history\] a mask of {length} for 5 cells"):
        history.keep(np.ones(length, bool))


def test_an_abandoned_line_leaves_no_trace() -> None:
    history = History().append(words(5), np.arange(5))
    before = history.cells.tobytes(), history.units, history.next_position, history.next_order
    lost = history.append(words(4), np.arange(40, 44))
    lost = lost.keep(np.arange(9) % 2 == 0).move(np.array([40]), np.array([50]))
    assert lost.cells["slot"].tolist() == [0, 2, 4, 41, 43]
    kept = history.append(words(2), np.array([8, 9]))

    after = history.cells.tobytes(), history.units, history.next_position, history.next_order
    assert after == before
    assert kept.cells["slot"].tolist() == [0, 1, 2, 3, 4, 8, 9]
    assert kept.cells["order"].tolist() == list(range(7))


@SETTINGS
@given(data=st.data())
def test_moves_change_slots_alone(data: st.DataObject) -> None:
    slots = data.draw(st.permutations(range(12)))
    history = History().append(words(12), np.array(slots))
    source = data.draw(st.lists(st.integers(0, 11), unique=True))
    # Destinations outside, or among the sources: chains and cycles.
    targets = data.draw(st.permutations([*source, *range(20, 25)]))[: len(source)]
    moved = history.move(np.array(source, np.int32), np.array(targets, np.int32))

    place = dict(zip(source, targets, strict=True))
    assert moved.cells["slot"].tolist() == [place.get(s, s) for s in slots]
    rest = [name for name in moved.cells.dtype.names if name != "slot"]
    assert all((moved.cells[n] == history.cells[n]).all() for n in rest)
    assert history.cells["slot"].tolist() == list(slots)


def system(length: int) -> Any:
    return UnitBuilder().text(np.arange(length)).build(UnitKind.SYSTEM)


@pytest.mark.parametrize("units", [0, 1, 3])
@pytest.mark.parametrize(("kept", "new"), [(2, 5), (4, 1), (4, 3)])
def test_a_renewed_prefix_is_what_was_laid_out_from_the_start(
    kept: int, new: int, units: int
) -> None:
    """Cells, positions and records are those of a history that always had that prefix."""
    history = History().append(system(6), np.arange(6))
    for number in range(units):
        history = history.append(words(2), 10 * (number + 1) + np.arange(2))
    end = UnitBuilder(kept, 1).text(100 + np.arange(new)).build(UnitKind.SYSTEM)
    before = history.cells.tobytes()
    renewed = history.renew_prefix(kept, end, 90 + np.arange(new))

    builder = UnitBuilder().text(np.arange(kept)).text(100 + np.arange(new))
    slots = np.concatenate([np.arange(kept), 90 + np.arange(new)])
    want = History().append(builder.build(UnitKind.SYSTEM), slots)
    for number in range(units):
        want = want.append(words(2), 10 * (number + 1) + np.arange(2))
    assert renewed.cells.tobytes() == want.cells.tobytes()
    assert renewed.units == want.units
    assert (renewed.prefix, renewed.next_position) == (kept + new, want.next_position)
    assert renewed.next_order == want.next_order
    assert renewed.unit_starts().tolist() == want.unit_starts().tolist()
    assert renewed.tokens_seen == history.tokens_seen + new
    assert (renewed.text_words, renewed.media_words) == (want.text_words, want.media_words)
    assert history.cells.tobytes() == before
