"""8-bit pools on every backend that has them: what is stored, and what attention makes of it.

Before anything is written, all scales are NaN: whatever multiplies a dead row gives NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omnitide.backend import Backend
from omnitide.pages import PAGE_SIZE
from omnitide.rotary import Rotary
from omnitide.step import Step

HEADS, KV_HEADS, DIM, PAGES = 4, 2, 64, 5


@pytest.fixture
def packing(backend: Backend) -> Backend:
    """Every backend and dtype that packs keys and values."""
    if 8 not in backend.kv_bits:
        pytest.skip(f"{backend.name} does not pack keys and values, and refuses it")
    return backend


def _step(rng: np.random.Generator, cells: int, queries: int, slots: Any = None) -> Step:
    """A step over scattered slots whose newest cells are the queries."""
    slots = rng.permutation(PAGES * PAGE_SIZE)[:cells] if slots is None else slots
    slots = np.asarray(slots, np.int32)
    orders = np.arange(cells, dtype=np.int32)
    positions = np.sort(rng.integers(0, 5000, (cells, 3)), axis=0).astype(np.int32)
    cos, sin = Rotary(DIM, 1e6, None).tables(positions)
    new = slice(cells - queries, cells)
    return Step(slots, orders, cos, sin, slots[new], orders[new], cos[new], sin[new])


def _poisoned(backend: Backend, layers: int = 1) -> Any:
    pools: Any = backend.new_pools(layers, KV_HEADS, DIM, PAGES, 8)
    for scales in (pools.key_scales, pools.value_scales):
        for layer in range(layers):
            scales[layer][...] = float("nan")
    return pools


def _host(array: Any) -> Any:
    """Any array of NumPy, MLX or CuPy; none of these is bfloat16."""
    return array.get() if hasattr(array, "get") else np.array(array)


def _held(pools: Any, layer: int, slots: Any) -> tuple[Any, Any]:
    """Keys and values that rows stand for, in float64, and their steps."""
    page, row = np.divmod(np.asarray(slots), PAGE_SIZE)
    factors = _host(pools.factors[layer]).astype(np.float64)
    sides = []
    for arrays, scales, factor in (
        (pools.keys, pools.key_scales, factors),
        (pools.values, pools.value_scales, 1.0),
    ):
        elements = _host(arrays[layer])
        assert elements.dtype == np.int8
        step = _host(scales[layer])[page, :, row].astype(np.float64)[..., None] * factor
        sides.append((elements[page, :, row] * step, step))
    return sides[0], sides[1]


def _outliers(rng: np.random.Generator, cells: int) -> tuple[Any, Any]:
    """Keys with channels of very different size, as un-rotated keys have them, and values."""
    sizes = np.exp(rng.normal(0, 1.5, (KV_HEADS, DIM)))
    keys = rng.standard_normal((cells, KV_HEADS, DIM)) * sizes
    return keys, rng.standard_normal((cells, KV_HEADS, DIM))


def test_rows_are_stored_to_half_a_step(packing: Backend, rounded: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    k, v = _outliers(rng, 150)
    k[7], v[7] = 0, 0
    k, v = rounded(k, packing.dtype), rounded(v, packing.dtype)
    step = _step(rng, 150, 150)

    def call() -> Any:
        pools = _poisoned(packing)
        packing.append(pools, 0, step, packing.asarray(k), packing.asarray(v))
        return _held(pools, 0, step.slots)

    for want, (got, size) in zip((k, v), packing.run(call), strict=True):
        assert (np.abs(got - want) <= 0.501 * size).all()
        # No step is larger than 1/127 of the greatest value of all.
        assert (size <= np.abs(want).max() / 127 * 1.001).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_or_infinite_makes_its_row_nan_and_no_other(
    packing: Backend, value: float
) -> None:
    rng = np.random.default_rng(9)
    k, v = rng.standard_normal((2, 40, KV_HEADS, DIM))
    k[31, 0, 3] = v[35, 1, 5] = value
    whole = _step(rng, 40, 40)
    cells = (whole.slots, whole.orders, whole.cos, whole.sin)
    first = Step(*(part[:30] for part in cells), *(part[:30] for part in cells))
    then = Step(*cells, *(part[30:] for part in cells))

    def call() -> Any:
        pools = _poisoned(packing)
        for step, rows in ((first, slice(0, 30)), (then, slice(30, 40))):
            packing.append(pools, 0, step, packing.asarray(k[rows]), packing.asarray(v[rows]))
        with np.errstate(invalid="ignore"):  # 0 times infinity here, not in the backend
            return _held(pools, 0, whole.slots)

    (keys, _), (values, _) = packing.run(call)
    for rows, bad in ((keys, (31, 0)), (values, (35, 1))):
        found = np.isnan(rows)
        assert found[bad].all()
        assert found.sum() == DIM


def test_keys_are_scaled_by_channel(packing: Backend, rounded: Callable[..., Any]) -> None:
    """One channel a hundred times the others does not cost the others their bits."""
    rng = np.random.default_rng(1)
    k, v = rng.standard_normal((2, 100, KV_HEADS, DIM))
    k[:, :, 5] *= 100
    k, v = rounded(k, packing.dtype), rounded(v, packing.dtype)
    first = _step(rng, 60, 60)
    then = _step(rng, 100, 40, np.r_[first.slots, np.setdiff1d(np.arange(200), first.slots)[:40]])

    def call() -> Any:
        pools = _poisoned(packing)
        packing.append(pools, 0, first, packing.asarray(k[:60]), packing.asarray(v[:60]))
        packing.append(pools, 0, then, packing.asarray(k[60:]), packing.asarray(v[60:]))
        return _held(pools, 0, then.slots)

    (got, _), _ = packing.run(call)
    quiet = np.delete(np.arange(DIM), 5)
    error = np.abs(got - k)[..., quiet]
    assert np.sqrt((error**2).mean()) < 0.02


@pytest.mark.parametrize(("cells", "queries"), [(1, 1), (64, 1), (100, 3), (200, 200), (130, 0)])
def test_attention_reads_what_is_stored(
    cells: int,
    queries: int,
    packing: Backend,
    rounded: Callable[..., Any],
    tolerance: Callable[[str], float],
    assert_matches: Callable[..., None],
) -> None:
    rng = np.random.default_rng(cells)
    k, v = (rounded(a, packing.dtype) for a in _outliers(rng, cells))
    k = rounded(k / (np.abs(k).max() / 3), packing.dtype)
    q = rounded(rng.standard_normal((queries, HEADS, DIM)), packing.dtype)
    whole = _step(rng, cells, cells)
    step = _step(np.random.default_rng(cells), cells, queries, whole.slots)

    def call() -> Any:
        pools = _poisoned(packing)
        packing.append(pools, 0, whole, packing.asarray(k), packing.asarray(v))
        out = packing.attention(packing.asarray(q), pools, 0, step, DIM**-0.5)
        return packing.to_numpy(out), _held(pools, 0, step.slots)

    got, ((keys, _), (values, _)) = packing.run(call)
    keys, values = (rounded(a, packing.dtype) for a in (keys, values))
    want = np.zeros((queries, HEADS, DIM))
    turned = _turn(keys, step.cos, step.sin)
    asked = _turn(q, step.query_cos, step.query_sin)
    for i, order in enumerate(step.query_orders):
        for head in range(HEADS):
            kv = head // (HEADS // KV_HEADS)
            scores = turned[: order + 1, kv] @ asked[i, head] * DIM**-0.5
            shares = np.exp(scores - scores.max())
            want[i, head] = shares @ values[: order + 1, kv] / shares.sum()
    # Keys are rounded once more when they are turned.
    assert_matches(got, want, packing.dtype, 2 * tolerance(packing.dtype))


def _turn(x: Any, cos: Any, sin: Any) -> Any:
    first, second = np.split(x, 2, axis=-1)
    c, s = cos[:, None].astype(np.float64), sin[:, None].astype(np.float64)
    return np.concatenate([first * c - second * s, second * c + first * s], axis=-1)


def test_mass_adds_up_to_the_queries(packing: Backend, tolerance: Callable[[str], float]) -> None:
    rng = np.random.default_rng(3)
    k, v = _outliers(rng, 90)
    step = _step(rng, 90, 90)
    q = rng.standard_normal((90, HEADS, DIM))

    def call() -> Any:
        pools = _poisoned(packing)
        packing.append(pools, 0, step, packing.asarray(k / 5), packing.asarray(v))
        mass = packing.attention_mass(packing.asarray(q), pools, 0, step, DIM**-0.5)
        return packing.to_numpy(mass)

    mass = packing.run(call)
    assert mass.shape == (90,)
    assert (mass > 0).all()
    np.testing.assert_allclose(mass.sum(), 90 * HEADS, rtol=1e-4)


def test_weights_are_those_of_the_mass(packing: Backend) -> None:
    """One by one they are not computed by the same way, and not always by the device."""
    rng = np.random.default_rng(6)
    k, v = _outliers(rng, 90)
    whole = _step(rng, 90, 90)
    step = _step(np.random.default_rng(6), 90, 5, whole.slots)
    q = rng.standard_normal((5, HEADS, DIM))

    def call() -> Any:
        pools = _poisoned(packing)
        packing.append(pools, 0, whole, packing.asarray(k / 5), packing.asarray(v))
        given = packing.asarray(q), pools, 0, step, DIM**-0.5
        weights, mass = packing.attention_weights(*given), packing.attention_mass(*given)
        return packing.to_numpy(weights), packing.to_numpy(mass)

    weights, mass = packing.run(call)
    assert weights.shape == (HEADS, 5, 90)
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-3)
    far = {"float16": 4e-3, "bfloat16": 3e-2}.get(packing.dtype, 2e-5)
    np.testing.assert_allclose(weights.sum(axis=(0, 1)), mass, atol=far * mass.max())


def test_migration_moves_bits_and_growing_keeps_them(packing: Backend) -> None:
    rng = np.random.default_rng(4)
    k, v = _outliers(rng, 100)
    step = _step(rng, 100, 100)
    free = np.setdiff1d(np.arange(PAGES * PAGE_SIZE), step.slots)[:100]
    free = rng.permutation(free).astype(np.int32)

    def call() -> Any:
        pools = _poisoned(packing, layers=2)
        for layer in range(2):
            given = packing.asarray(k * (layer + 1)), packing.asarray(v)
            packing.append(pools, layer, step, *given)
        before = [_held(pools, layer, step.slots) for layer in range(2)]
        packing.migrate(pools, step.slots, free)
        packing.grow_pools(pools, PAGES + 3)
        beyond = np.arange(100, dtype=np.int32) + PAGES * PAGE_SIZE
        packing.migrate(pools, free, beyond)
        return before, [_held(pools, layer, beyond) for layer in range(2)], pools.num_pages

    before, after, pages = packing.run(call)
    assert pages == PAGES + 3
    for one, other in zip(before, after, strict=True):
        for side, moved in zip(one, other, strict=True):
            np.testing.assert_array_equal(moved[0], side[0])


def test_rows_that_are_there_are_never_written_again(packing: Backend) -> None:
    """Whatever comes later, so that nothing drifts."""
    rng = np.random.default_rng(5)
    k, v = _outliers(rng, 200)
    k[100:] *= 50
    first = _step(rng, 100, 100)
    others = np.setdiff1d(np.arange(PAGES * PAGE_SIZE), first.slots)[:100]
    then = _step(rng, 200, 100, np.r_[first.slots, others])

    def call() -> Any:
        pools = _poisoned(packing)
        packing.append(pools, 0, first, packing.asarray(k[:100]), packing.asarray(v[:100]))
        before = _held(pools, 0, first.slots)
        packing.append(pools, 0, then, packing.asarray(k[100:]), packing.asarray(v[100:]))
        return before, _held(pools, 0, first.slots)

    before, after = packing.run(call)
    for side, later in zip(before, after, strict=True):
        np.testing.assert_array_equal(later[0], side[0])


def test_pools_take_little_more_than_a_byte_a_value(packing: Backend) -> None:
    pools = packing.run(packing.new_pools, 3, KV_HEADS, DIM, PAGES, 8)
    rows = 3 * PAGES * PAGE_SIZE * KV_HEADS
    assert pools.nbytes == 2 * rows * (DIM + 4)


@pytest.mark.parametrize("kv_bits", [None, 8])
def test_pools_hold_as_much_scratch_as_is_told(kv_bits: int | None, packing: Backend) -> None:
    pools: Any = packing.run(packing.new_pools, 3, KV_HEADS, DIM, PAGES, kv_bits)
    scratch = getattr(pools, "scratch", None)
    held = 0 if scratch is None else scratch.nbytes
    assert packing.pool_scratch_bytes(KV_HEADS, DIM, PAGES, kv_bits) == held


def test_pools_do_not_shrink(packing: Backend) -> None:
    pools = packing.run(packing.new_pools, 1, KV_HEADS, DIM, PAGES, 8)
    with pytest.raises(ValueError, match="num_pages must be at least the present 5, got 4"):
        packing.run(packing.grow_pools, pools, 4)


def test_other_bits_are_refused(any_backend: Backend) -> None:
    with pytest.raises(ValueError, match=r"\[new_pools\] kv_bits must be None or .*, got 4"):
        any_backend.run(any_backend.new_pools, 1, KV_HEADS, DIM, PAGES, 4)
