"""How a migration is split into saved rows and direct copies, against a slow simulation."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from omnitide.backends.cuda.cache_writes import plan

SLOTS = 24


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    destinations=st.lists(st.integers(0, SLOTS - 1), unique=True, max_size=SLOTS),
    data=st.data(),
)
def test_a_plan_moves_all_rows_at_once_and_saves_no_row_without_need(
    destinations: list[int], data: st.DataObject
) -> None:
    count = len(destinations)
    sources = data.draw(st.lists(st.integers(0, SLOTS - 1), min_size=count, max_size=count))
    saved, origins, targets = plan(np.array(sources, np.int32), np.array(destinations, np.int32))

    pool = np.arange(100, 100 + SLOTS)
    want = pool.copy()
    want[destinations] = pool[sources]
    # Direct copies may happen in any order beside the writes: none may read what one writes.
    direct = origins[origins >= 0]
    assert not set(direct.tolist()) & set(targets.tolist())
    scratch = pool[saved]
    for origin, target in zip(origins, targets, strict=True):
        pool[target] = pool[origin] if origin >= 0 else scratch[~origin]
    assert pool.tolist() == want.tolist()

    moving = {s for s, d in zip(sources, destinations, strict=True) if s != d}
    written = {d for s, d in zip(sources, destinations, strict=True) if s != d}
    assert saved.tolist() == sorted(moving & written)
