"""What attention is told to hold, against what was allocated: counted, so that no load disturbs it.

NumPy reports its arrays to `tracemalloc`, MLX counts its own.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omnitide.backend import Backend
from omnitide.backends import load_backend
from omnitide.figures import ITEMSIZES
from omnitide.pages import PAGE_SIZE
from omnitide.rotary import Rotary
from omnitide.step import Step

HEADS, KV_HEADS, DIM = 8, 2, 64
CELLS = (1_000, 6_000)
QUERIES = (1, 200)

SMALL = 1 << 16
"""Bytes of objects that are no arrays of cells or queries."""


@pytest.fixture(
    params=[
        ("reference", "float32"),
        ("reference", "float64"),
        ("mlx", "float32"),
        ("mlx", "bfloat16"),
    ],
    ids=lambda pair: "-".join(pair),
)
def counted(request: pytest.FixtureRequest) -> Backend:
    """A backend whose allocations can be counted."""
    name, dtype = request.param
    if name == "mlx":
        mx = pytest.importorskip("mlx.core", reason="MLX is not installed")
        if mx.metal.is_available():
            pytest.skip("MLX's own attention on Metal holds no scores; this is of its CPU path")
    return load_backend(name, dtype)


def _most_bytes(backend: Backend, work: Callable[[], Any]) -> int:
    """Bytes that a call holds at most, beside what there was before."""
    if backend.name == "mlx":
        import mlx.core as mx

        mx.synchronize()
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        backend.synchronize(work())
        return int(mx.get_peak_memory() - before)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def _step(cells: int, queries: int) -> Step:
    """The queries are the newest cells; cell i lies in slot i."""
    every = np.arange(cells, dtype=np.int32)
    cos, sin = Rotary(DIM).tables(np.stack([every] * 3, axis=1))
    new = slice(cells - queries, cells)
    return Step(every, every, cos, sin, every[new], every[new], cos[new], sin[new])


def _held(
    backend: Backend, cells: int, queries: int, kv_bits: int | None, name: str = "attention"
) -> int:
    pools = backend.new_pools(1, KV_HEADS, DIM, -(-cells // PAGE_SIZE), kv_bits)
    whole = _step(cells, cells)
    k, v = (backend.random_normal((cells, KV_HEADS, DIM), 1, seed) for seed in (1, 2))
    backend.append(pools, 0, whole, k, v)
    q = backend.random_normal((queries, HEADS, DIM), 1, 3)
    # Computed, and let go, before anything is counted.
    backend.synchronize(q, k, v, *pools.keys, *pools.values)
    del k, v, whole
    step = _step(cells, queries)
    operation = getattr(backend, name)
    return _most_bytes(backend, lambda: operation(q, pools, 0, step, DIM**-0.5))


@pytest.mark.parametrize("kv_bits", [None, 8])
@pytest.mark.parametrize("queries", QUERIES)
@pytest.mark.parametrize("cells", CELLS)
def test_attention_holds_what_is_told_and_not_much_less(
    cells: int, queries: int, kv_bits: int | None, counted: Backend
) -> None:
    held = counted.run(_held, counted, cells, queries, kv_bits)
    told = counted.attention_bytes(cells, queries, HEADS, KV_HEADS, DIM, kv_bits)
    # What is as large as the queries is not told here: in turn up to six such arrays.
    states = 6 * queries * HEADS * DIM * ITEMSIZES[counted.dtype]
    assert held <= told + states + SMALL
    if counted.name == "reference":
        assert told <= 1.5 * held
    elif cells == max(CELLS):
        # What MLX holds depends on how far its host thread runs ahead; told is the most.
        assert told <= 2.5 * held


@pytest.mark.parametrize("kv_bits", [None, 8])
@pytest.mark.parametrize("queries", QUERIES)
@pytest.mark.parametrize("cells", CELLS)
def test_attention_mass_holds_no_more_than_what_is_told_of_attention(
    cells: int, queries: int, kv_bits: int | None, counted: Backend
) -> None:
    held = counted.run(_held, counted, cells, queries, kv_bits, "attention_mass")
    told = counted.attention_bytes(cells, queries, HEADS, KV_HEADS, DIM, kv_bits)
    states = 6 * queries * HEADS * DIM * ITEMSIZES[counted.dtype]
    assert held <= told + states + SMALL


@pytest.mark.parametrize("kv_bits", [None, 8])
def test_scores_are_not_held_all_at_once(kv_bits: int | None, counted: Backend) -> None:
    cells, queries = 6_000, 200
    held = counted.run(_held, counted, cells, queries, kv_bits)
    scores = HEADS * queries * cells * ITEMSIZES[counted.dtype]
    assert held < scores
