"""Decode attention that appends: the bits of `append` followed by attention, in one launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.cache_writes import CacheWrites
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.decode import DecodeAttention, NewCells
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.pages import PAGE_SIZE

if cp is None or not cp.cuda.is_available():
    pytest.skip("launches kernels: needs CuPy and an NVIDIA GPU", allow_module_level=True)

HALVES = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
# (queries, KV heads, query heads of each, head_dim, cells, pages); up to 64 rows a KV head.
SHAPES = [
    (1, 4, 7, 128, 2817, 60),
    (1, 1, 1, 64, 1, 1),
    (1, 2, 8, 80, 40, 2),
    (5, 1, 1, 96, 150, 4),
    (2, 3, 4, 128, 33, 1),
    (9, 4, 7, 128, 300, 6),
    (16, 2, 4, 80, 16, 1),
    (16, 1, 4, 64, 700, 40),
]


@HALVES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gap", [0, 2])
@pytest.mark.parametrize("together", [False, True], ids=["scattered", "in-one-tile"])
def test_bits_are_those_of_two_launches(
    compiler: Compiler,
    dtype: str,
    shape: tuple[int, ...],
    gap: int,
    together: bool,
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    poison: Callable[..., Any],
    bits: Callable[..., Any],
    make_step: Callable[..., Any],
) -> None:
    """New slots hold NaN before. Rows of k and v lie apart where there is a gap."""
    queries, kv_heads, group, dim, cells, pages = shape
    rng = np.random.default_rng(cells)
    step = make_step(rng, dim, cells, queries, pages)
    if together:  # slots in order of the cells: the new ones are neighbours
        slots = np.sort(step.slots)
        step = replace(step, slots=slots, query_slots=slots[cells - queries :])
    at, old = DeviceStep.of(step), cells - queries
    before = replace(
        step, query_slots=step.slots[:old], query_cos=step.cos[:old], query_sin=step.sin[:old]
    )
    before = replace(before, query_orders=step.orders[:old])
    rows = on_device(values(rng, dtype, old, kv_heads, dim))
    wide = on_device(values(rng, dtype, queries, 2 * kv_heads + gap, dim))
    k, v = wide[:, :kv_heads], wide[:, kv_heads : 2 * kv_heads]
    q = on_device(values(rng, dtype, queries, kv_heads * group, dim))
    writes = CacheWrites(compiler)
    attend = DecodeAttention(compiler, int(cp.cuda.Device().attributes["MultiProcessorCount"]))

    def run(at_once: bool) -> list[Any]:
        pools = [poison(dtype, pages, kv_heads, PAGE_SIZE, dim) for _ in range(3)]
        keys, rotated, pool_of_values = pools
        if old:
            writes.append(*pools, rows, rows, DeviceStep.of(before))
        new = NewCells(k, v, keys) if at_once else None
        if at_once:
            assert attend.takes(q, rotated, NewCells(k, v, keys))
        else:
            writes.append(*pools, k, v, at)
        out = attend(q, rotated, pool_of_values, at, dim**-0.5, new)
        assert not np.isnan(cp.asnumpy(out).astype(np.float32)).any()
        return [bits(array) for array in (out, *pools)]

    apart = run(False)
    for _ in range(3):
        for got, want in zip(run(True), apart, strict=True):
            assert np.array_equal(got, want)


def test_what_it_does_not_take(compiler: Compiler, on_device: Callable[..., Any]) -> None:
    attend = DecodeAttention(compiler, 132)
    pool = on_device(np.zeros((1, 1, PAGE_SIZE, 64), np.float16))
    q = on_device(np.zeros((16, 5, 64), np.float16))
    k = on_device(np.zeros(16 * 65 + 1, np.float16))
    even, odd = k[: 16 * 64].reshape(16, 1, 64), k[: 16 * 65].reshape(16, 1, 65)[:, :, :64]
    late = k[1 : 16 * 64 + 1].reshape(16, 1, 64)
    assert attend.takes(q[:12], pool, NewCells(even[:12], even[:12], pool))
    assert not attend.takes(q, pool, NewCells(even, even, pool))  # 80 rows: two blocks read a slot
    assert not attend.takes(q[:12], pool, NewCells(even[:12], odd[:12], pool))
    assert not attend.takes(q[:12], pool, NewCells(late[:12], even[:12], pool))
