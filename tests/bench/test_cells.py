"""Live cells for attention, against counting and against steps of a real cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from omnitide.bench.cells import live_cells
from omnitide.bench.settings import LIVE, Settings
from omnitide.pages import SUBBLOCK_SIZE

Make = Callable[..., Settings]


@pytest.mark.parametrize("live", LIVE)
@pytest.mark.parametrize("queries", [1, 7, 70])
def test_cells_are_distinct_and_new_ones_come_last(settings: Make, live: str, queries: int) -> None:
    cells = live_cells(settings(), live, 320, queries, "omnipick", "predictive")
    assert cells.queries == queries
    assert len(np.unique(cells.slots)) == len(cells.slots) == cells.history + queries
    assert cells.history == (160 if live == "half-dead" else 320)
    assert cells.slots.dtype == np.int32
    assert cells.slots.min() >= 0
    assert cells.slots.max() < cells.num_pages * 64 <= cells.slots.max() + 64
    assert cells.cos.shape == cells.sin.shape == (len(cells.slots), 64)
    assert cells.cos.dtype == np.float32


@pytest.mark.parametrize("history", [1, 31, 32, 33, 320, 1000])
def test_dense_cells_lie_one_behind_the_other(settings: Make, history: int) -> None:
    cells = live_cells(settings(), "dense", history, 5, "", "")
    assert cells.slots.tolist() == list(range(history + 5))
    assert cells.tiles == -(-(history + 5) // SUBBLOCK_SIZE)


def test_half_of_the_tiles_are_dead_and_the_others_full(settings: Make) -> None:
    cells = live_cells(settings(), "half-dead", 640, 1, "", "")
    tiles, counts = np.unique(cells.slots[:-1] // SUBBLOCK_SIZE, return_counts=True)
    assert len(tiles) == 10
    assert set(counts) == {32}
    assert tiles.max() < 20
    other = live_cells(settings(seed=1), "half-dead", 640, 1, "", "")
    assert not np.array_equal(other.slots, cells.slots)


def test_every_second_tile_is_dead(settings: Make) -> None:
    cells = live_cells(settings(), "interleaved", 100, 1, "", "")
    tiles, counts = np.unique(cells.slots[:-1] // SUBBLOCK_SIZE, return_counts=True)
    assert tiles.tolist() == [0, 2, 4, 6]
    assert counts.tolist() == [32, 32, 32, 4]


def test_scattered_cells_are_those_of_the_layout(settings: Make) -> None:
    made = settings(stream="qwen-448")
    tiles = {
        layout: live_cells(made, "scattered", 1500, 1, "omnipick", layout).tiles
        for layout in ("native", "predictive", "eager")
    }
    # At least so many are needed; eager packs at each cut, so only the last unit's end is open.
    assert -(-1501 // SUBBLOCK_SIZE) <= tiles["eager"] <= tiles["predictive"] < tiles["native"]


@pytest.mark.parametrize(("live", "queries", "most"), [("dense", 70, 32), ("scattered", 5, 64)])
def test_pairs_are_what_the_steps_let_be_seen(
    settings: Make, live: str, queries: int, most: int
) -> None:
    cells = live_cells(settings(), live, 320, queries, "omnipick", "predictive")
    steps = [step for _, step in cells.steps(cells.history, most)]
    assert sum(int(step.visible.sum()) for step in steps) == cells.pairs
    assert [step.num_queries for step in steps] == [
        min(most, queries - first) for first in range(0, queries, most)
    ]
    new = np.concatenate([step.query_slots for step in steps])
    assert new.tolist() == cells.slots[-queries:].tolist()
    for step in steps:
        assert step.is_suffix
        assert step.rotation == 0


def test_all_steps_together_write_every_cell_once(settings: Make) -> None:
    cells = live_cells(settings(), "interleaved", 200, 9, "", "")
    written = np.concatenate([step.query_slots for _, step in cells.steps(0, 64)])
    assert written.tolist() == cells.slots.tolist()


def test_angles_are_those_of_the_positions(settings: Make) -> None:
    cells = live_cells(settings(), "dense", 40, 2, "", "")
    # The slowest pair turns by theta to the power of -63/64 a position, the first by one.
    assert cells.cos[:, 0] == pytest.approx(np.cos(np.arange(42)), abs=1e-6)
    assert cells.sin[:, 63] == pytest.approx(np.sin(np.arange(42) * 1e6 ** (-63 / 64)), abs=1e-7)
