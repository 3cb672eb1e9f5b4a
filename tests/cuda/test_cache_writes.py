"""Writes to the pools: every slot of every array is compared, bit for bit where data only moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.cache_writes import CacheWrites
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.pages import PAGE_SIZE

if cp is None or not cp.cuda.is_available():
    pytest.skip("launches kernels: needs CuPy and an NVIDIA GPU", allow_module_level=True)

# (queries, KV heads, head_dim); half of 18 and of 2 is no whole access.
SHAPES = [(1, 4, 128), (5, 2, 64), (33, 1, 80), (130, 3, 96), (3, 3, 18), (2, 1, 2)]
PAGES = 4


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gap", [0, 3])
def test_append_writes_its_slots_and_no_others(
    compiler: Compiler,
    dtype: str,
    shape: tuple[int, int, int],
    gap: int,
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    poison: Callable[..., Any],
    bits: Callable[..., Any],
    rotated: Callable[..., Any],
    assert_close: Callable[..., None],
    make_step: Callable[..., Any],
) -> None:
    """With a gap the tokens' rows lie apart, as parts of one matrix product's result."""
    queries, heads, dim = shape
    rng = np.random.default_rng(1)
    step = make_step(rng, dim, 150, queries, PAGES)
    wide = on_device(values(rng, dtype, queries, 2 * heads + gap, dim))
    k, v = wide[:, :heads], wide[:, heads : 2 * heads]
    pools = [poison(dtype, PAGES, heads, PAGE_SIZE, dim) for _ in range(3)]
    CacheWrites(compiler).append(*pools, k, v, DeviceStep.of(step))

    page, row = np.divmod(step.query_slots, PAGE_SIZE)
    for pool, new in ((pools[0], k), (pools[2], v)):
        want = np.full(pool.shape, np.nan, pool.dtype)
        want[page, :, row] = cp.asnumpy(new)
        assert np.array_equal(bits(pool), bits(want))
    want = np.full(pools[1].shape, np.nan)
    want[page, :, row] = rotated(cp.asnumpy(k), step.query_cos, step.query_sin)
    assert_close(pools[1], want, dtype)


@pytest.mark.parametrize(("heads", "dim"), [(4, 128), (5, 80), (2, 18)])
def test_turning_again_gives_the_bits_of_append_in_every_layer(
    compiler: Compiler,
    dtype: str,
    heads: int,
    dim: int,
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    poison: Callable[..., Any],
    bits: Callable[..., Any],
    make_step: Callable[..., Any],
) -> None:
    rng = np.random.default_rng(2)
    layers = 3
    step = make_step(rng, dim, 140, 140, PAGES)
    device_step = DeviceStep.of(step)
    writes = CacheWrites(compiler)
    shape = (dtype, PAGES, heads, PAGE_SIZE, dim)
    keys, right, got = ([poison(*shape) for _ in range(layers)] for _ in range(3))
    for layer in range(layers):
        k = on_device(values(rng, dtype, 140, heads, dim))
        writes.append(keys[layer], right[layer], poison(*shape), k, k, device_step)
    some = rng.permutation(140)[:100]
    tables = (on_device(np.ascontiguousarray(t[some])) for t in (step.cos, step.sin))
    writes.turn(keys, got, on_device(step.slots[some]), *tables)

    page, row = np.divmod(step.slots[some], PAGE_SIZE)
    for layer in range(layers):
        want = np.full(right[layer].shape, np.nan, right[layer].dtype)
        want[page, :, row] = cp.asnumpy(right[layer])[page, :, row]
        assert np.array_equal(bits(got[layer]), bits(want))


MOVES: dict[str, tuple[Any, Any]] = {
    "none": ([], []),
    "onto-itself": ([9, 10], [9, 11]),
    "apart": ([5, 70, 200], [130, 0, 64]),
    "swap": ([5, 130], [130, 5]),
    "chain": ([3, 4, 5, 6], [4, 5, 6, 7]),
    "chain-backwards": ([6, 5, 4, 3], [7, 6, 5, 4]),
    "one-row-to-three": ([7, 7, 7], [8, 9, 7]),
    "permutation": (np.arange(256), np.random.default_rng(5).permutation(256)),
    "half-of-all": tuple(np.random.default_rng(6).permuted(np.arange(256))[:128] for _ in "ab"),
    "packing": (np.arange(100, 256), np.arange(40, 196)),
}


@pytest.mark.parametrize("moves", MOVES.values(), ids=MOVES.keys())
@pytest.mark.parametrize(
    ("heads", "dim", "scratch"), [(4, 128, 1 << 28), (2, 80, 1), (1, 18, 4096)]
)
def test_migrate_is_a_simultaneous_copy(
    compiler: Compiler,
    dtype: str,
    moves: tuple[Any, Any],
    heads: int,
    dim: int,
    scratch: int,
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    bits: Callable[..., Any],
) -> None:
    """Little scratch makes it work through the arrays in groups."""
    rng = np.random.default_rng(3)
    before = [values(rng, dtype, PAGES, heads, PAGE_SIZE, dim) for _ in range(5)]
    for array in before:
        array[1, :, 3:9] = np.nan
    arrays = [on_device(array) for array in before]
    source, destination = (np.array(slots, np.int32) for slots in moves)
    CacheWrites(compiler, scratch).migrate(arrays, source, destination)

    page, row = np.divmod(source, PAGE_SIZE)
    to_page, to_row = np.divmod(destination, PAGE_SIZE)
    for array, old in zip(arrays, before, strict=True):
        want = old.copy()
        want[to_page, :, to_row] = old[page, :, row]
        assert np.array_equal(bits(array), bits(want))


def test_pools_that_were_replaced_are_not_written_to(
    compiler: Compiler,
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    bits: Callable[..., Any],
) -> None:
    """The table of addresses follows the arrays, as growing the pools needs."""
    rng = np.random.default_rng(4)
    writes = CacheWrites(compiler)
    old = [on_device(values(rng, "float16", 2, 1, PAGE_SIZE, 64)) for _ in range(2)]
    first = np.array([0], np.int32)
    writes.migrate(old, first, first + 1)
    new = [cp.concatenate([array, array]) for array in old]
    kept = [bits(array) for array in old]
    writes.migrate(new, first, first + 200)
    for array, was in zip(old, kept, strict=True):
        assert np.array_equal(bits(array), was)
    for array in new:
        assert np.array_equal(bits(array[3, :, 8]), bits(array[0, :, 0]))
