"""A step's views of the live cells against a row-by-row builder."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnitide.pages import SUBBLOCK_SIZE
from omnitide.step import Step

SETTINGS = settings(max_examples=80, deadline=None, derandomize=True)


def step_of(slots: list[int], orders: list[int], num_queries: int) -> Step:
    """A step whose queries are the newest cells."""
    cells = len(slots)
    first = cells - num_queries
    table = np.arange(4 * cells, dtype=np.float32).reshape(cells, 4)
    places, ranks = np.array(slots, np.int32), np.array(orders, np.int32)
    return Step(
        places, ranks, table, -table, places[first:], ranks[first:], table[first:], -table[first:]
    )


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Slots in any order, rising orders, and a number of queries."""
    slots = draw(st.lists(st.integers(0, 6 * SUBBLOCK_SIZE - 1), unique=True, max_size=120))
    gaps = draw(st.lists(st.integers(1, 4), min_size=len(slots), max_size=len(slots)))
    orders = [sum(gaps[: i + 1]) - 1 for i in range(len(slots))]
    return slots, orders, draw(st.integers(0, len(slots)))


@SETTINGS
@given(drawn=steps())
def test_tiles_equal_a_slow_builder(drawn: tuple[list[int], list[int], int]) -> None:
    slots, orders, num_queries = drawn
    tiles = step_of(slots, orders, num_queries).tiles

    at = {slot: i for i, slot in enumerate(slots)}
    blocks = sorted({slot // SUBBLOCK_SIZE for slot in slots})
    assert tiles.subblocks.tolist() == blocks
    for i, block in enumerate(blocks):
        rows = [at.get(block * SUBBLOCK_SIZE + r, -1) for r in range(SUBBLOCK_SIZE)]
        held = [orders[c] for c in rows if c >= 0]
        assert tiles.cells[i].tolist() == rows
        assert tiles.orders[i].tolist() == [orders[c] if c >= 0 else -1 for c in rows]
        assert int(tiles.masks[i]) == sum(1 << r for r, c in enumerate(rows) if c >= 0)
        assert tiles.least[i] == min(held)
        assert tiles.greatest[i] == max(held)
    assert tiles.masks.dtype == np.uint32
    for array in (tiles.subblocks, tiles.least, tiles.greatest, tiles.orders, tiles.cells):
        assert array.dtype == np.int32
    assert tiles.orders.shape == tiles.cells.shape == (len(blocks), SUBBLOCK_SIZE)


def test_a_full_tile_has_a_full_mask() -> None:
    tiles = step_of(list(range(32, 64)), list(range(32)), 0).tiles
    assert tiles.subblocks.tolist() == [1]
    assert tiles.masks.tolist() == [2**32 - 1]
    assert (tiles.least.tolist(), tiles.greatest.tolist()) == ([0], [31])


@SETTINGS
@given(drawn=steps())
def test_a_query_sees_itself_and_what_is_older(drawn: tuple[list[int], list[int], int]) -> None:
    slots, orders, num_queries = drawn
    step = step_of(slots, orders, num_queries)
    queries = orders[len(orders) - num_queries :]
    assert step.visible.tolist() == [[o <= q for o in orders] for q in queries]
    assert (step.num_cells, step.num_queries) == (len(slots), num_queries)


@pytest.mark.parametrize(
    ("orders", "queries", "expected"),
    [
        ([0, 3, 5, 6], [5, 6], True),
        ([0, 3, 5, 6], [0, 3, 5, 6], True),
        ([0, 3, 5, 6], [3, 5], False),
        ([0, 3, 5, 6], [3, 6], False),
        ([0, 3, 5, 6], [], False),
        ([5, 6], [3, 5, 6], False),
    ],
)
def test_is_suffix(orders: list[int], queries: list[int], expected: bool) -> None:
    cells, empty = np.array(orders, np.int32), np.empty((0, 2), np.float32)
    asked = np.array(queries, np.int32)
    assert Step(cells, cells, empty, empty, asked, asked, empty, empty).is_suffix is expected
