"""The shaders that move rows, which attention's cases don't launch: append, gather and scatter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from metal_cpu_harness.variant import metal_backend, variant_missing

from omnitide.backends.mlx.shaders import HEAD_DIMS
from omnitide.step import Step

PAGES, KV_HEADS = 2, 2
INSTANCES = [("float16", head_dim) for head_dim in HEAD_DIMS] + [("float32", 80), ("bfloat16", 80)]


@pytest.fixture
def available() -> None:
    reason = variant_missing()
    if reason is not None:
        pytest.skip(reason)


def step_of(slots: np.ndarray, head_dim: int) -> Step:
    table = np.zeros((len(slots), head_dim // 2), np.float32)
    orders = np.arange(len(slots), dtype=np.int32)
    return Step(slots, orders, table, table, slots, orders, table, table)


@pytest.mark.usefixtures("available")
@pytest.mark.parametrize("write_through", [False, True], ids=["scatter", "through"])
@pytest.mark.parametrize(("dtype", "head_dim"), INSTANCES)
# Fewer than 8 slots come in constant memory.
@pytest.mark.parametrize("count", [5, 100])
def test_appended_rows_are_moved_at_once(
    dtype: str, head_dim: int, write_through: bool, count: int
) -> None:
    from metal_cpu_harness.launcher import MetalOnCpu

    launcher = MetalOnCpu(write_through=write_through)
    backend = metal_backend(dtype, launcher, write_through)
    launcher.launches.clear()  # of the self-test
    rng = np.random.default_rng(count)
    slots = rng.permutation(PAGES * 64).astype(np.int32)
    rows = rng.integers(-99, 100, (2, len(slots), KV_HEADS, head_dim)).astype(np.float32)
    source, destination = slots[:count], np.roll(slots[:count], 1)

    def call() -> Any:
        pools = backend.new_pools(1, KV_HEADS, head_dim, PAGES)
        for part in (slice(0, count), slice(count, None)):
            new = [backend.asarray(x[part]) for x in rows]
            backend.append(pools, 0, step_of(slots[part], head_dim), *new)
        backend.migrate(pools, source, destination)
        return np.stack([backend.to_numpy(pools.keys[0]), backend.to_numpy(pools.values[0])])

    page, row = np.divmod(slots, 64)
    got = backend.run(call)[:, page, :, row].transpose(1, 0, 2, 3)
    want = rows.copy()
    where = {slot: at for at, slot in enumerate(slots)}
    want[:, [where[slot] for slot in destination]] = rows[:, :count]
    np.testing.assert_array_equal(got, want)
    moved = 2 * KV_HEADS * head_dim * (4 if dtype == "float32" else 2)
    through = {"append": len(slots), "scatter_rows": count} if write_through else {}
    for name, number in {"gather_rows": count, **through}.items():
        launches = [x for x in launcher.launches if x.name == name]
        written = [t.written for x in launches for buffer, t in x.traffic.items()
                   if buffer in ("keys", "values", "moved")]  # fmt: skip
        assert sum(written) == number * moved, name
    assert {x.name for x in launcher.launches} == {"gather_rows", *through}
