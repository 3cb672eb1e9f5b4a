"""The paged cache on every backend and dtype: append, attention, migrate, growing.

Before anything is written, every slot of the pools is filled with NaN: whatever multiplies a dead
row, in a page in use or not, gives NaN. The oracle of attention knows nothing of pages; it goes
through the cells in logical order, one head at a time, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backend import Backend, Pools
from omnitide.pages import PAGE_SIZE
from omnitide.rotary import Rotary
from omnitide.step import Step

Floats = NDArray[np.float64]
MROPE = (16, 24, 24)


@dataclass(frozen=True)
class Case:
    """One geometry of attention.

    Attributes:
        placement: How cells are laid into slots: "packed" from slot 0, "reversed", "odd" (every
            other slot), "random" (scattered over all pages), "late" (packed into the last pages).
        queries_are: "newest" cells, "inner" ones (any, in any order), "absent" (not live
            themselves, between the cells), "half-blind" (every other before all cells), "blind".
    """

    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 64
    cells: int = 100
    queries: int = 3
    pages: int = 4
    placement: str = "random"
    queries_are: str = "newest"
    sections: tuple[int, int, int] | None = None


CASES: dict[str, Case] = {
    **{
        f"group{group}-dim{dim}": Case(
            2 * group, 2, dim, cells=70, queries=5, sections=MROPE if dim == 128 else None
        )
        for group in (1, 4, 7, 8)
        for dim in (64, 80, 96, 128)
    },
    **{
        f"queries{count}": Case(cells=count + 90, queries=count, pages=4 + count // 50)
        for count in (1, 2, 7, 16, 17, 64, 65, 512)
    },
    "queries2304": Case(1, 1, 64, cells=2341, queries=2304, pages=40),
    "first-unit": Case(cells=70, queries=70),
    "first-cell": Case(cells=1, queries=1),
    "full-pages": Case(cells=128, placement="packed"),
    "full-subblock": Case(cells=32, queries=1, placement="packed"),
    "one-past-a-subblock": Case(cells=33, queries=1, placement="packed"),
    "one-past-a-page": Case(cells=65, placement="packed"),
    "every-slot": Case(cells=256, placement="packed"),
    "late-pages": Case(cells=70, pages=9, placement="late"),
    "reversed": Case(cells=100, placement="reversed"),
    "holes-in-every-tile": Case(cells=100, placement="odd"),
    "few-in-many-pages": Case(cells=9, pages=30),
    "gqa-prefill": Case(8, 2, 80, cells=150, queries=66),
    "sections-decode": Case(7, 1, 128, cells=150, queries=1, sections=MROPE),
    "sections-prefill": Case(7, 1, 128, cells=90, queries=40, sections=MROPE),
    "inner": Case(4, 2, cells=100, queries=17, queries_are="inner"),
    "one-inner": Case(cells=100, queries=1, queries_are="inner"),
    "absent": Case(4, 2, cells=100, queries=17, queries_are="absent"),
    "half-blind": Case(4, 2, cells=100, queries=18, queries_are="half-blind"),
    "blind": Case(cells=40, queries=5, queries_are="blind"),
    "one-blind": Case(cells=40, queries=1, queries_are="blind"),
    "no-cells": Case(cells=0, queries=2, queries_are="blind"),
    "no-queries": Case(cells=40, queries=0),
}


def place(rng: np.random.Generator, case: Case) -> NDArray[np.int32]:
    total = case.pages * PAGE_SIZE
    slots = {
        "packed": np.arange(case.cells),
        "reversed": np.arange(case.cells)[::-1],
        "odd": 2 * np.arange(case.cells) + 1,
        "random": rng.permutation(total)[: case.cells],
        "late": total - case.cells + np.arange(case.cells),
    }[case.placement]
    return slots.astype(np.int32)


def make_step(rng: np.random.Generator, case: Case) -> Step:
    slots = place(rng, case)
    # Gaps between orders, as evictions leave them, and room before the first.
    orders = 10 + np.sort(rng.permutation(9 * case.cells)[: case.cells])
    positions = rng.integers(0, 30_000, (case.cells, 3)).astype(np.int32)
    rotary = Rotary(case.head_dim, 1e6, case.sections)
    chosen = {
        "newest": np.arange(case.cells - case.queries, case.cells),
        "inner": rng.permutation(case.cells)[: case.queries],
    }.get(case.queries_are)
    if chosen is not None:
        query_orders, query_positions = orders[chosen], positions[chosen]
        query_slots = slots[chosen]
    else:
        query_orders = 10 + rng.integers(0, 9 * case.cells + 1, case.queries)
        if case.queries_are != "absent":
            query_orders[:: 1 if case.queries_are == "blind" else 2] = 9
        query_positions = rng.integers(0, 30_000, (case.queries, 3)).astype(np.int32)
        query_slots = np.zeros(case.queries, np.int32)
    return Step(
        slots,
        orders.astype(np.int32),
        *rotary.tables(positions),
        query_slots,
        query_orders.astype(np.int32),
        *rotary.tables(query_positions),
    )


def writing(slots: NDArray[Any], head_dim: int) -> Step:
    """A step whose new tokens go to `slots`."""
    count = len(slots)
    table = np.zeros((count, head_dim // 2), np.float32)
    orders = np.arange(count, dtype=np.int32)
    at = slots.astype(np.int32)
    return Step(at, orders, table, table, at, orders, table, table)


def fill(backend: Backend, pools: Pools, values: Floats) -> None:
    """Write all slots of all layers; values (2 for K and V, layer, slot, kv_head, head_dim)."""
    step = writing(np.arange(values.shape[2]), values.shape[-1])
    for layer in range(values.shape[1]):
        backend.append(pools, layer, step, *(backend.asarray(part) for part in values[:, layer]))


def read(backend: Backend, pools: Pools) -> Floats:
    """All slots of all layers, shaped as `fill` takes them."""
    arrays = [[backend.to_numpy(a) for a in arrays] for arrays in (pools.keys, pools.values)]
    stacked = np.array(arrays)  # (K or V, layer, page, kv_head, row, head_dim)
    by_slot = np.moveaxis(stacked, 3, 4)
    return by_slot.reshape(*by_slot.shape[:2], -1, *by_slot.shape[4:])


def rotated(x: Floats, cos: NDArray[Any], sin: NDArray[Any]) -> Floats:
    half = x.shape[-1] // 2
    turned = (x[..., :half] + 1j * x[..., half:]) * (cos + 1j * sin.astype(np.float64))[:, None]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def shares_oracle(q: Floats, k: Floats, step: Step, scale: float) -> Floats:
    """Attention probabilities (head, query, cell); all 0 for a query that sees nothing."""
    q = rotated(q, step.query_cos, step.query_sin)
    k = rotated(k, step.cos, step.sin)
    group = q.shape[1] // k.shape[1]
    visible = step.orders[None, :] <= step.query_orders[:, None]
    out = np.zeros((q.shape[1], len(q), len(k)))
    for head in range(q.shape[1]):
        scores = q[:, head] @ k[:, head // group].T * scale
        weights = np.where(visible, np.exp(scores - scores.max(initial=0)), 0)
        total = weights.sum(axis=1, keepdims=True)
        out[head] = weights / np.where(total > 0, total, 1)
    return out


def attention_oracle(q: Floats, k: Floats, v: Floats, step: Step, scale: float) -> Floats:
    group = q.shape[1] // k.shape[1]
    shares = shares_oracle(q, k, step, scale)
    heads = [share @ v[:, head // group] for head, share in enumerate(shares)]
    return np.stack(heads, axis=1)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_attention_matches_oracle(
    backend: Backend,
    case: Case,
    rounded: Callable[..., Any],
    tolerance: Callable[[str], float],
    assert_matches: Callable[..., None],
) -> None:
    rng = np.random.default_rng(11)
    step = make_step(rng, case)
    q = rounded(rng.standard_normal((case.queries, case.heads, case.head_dim)), backend.dtype)
    k, v = rounded(
        rng.standard_normal((2, case.cells, case.kv_heads, case.head_dim)), backend.dtype
    )
    scale = case.head_dim**-0.5

    def call() -> tuple[str, NDArray[Any]]:
        pools = backend.new_pools(1, case.kv_heads, case.head_dim, case.pages)
        slots = case.pages * PAGE_SIZE
        fill(backend, pools, np.full((2, 1, slots, case.kv_heads, case.head_dim), np.nan))
        cells = writing(step.slots, case.head_dim)
        backend.append(pools, 0, cells, backend.asarray(k), backend.asarray(v))
        out = backend.attention(backend.asarray(q), pools, 0, step, scale)
        return str(out.dtype), backend.to_numpy(out)

    device_dtype, got = backend.run(call)
    assert device_dtype.rpartition(".")[2] == backend.dtype
    want = attention_oracle(q, k, v, step, scale)
    assert_matches(got, want, backend.dtype, tolerance(backend.dtype))
    blind = step.query_orders < step.orders.min(initial=10)
    assert not got[blind].any()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_attention_mass_matches_oracle(
    backend: Backend,
    case: Case,
    rounded: Callable[..., Any],
    tolerance: Callable[[str], float],
    assert_matches: Callable[..., None],
) -> None:
    """Values and keys of dead slots are NaN, and values of live ones too: no V is read."""
    rng = np.random.default_rng(17)
    step = make_step(rng, case)
    q = rounded(2 * rng.standard_normal((case.queries, case.heads, case.head_dim)), backend.dtype)
    k = rounded(rng.standard_normal((case.cells, case.kv_heads, case.head_dim)), backend.dtype)
    scale = case.head_dim**-0.5

    def call() -> tuple[str, NDArray[Any]]:
        pools = backend.new_pools(1, case.kv_heads, case.head_dim, case.pages)
        slots = case.pages * PAGE_SIZE
        fill(backend, pools, np.full((2, 1, slots, case.kv_heads, case.head_dim), np.nan))
        cells = writing(step.slots, case.head_dim)
        backend.append(
            pools, 0, cells, backend.asarray(k), backend.asarray(np.full_like(k, np.nan))
        )
        out = backend.attention_mass(backend.asarray(q), pools, 0, step, scale)
        return str(out.dtype), backend.to_numpy(out)

    device_dtype, got = backend.run(call)
    wide = "float64" if backend.dtype == "float64" else "float32"
    assert device_dtype.rpartition(".")[2] == wide
    shares = shares_oracle(q, k, step, scale)
    assert_matches(got, shares.sum(axis=(0, 1)), backend.dtype, tolerance(backend.dtype))
    seeing = np.count_nonzero(step.query_orders >= step.orders.min(initial=10))
    expected = seeing * case.heads if case.cells else 0
    assert got.sum(dtype=np.float64) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_attention_weights_match_oracle(
    backend: Backend,
    case: Case,
    rounded: Callable[..., Any],
    tolerance: Callable[[str], float],
    assert_matches: Callable[..., None],
) -> None:
    """One weight a head, query and cell; neither dead slots nor values are read."""
    rng = np.random.default_rng(18)
    step = make_step(rng, case)
    q = rounded(2 * rng.standard_normal((case.queries, case.heads, case.head_dim)), backend.dtype)
    k = rounded(rng.standard_normal((case.cells, case.kv_heads, case.head_dim)), backend.dtype)
    scale = case.head_dim**-0.5

    def call() -> tuple[str, NDArray[Any]]:
        pools = backend.new_pools(1, case.kv_heads, case.head_dim, case.pages)
        slots = case.pages * PAGE_SIZE
        fill(backend, pools, np.full((2, 1, slots, case.kv_heads, case.head_dim), np.nan))
        cells = writing(step.slots, case.head_dim)
        backend.append(
            pools, 0, cells, backend.asarray(k), backend.asarray(np.full_like(k, np.nan))
        )
        out = backend.attention_weights(backend.asarray(q), pools, 0, step, scale)
        return str(out.dtype), backend.to_numpy(out)

    device_dtype, got = backend.run(call)
    wide = "float64" if backend.dtype == "float64" else "float32"
    assert device_dtype.rpartition(".")[2] == wide
    shares = shares_oracle(q, k, step, scale)
    assert got.shape == shares.shape == (case.heads, case.queries, case.cells)
    assert_matches(got, shares, backend.dtype, tolerance(backend.dtype))
    assert not got[:, step.orders[None, :] > step.query_orders[:, None]].any()


def test_attention_reads_what_the_same_pass_appended(
    backend: Backend,
    rounded: Callable[..., Any],
    tolerance: Callable[[str], float],
    assert_matches: Callable[..., None],
) -> None:
    """Two passes over one cache, as a session makes them: append, attend, append, attend."""
    rng = np.random.default_rng(12)
    case = Case(4, 2, cells=90, queries=0)
    whole = make_step(rng, case)
    q = rounded(rng.standard_normal((90, 4, 64)), backend.dtype)
    k, v = rounded(rng.standard_normal((2, 90, 2, 64)), backend.dtype)

    def part(start: int, stop: int) -> Step:
        new = slice(start, stop)
        seen = slice(0, stop)
        return Step(
            *(x[seen] for x in (whole.slots, whole.orders, whole.cos, whole.sin)),
            *(x[new] for x in (whole.slots, whole.orders, whole.cos, whole.sin)),
        )

    def call() -> list[NDArray[Any]]:
        pools = backend.new_pools(1, 2, 64, case.pages)
        fill(backend, pools, np.full((2, 1, case.pages * PAGE_SIZE, 2, 64), np.nan))
        outs = []
        for start, stop in ((0, 33), (33, 89), (89, 90)):
            step = part(start, stop)
            new = (backend.asarray(x[start:stop]) for x in (k, v))
            backend.append(pools, 0, step, *new)
            outs.append(backend.attention(backend.asarray(q[start:stop]), pools, 0, step, 0.125))
        return [backend.to_numpy(out) for out in outs]

    got = np.concatenate(backend.run(call))
    want = attention_oracle(q, k, v, part(0, 90), 0.125)
    assert_matches(got, want, backend.dtype, tolerance(backend.dtype))


def test_append_writes_its_rows_and_no_others(
    backend: Backend, rounded: Callable[..., Any], assert_matches: Callable[..., None]
) -> None:
    rng = np.random.default_rng(13)
    before = rounded(rng.standard_normal((2, 2, 3 * PAGE_SIZE, 2, 64)), backend.dtype)
    before[:, :, 5:70] = np.nan
    slots = np.array([63, 64, 191, 0, 100], np.int32)
    new = rounded(rng.standard_normal((2, 5, 2, 64)), backend.dtype)

    def call() -> Floats:
        pools = backend.new_pools(2, 2, 64, 3)
        fill(backend, pools, before)
        backend.append(pools, 1, writing(slots, 64), *(backend.asarray(part) for part in new))
        return read(backend, pools)

    want = before.copy()
    for i, slot in enumerate(slots):
        want[:, 1, slot] = new[:, i]
    assert_matches(backend.run(call), want, backend.dtype, 0)


MOVES: dict[str, tuple[list[int], list[int]]] = {
    "none": ([], []),
    "one": ([5], [130]),
    "swap": ([5, 130], [130, 5]),
    "cycle": ([1, 64, 150], [64, 150, 1]),
    # Each destination is the next move's source: writing too early would copy row 3 everywhere.
    "chain": ([3, 4, 5, 6], [4, 5, 6, 7]),
    "chain-backwards": ([6, 5, 4, 3], [7, 6, 5, 4]),
    "onto-itself": ([9, 10], [9, 11]),
    "one-row-to-two": ([7, 7], [8, 9]),
    "permutation": (
        list(range(192)),
        np.random.default_rng(5).permutation(192).tolist(),
    ),
    "half-of-all": (
        np.random.default_rng(6).permutation(192)[:96].tolist(),
        np.random.default_rng(8).permutation(192)[:96].tolist(),
    ),
}


@pytest.mark.parametrize(("source", "destination"), MOVES.values(), ids=MOVES.keys())
def test_migrate_is_a_simultaneous_copy(
    backend: Backend,
    source: list[int],
    destination: list[int],
    rounded: Callable[..., Any],
    assert_matches: Callable[..., None],
) -> None:
    rng = np.random.default_rng(14)
    before = rounded(rng.standard_normal((2, 3, 3 * PAGE_SIZE, 2, 16)), backend.dtype)
    before[:, :, 20:40] = np.nan

    def call() -> Floats:
        pools = backend.new_pools(3, 2, 16, 3)
        fill(backend, pools, before)
        backend.migrate(pools, np.array(source, np.int32), np.array(destination, np.int32))
        return read(backend, pools)

    want = before.copy()
    for a, b in zip(source, destination, strict=True):
        want[:, :, b] = before[:, :, a]
    assert_matches(backend.run(call), want, backend.dtype, 0)


@pytest.mark.parametrize("num_pages", [2, 3, 7])
def test_growing_keeps_contents(
    backend: Backend,
    num_pages: int,
    rounded: Callable[..., Any],
    assert_matches: Callable[..., None],
) -> None:
    rng = np.random.default_rng(15)
    before = rounded(rng.standard_normal((2, 2, 2 * PAGE_SIZE, 2, 16)), backend.dtype)
    after = rounded(rng.standard_normal((2, 1, 2, 16)), backend.dtype)
    last = num_pages * PAGE_SIZE - 1

    def call() -> tuple[Floats, int]:
        pools = backend.new_pools(2, 2, 16, 2)
        fill(backend, pools, before)
        backend.grow_pools(pools, num_pages)
        for layer in range(2):
            new = (backend.asarray(part) for part in after)
            backend.append(pools, layer, writing(np.array([last]), 16), *new)
        return read(backend, pools), pools.num_pages

    got, pages = backend.run(call)
    assert (pages, got.shape[2]) == (num_pages, num_pages * PAGE_SIZE)
    want = before.copy()
    if num_pages == 2:
        want[:, :, last] = after
    assert_matches(got[:, :, : 2 * PAGE_SIZE], want, backend.dtype, 0)
    assert_matches(got[:, 0, last], after[:, 0], backend.dtype, 0)
    assert_matches(got[:, 1, last], after[:, 0], backend.dtype, 0)


def test_new_pools_have_the_shape_of_the_layout(backend: Backend) -> None:
    pools = backend.run(backend.new_pools, 3, 2, 16, 5)
    shapes = {tuple(array.shape) for array in (*pools.keys, *pools.values)}
    assert (len(pools.keys), len(pools.values), pools.num_pages) == (3, 3, 5)
    assert shapes == {(5, 2, PAGE_SIZE, 16)}
    itemsize = {"float64": 8, "float32": 4}.get(backend.dtype, 2)
    # A backend may hold a working copy of keys beside K and V.
    layers = 3 * 5 * 2 * PAGE_SIZE * 16 * itemsize
    assert pools.nbytes in (2 * layers, 3 * layers)


def test_no_operation_copies_a_pool(any_backend: Backend) -> None:
    """Peak memory over appends, attention and a migration stays far below one more pool array."""
    backend = any_backend
    num_pages, head_dim = 8192, 64
    slots = np.arange(0, 64, dtype=np.int32)

    def call() -> tuple[int, int]:
        pools = backend.new_pools(1, 4, head_dim, num_pages)
        one = pools.nbytes // 2
        new = backend.asarray(np.ones((64, 4, head_dim)))
        backend.synchronize(new)
        before = backend.peak_memory()
        for start in range(0, 640, 64):
            step = writing(slots + start, head_dim)
            backend.append(pools, 0, step, new, new)
            backend.synchronize(backend.attention(new, pools, 0, step, 0.125))
        backend.migrate(pools, slots, slots + 5)
        return backend.peak_memory() - before, one

    more, one = backend.run(call)
    assert one > 256 * 2**20
    assert more < one // 4
