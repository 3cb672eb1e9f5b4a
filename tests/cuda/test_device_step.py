"""A step's words and the views into them, in NumPy, against the step itself."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from omnitide.backends.cuda import device_step
from omnitide.backends.cuda.device_step import DeviceStep


@pytest.fixture(autouse=True)
def _without_a_device(monkeypatch: pytest.MonkeyPatch, fake_cupy: SimpleNamespace) -> None:
    monkeypatch.setattr(device_step, "cp", fake_cupy)


@pytest.mark.parametrize("room", [0, 7])
@pytest.mark.parametrize(("cells", "queries"), [(150, 1), (90, 33), (40, 0)])
def test_views_hold_the_step(
    make_step: Callable[..., Any], cells: int, queries: int, room: int
) -> None:
    step = make_step(np.random.default_rng(1), 80, cells, queries, 5)
    live = len(step.tiles.subblocks)
    made = DeviceStep.empty(live + room, queries, 40)
    made.load(step)
    assert made.num_tiles.tolist() == [live]
    for name in ("subblocks", "masks", "least", "greatest", "orders"):
        view, want = getattr(made, name), getattr(step.tiles, name)
        assert view.dtype == want.dtype
        assert view.shape == (live + room, *want.shape[1:])
        assert np.array_equal(view[:live], want)
    for name in ("query_slots", "query_orders", "query_cos", "query_sin"):
        view, want = getattr(made, name), getattr(step, name)
        assert view.dtype == want.dtype
        assert np.array_equal(view, want)


def test_loading_another_step_changes_no_address(make_step: Callable[..., Any]) -> None:
    """A recorded pass keeps its views; the words of a smaller step leave nothing of the larger."""
    rng = np.random.default_rng(2)
    large, small = make_step(rng, 64, 160, 3, 5), make_step(rng, 64, 20, 3, 1)
    made = DeviceStep.empty(10, 3, 32)
    made.load(large)
    before = {name: getattr(made, name).ctypes.data for name in ("orders", "masks", "query_cos")}
    made.load(small)
    assert made.num_tiles.tolist() == [len(small.tiles.subblocks)]
    assert not made.masks[len(small.tiles.subblocks) :].any()
    assert np.array_equal(made.query_sin, small.query_sin)
    assert before == {name: getattr(made, name).ctypes.data for name in before}


def test_of_takes_no_more_room_than_the_step_needs(make_step: Callable[..., Any]) -> None:
    step = make_step(np.random.default_rng(3), 64, 100, 2, 4)
    made = DeviceStep.of(step)
    assert made.max_tiles == len(step.tiles.subblocks)
    assert made.num_queries == 2
    # One count; four words a tile and 32 orders; slots and orders of two queries; their angles.
    assert made.words.size == 1 + 36 * made.max_tiles + 4 + 2 * 2 * 32
