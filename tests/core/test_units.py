"""Units: the builder against plain tokens, spans and ranks against a slow walk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnitide.units import (
    CELL,
    Modality,
    Role,
    Span,
    UnitBuilder,
    UnitKind,
    span_ranks,
    span_starts,
    spans_of,
)

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)


@SETTINGS
@given(data=st.data())
def test_builder_writes_the_cells_of_the_sketch(streams: Any, data: st.DataObject) -> None:
    sketch = data.draw(streams.units)
    unit, expected = streams.build(sketch), streams.tokens(sketch)

    assert len(unit) == len(expected)
    assert unit.kind == sketch.kind
    for column in ("span", "step", "modality", "role", "advances"):
        assert unit.cells[column].tolist() == [getattr(t, column) for t in expected]
    assert unit.cells["offset"].tolist() == [list(t.offset) for t in expected]
    for column in ("unit", "order", "position", "slot"):
        assert (unit.cells[column] == -1).all()


@SETTINGS
@given(data=st.data())
def test_spans_of_kept_cells_equal_a_slow_walk(streams: Any, data: st.DataObject) -> None:
    sketches = data.draw(st.lists(streams.units, min_size=1, max_size=4))
    plain = [t for i, s in enumerate(sketches) for t in streams.tokens(s, i)]
    cells = np.concatenate([streams.build(s).cells for s in sketches])
    cells["unit"] = [t.unit for t in plain]
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(plain), max_size=len(plain))))
    kept = [t for t, k in zip(plain, keep, strict=True) if k]
    cells = cells[keep.astype(bool)]

    starts, ranks, seen = [], [], {}
    for i, token in enumerate(kept):
        rank = seen.get((token.unit, token.span), 0)
        seen[token.unit, token.span] = rank + 1
        ranks.append(rank)
        if rank == 0:
            starts.append(i)
    assert span_starts(cells).tolist() == starts
    assert span_ranks(cells).tolist() == ranks


def test_spans_state_modality_and_role() -> None:
    builder = UnitBuilder().markers([1, 2])
    builder.content(9, np.zeros((3, 3)), Modality.IMAGE, Role.SOURCE_IMAGE)
    builder.content(8, np.zeros((2, 3)), Modality.AUDIO).end_step().text([4, 5, 6])
    unit = builder.build(UnitKind.MEDIA, time=1.5, seconds=2.0)

    assert spans_of(unit.cells) == (
        Span(0, 2, Modality.TEXT, Role.BOUNDARY),
        Span(2, 5, Modality.IMAGE, Role.SOURCE_IMAGE),
        Span(5, 7, Modality.AUDIO, Role.CONTENT),
        Span(7, 10, Modality.TEXT, Role.CONTENT),
    )
    assert unit.cells["token"].tolist() == [1, 2, 9, 9, 9, 8, 8, 4, 5, 6]
    assert (unit.time, unit.seconds) == (1.5, 2.0)


def test_a_builder_continues_steps_and_spans() -> None:
    cells = UnitBuilder(first_step=5, first_span=3).text([1, 2]).markers([3]).build("reply").cells
    assert cells["step"].tolist() == [5, 6, 7]
    assert cells["span"].tolist() == [3, 3, 4]


@pytest.mark.parametrize("add", ["text", "markers"])
def test_nothing_added_leaves_no_span(add: str) -> None:
    unit = getattr(UnitBuilder(), add)([]).build(UnitKind.REPLY)
    assert unit.cells.dtype == CELL
    assert len(unit) == 0
    assert spans_of(unit.cells) == ()
    assert span_ranks(unit.cells).tolist() == []
