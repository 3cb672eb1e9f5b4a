"""Rows of the benchmarks, from times that are known: bytes, operations, floors and shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omnitide.backends.reference.backend import ReferenceBackend
from omnitide.bench import attention, ceilings, decode, migrate, session, update
from omnitide.bench.ceilings import Ceilings
from omnitide.bench.settings import Course, Settings
from omnitide.bench.timing import WARM_UP, Spread
from omnitide.units import UnitKind

Make = Callable[..., Settings]
Clockwork = Callable[..., list[int]]


def test_the_spread_is_the_median_and_the_middle_four_fifths() -> None:
    found = Spread.of([11.0, *range(1, 11)])
    assert (found.median, found.p10, found.p90) == (6.0, 2.0, 10.0)
    assert Spread.of([2.0]).named("ms", 1e3) == {"ms": 2e3, "ms_p10": 2e3, "ms_p90": 2e3}


def test_the_floor_is_the_longer_of_the_two() -> None:
    made = Ceilings(1e9, 1e10)
    assert made.floor(2e9) == 2.0
    assert made.floor(2e9, 1e10) == 2.0
    assert made.floor(2e9, 3e10) == 3.0


def test_ceilings_are_work_by_time(
    backend: ReferenceBackend, clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    clockwork(0.004)
    monkeypatch.setattr(ceilings, "COPIES", (1 << 16, 1 << 18))
    monkeypatch.setattr(ceilings, "SIDES", (32, 64))
    found = ceilings.measure(backend)
    # A copy reads and writes; the largest is the best where all take as long.
    assert found.copy_bytes_per_s == pytest.approx(2 * 2**18 / 0.004)
    assert found.flops_per_s == pytest.approx(2 * 64**3 / 0.004)


def test_a_long_call_ends_the_search(
    backend: ReferenceBackend, clockwork: Clockwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    clockwork(1.0)
    monkeypatch.setattr(ceilings, "COPIES", (1 << 10, 1 << 40))
    monkeypatch.setattr(ceilings, "SIDES", (8, 1 << 20))
    assert ceilings.measure(backend).flops_per_s == pytest.approx(2 * 8**3)


def test_attention_rows(
    backend: ReferenceBackend, settings: Make, ceilings: Ceilings, clockwork: Clockwork
) -> None:
    asked = clockwork(0.002)
    made = settings(histories=(100,), queries=(1, 8), live=("dense", "half-dead"))
    shape, rows = attention.run(backend, made, ceilings, Course())
    assert shape is made.shape
    assert asked == [WARM_UP, 3] * 4
    assert [(r["live"], r["queries"], r["history"]) for r in rows] == [
        ("dense", 1, 100),
        ("half-dead", 1, 64),
        ("dense", 8, 100),
        ("half-dead", 8, 64),
    ]
    row = rows[2]
    # K and V of 108 cells, one KV head of 128; q and the result, two heads of 128; float32.
    assert row["bytes"] == 4 * (2 * 108 * 128 + 2 * 8 * 256)
    # 8 queries see 100 cells each, and 1 to 8 new ones.
    assert row["flops"] == 2 * 2 * (8 * 100 + 36) * 2 * 128
    assert row["us"] == row["us_p10"] == row["us_p90"] == pytest.approx(2000)
    floor = max(row["bytes"] / 1e9, row["flops"] / 1e10)
    assert row["floor_us"] == pytest.approx(floor * 1e6)
    assert row["ratio"] == pytest.approx(0.002 / floor)
    assert row["gb_per_s"] == pytest.approx(row["bytes"] / 0.002 / 1e9)
    assert row["tiles"] == 4


def test_attention_goes_through_cold_copies_in_turn(
    backend: ReferenceBackend,
    settings: Make,
    ceilings: Ceilings,
    clockwork: Clockwork,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clockwork(0.002)
    layers: list[int] = []
    plain = backend.attention

    def spy(q: Any, pools: Any, layer: int, step: Any, scale: float) -> Any:
        layers.append(layer)
        assert scale == pytest.approx(128**-0.5)
        out = plain(q, pools, layer, step, scale)
        assert np.isfinite(out).all()
        return out

    monkeypatch.setattr(backend, "attention", spy)
    monkeypatch.setattr(attention, "COLD", 4 * 101 * 2 * 128 * 4)  # of four copies
    made = settings(histories=(100,), live=("dense",), repeat=6)
    attention.run(backend, made, ceilings, Course())
    # Once to touch them, then warm-up and timed calls from one to the next.
    assert layers == [*range(4), 0, 1, 2, 3, 0, 1, 2, 3, 0]
    layers.clear()
    attention.run(
        backend, settings(histories=(100,), live=("dense",), warm=True), ceilings, Course()
    )
    assert set(layers) == {0}


def test_long_units_go_through_attention_in_pieces(
    backend: ReferenceBackend,
    settings: Make,
    ceilings: Ceilings,
    clockwork: Clockwork,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = clockwork(0.002)
    monkeypatch.setattr(backend, "prefill_step", 32)
    made = settings(histories=(100,), queries=(80,), live=("dense",))
    _, (row,) = attention.run(backend, made, ceilings, Course())
    assert asked == [WARM_UP, 3] * 3
    assert row["us"] == pytest.approx(3 * 2000)


def test_migration_rows(
    backend: ReferenceBackend,
    settings: Make,
    ceilings: Ceilings,
    clockwork: Clockwork,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clockwork(0.004)
    moves: list[tuple[set[int], set[int]]] = []
    plain = backend.migrate

    def spy(pools: Any, source: Any, destination: Any) -> None:
        moves.append((set(source.tolist()), set(destination.tolist())))
        assert len(pools.keys) == 2
        plain(pools, source, destination)

    monkeypatch.setattr(backend, "migrate", spy)
    monkeypatch.setattr(migrate, "COLD", 1)
    shape, (row,) = migrate.run(backend, settings(rows=(50,), layers=2), ceilings, Course())
    assert shape.text.num_layers == row["layers"] == 2
    # Read once and written once: 50 rows, K and V, two layers, 128 values of 4 bytes.
    assert row["bytes"] == 2 * 50 * 2 * 2 * 128 * 4
    assert row["share_of_copy"] == pytest.approx(row["bytes"] / 0.004 / 1e9)
    assert row["floor_us"] == pytest.approx(row["bytes"] / 1e9 * 1e6)
    assert row["us_per_row"] == pytest.approx(4000 / 50)
    # Two regions in turn; sources and destinations never meet.
    assert len(moves) == WARM_UP + 3
    assert moves[0] == moves[2] != moves[1]
    for source, destination in moves:
        assert len(source) == len(destination) == 50
        assert not source & destination
    assert not (moves[0][0] | moves[0][1]) & (moves[1][0] | moves[1][1])


def test_decode_rows(backend: ReferenceBackend, settings: Make, ceilings: Ceilings) -> None:
    made = settings(histories=(100, 200), policies=("full", "omnipick"), layers=2)
    shape, rows = decode.run(backend, made, ceilings, Course())
    assert shape.text.num_layers == 2
    assert [(r["policy"], r["history"]) for r in rows] == [
        ("full", 100),
        ("omnipick", 100),
        ("full", 200),
        ("omnipick", 200),
    ]
    longer = rows[2]["bytes"] - rows[0]["bytes"]
    assert longer == 100 * 2 * 2 * 128 * 4
    for row in rows:
        assert 0 < row["ms_p10"] <= row["ms"] <= row["ms_p90"]
        assert row["floor_ms"] == pytest.approx(row["bytes"] / 1e9 * 1e3)
        assert row["tokens_per_s"] == pytest.approx(1e3 / row["ms"])


def test_update_rows(backend: ReferenceBackend, settings: Make, ceilings: Ceilings) -> None:
    made = settings(
        histories=(256, 1000), queries=(64,), policies=("full", "omnipick"), repeat=6, split=True
    )
    _, rows = update.run(backend, made, ceilings, Course())
    assert [(r["policy"], r["history"]) for r in rows] == [
        ("full", 256),
        ("omnipick", 256),
        ("full", 1000),
        ("omnipick", 1000),
    ]
    full, bounded = rows[2], rows[3]
    # Each update starts from the same 1,000 cells; the bounded one goes on, and is cut.
    assert (full["live"], full["evictions"]) == (1000, 0)
    assert 64 < bounded["live"] <= 300
    assert bounded["evictions"] >= 1
    for row in rows:
        parts = row["attention_ms"] + row["matrix_ms"] + row["migration_ms"] + row["rest_ms"]
        assert parts == pytest.approx(row["mean_ms"])
        assert min(row["attention_ms"], row["matrix_ms"]) > 0
        assert row["tokens"] == 64


def test_one_layout_is_enough_for_a_policy_that_never_deletes(settings: Make) -> None:
    made = settings(policies=("full", "omnipick"), layouts=("native", "eager"))
    assert made.choices == (("full", "native"), ("omnipick", "native"), ("omnipick", "eager"))


def test_session_rows(backend: ReferenceBackend, settings: Make, ceilings: Ceilings) -> None:
    made = settings(stream="audio", minutes=2, repeat=1, policies=("omnipick", "h2o", "full"))
    units = list(session.stream_units(made))
    _, rows = session.run(backend, made, ceilings, Course())
    tokens = sum(len(unit) for unit in units)
    timed = sum(unit.kind in (UnitKind.MEDIA, UnitKind.TEXT) for unit in units)
    for row in rows:
        assert row["updates"] == timed  # those of the warm-up are forgotten
        assert (row["units"], row["tokens_seen"]) == (len(units), tokens)
        assert len(row["minute_ms"]) == 2
        assert (row["first_ms"], row["last_ms"]) == tuple(row["minute_ms"])
        assert row["last_to_first"] == pytest.approx(row["last_ms"] / row["first_ms"])
        assert row["first_memory"] <= row["last_memory"]
    cut, weighed, full = rows
    assert cut["evictions"] > 2
    assert weighed["evictions"] > 2
    assert cut["tokens_kept"] <= 300 + 52
    assert (full["evictions"], full["tokens_kept"]) == (0, tokens)


def test_a_stream_has_the_units_of_its_minutes(settings: Make) -> None:
    units = list(session.stream_units(settings(stream="silence", minutes=3)))
    assert [unit.time for unit in units] == [None, *map(float, range(180))]
