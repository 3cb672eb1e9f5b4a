"""Writing through: its self-test finds what it is for, and pools keep reads and writes in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from omnitide.backends.mlx.backend import MlxBackend
from omnitide.backends.mlx.paged import PagedAttention
from omnitide.backends.mlx.write_through import ROUNDS, WriteThroughPools, fault_of
from omnitide.step import Step

WRITES = 3 * ROUNDS  # an append and two moves a round


def step_of(slots: list[int]) -> Step:
    count = len(slots)
    table = np.zeros((count, 32), np.float32)
    at, orders = np.array(slots, np.int32), np.arange(count, dtype=np.int32)
    return Step(at, orders, table, table, at, orders, table, table)


@pytest.fixture
def backend(mover: Callable[..., Any]) -> MlxBackend:
    """A backend that writes through to MLX's own memory."""
    return MlxBackend("float32", "", mover(), write_through=True)


def test_the_self_test_finds_no_fault_where_there_is_none(mover: Callable[..., Any]) -> None:
    launch = mover()
    assert fault_of(launch, PagedAttention(launch, "")) is None
    assert launch.launched.count("append") == ROUNDS
    assert launch.launched.count("scatter_rows") == launch.launched.count("gather_rows")


@pytest.mark.parametrize("lost", [1, 3 * 20 + 1, WRITES - 1, WRITES])
def test_the_self_test_finds_a_single_lost_write(mover: Callable[..., Any], lost: int) -> None:
    # Of a round's writes the first two change rows; the third brings back what is there already.
    launch = mover(lambda number: number == lost)
    fault = fault_of(launch, PagedAttention(launch, ""))
    assert (fault is None) == (lost == WRITES)


def test_the_self_test_finds_writes_to_other_rows(mover: Callable[..., Any]) -> None:
    launch = mover()

    def misplaced(kernel: Any, inputs: Any, *rest: Any) -> Any:
        results = launch(kernel, inputs, *rest)
        if kernel.name == "append":
            np.array(inputs["keys"], copy=False)[:, :, :1] = 7
        return results

    assert fault_of(misplaced, PagedAttention(launch, "")) is not None


def test_pools_are_whole_when_they_are_read(backend: MlxBackend) -> None:
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, 4, 3, 64)).astype(np.float32)
    slots = [3, 64, 0, 100]

    def call() -> tuple[bool, Any, Any]:
        pools = backend.new_pools(2, 3, 64, 2)
        backend.append(pools, 1, step_of(slots), backend.asarray(k), backend.asarray(v))
        assert isinstance(pools, WriteThroughPools)
        waiting = pools.last[1] is not None and pools.last[0] is None
        keys, values = (np.array(a[1]) for a in (pools.keys, pools.values))
        assert pools.last == [None, None]
        return waiting, keys, values

    waiting, keys, values = backend.run(call)
    assert waiting
    want_keys, want_values = np.zeros((2, 2, 3, 64, 64), np.float32)
    for number, slot in enumerate(slots):
        want_keys[slot // 64, :, slot % 64] = k[number]
        want_values[slot // 64, :, slot % 64] = v[number]
    np.testing.assert_array_equal(keys, want_keys)
    np.testing.assert_array_equal(values, want_values)


def test_each_operation_on_a_layer_takes_the_last_one_as_an_input(
    backend: MlxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, Any]] = []
    new = np.ones((2, 1, 64))

    def call() -> list[Any]:
        pools: Any = backend.new_pools(1, 1, 64, 1)
        lasts = []
        write: Any = backend._write
        inner = write._launch

        def spy(kernel: Any, inputs: Any, *rest: Any) -> Any:
            seen.append((kernel.name, inputs.get("read", inputs.get("written"))))
            return inner(kernel, inputs, *rest)

        monkeypatch.setattr(write, "_launch", spy)
        for slots in ([0, 1], [2, 3]):
            step = step_of(slots)
            backend.append(pools, 0, step, backend.asarray(new), backend.asarray(new))
            lasts.append(pools.last[0])
        mass = backend.attention_mass(backend.asarray(new), pools, 0, step_of([0, 1]), 1.0)
        assert pools.last[0] is mass
        backend.append(pools, 0, step_of([4, 5]), backend.asarray(new), backend.asarray(new))
        return [*lasts, mass]

    first, _, mass = backend.run(call)
    assert [name for name, _ in seen] == ["append"] * 3
    assert seen[1][1] is first
    assert seen[2][1] is mass


def test_a_migration_is_simultaneous(backend: MlxBackend) -> None:
    rng = np.random.default_rng(1)
    before = rng.standard_normal((2, 128, 2, 64)).astype(np.float32)
    order = rng.permutation(128).astype(np.int32)

    def call() -> Any:
        pools = backend.new_pools(1, 2, 64, 2)
        everything = step_of(list(range(128)))
        backend.append(pools, 0, everything, *(backend.asarray(x) for x in before))
        backend.migrate(pools, order, np.roll(order, 1))
        return np.stack([np.array(pools.keys[0]), np.array(pools.values[0])])

    got = backend.run(call).transpose(0, 1, 3, 2, 4).reshape(2, 128, 2, 64)
    want = before.copy()
    want[:, np.roll(order, 1)] = before[:, order]
    np.testing.assert_array_equal(got, want)


def test_pools_without_instances_are_written_by_mlx(backend: MlxBackend) -> None:
    pools = backend.run(backend.new_pools, 1, 1, 16, 1)
    assert not isinstance(pools, WriteThroughPools)


def test_growing_keeps_what_was_written(backend: MlxBackend) -> None:
    def call() -> tuple[int, float]:
        new = mx.ones((1, 1, 64))
        pools = backend.new_pools(1, 1, 64, 1)
        backend.append(pools, 0, step_of([5]), new, new)
        backend.grow_pools(pools, 3)
        backend.append(pools, 0, step_of([130]), new, new)
        return pools.num_pages, float(pools.keys[0].sum().item())

    assert backend.run(call) == (3, 128.0)
