"""Measured costs: remembered, keyed by what they depend on, and never the end of a session."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from omnitide.calibration import BLAS_THREADS, PAIRS, Calibration, Unsteady, slope
from omnitide.costs import NOMINAL, Costs
from omnitide.step import Step


def test_what_is_measured_is_remembered_and_what_is_unsteady_is_not(
    model: Any, tmp_path: Path
) -> None:
    costs = Calibration(model.backend, model.spec, tmp_path)
    first = model.backend.run(costs)
    steady = costs.note is None  # a machine may be too busy to be measured
    assert (first != NOMINAL) is steady
    assert (tmp_path / "costs.json").exists() is steady
    assert min(first.tile_us, first.row_us) > 0


def test_measured_once_and_remembered(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnitide.calibration.measure", lambda *_: Costs(2.0, 3.0))
    costs = Calibration(model.backend, model.spec, tmp_path)
    assert costs() == Costs(2.0, 3.0)
    monkeypatch.setattr("omnitide.calibration.measure", None)
    assert costs() == Costs(2.0, 3.0)
    again = Calibration(model.backend, model.spec, tmp_path)
    assert again() == Costs(2.0, 3.0)
    assert again.note is None


def test_what_is_timed_is_attention_and_no_turning_of_keys(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend that keeps turned keys turns them all where a step's angles aren't known."""
    backend, seen = model.backend, set()

    def watched(name: str) -> Any:
        inner = getattr(backend, name)

        def call(*args: Any) -> Any:
            seen.update((name, arg.rotation) for arg in args if isinstance(arg, Step))
            return inner(*args)

        return call

    for name in ("append", "attention"):
        monkeypatch.setattr(backend, name, watched(name))
    backend.run(Calibration(backend, model.spec, tmp_path))
    assert seen == {("append", 0), ("attention", 0)}


class Clock:
    """Timings in the order in which they are taken, in microseconds."""

    def __init__(self, spent: list[float]) -> None:
        self.spent = [time for one in spent for time in (0.0, one / 1e6)]

    def __call__(self) -> float:
        return self.spent.pop(0)


def pairs(*slopes: float) -> list[float]:
    """What calls of more and of less take, so that each pair differs by ten times a slope."""
    return [time for slope in slopes for time in (100 + 10 * slope, 100.0)]


def test_a_slope_is_the_median_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [2.0, 2.1, 1.9, 2.0, 2.2, 50.0, -50.0, 2.0, 1.8]
    assert len(found) == PAIRS
    monkeypatch.setattr("time.perf_counter", Clock(pairs(*found)))
    assert slope("rows", lambda: None, lambda: None, 10) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "found",
    [
        [-1.0] * PAIRS,
        [0.0] * PAIRS,
        [0.1, 9, 0.1, 9, 0.1, 9, 1, 1, 1],
        [-5, 5, 5, -5, 9, 9, 1, 1, 1],
    ],
    ids=["falling", "level", "wild", "both ways"],
)
def test_timings_that_say_nothing_are_refused(
    found: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.perf_counter", Clock(pairs(*found)))
    with pytest.raises(Unsteady, match="timings of rows: "):
        slope("rows", lambda: None, lambda: None, 10)


def test_unsteady_timings_give_nominal_costs_that_are_not_kept(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def unsteady(backend: Any, spec: Any, pages: int, kv_bits: int | None) -> None:
        tried.append(pages)
        raise Unsteady("timings of copies: -1 us, spread 9 us")

    monkeypatch.setattr("omnitide.calibration._measure", unsteady)
    costs = Calibration(model.backend, model.spec, tmp_path)
    assert costs() == NOMINAL
    assert costs.note is not None
    assert "timings of copies: -1 us" in costs.note
    assert not (tmp_path / "costs.json").exists()
    assert tried == [64, 512]
    monkeypatch.setattr("omnitide.calibration.PATIENCE", -1.0)
    assert Calibration(model.backend, model.spec, tmp_path)() == NOMINAL
    assert tried == [64, 512, 64]


def test_the_key_holds_the_threads_of_numpy(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in BLAS_THREADS:
        monkeypatch.delenv(name, raising=False)
    costs, keys = Calibration(model.backend, model.spec, tmp_path), []
    for threads in ("", "1", "2"):
        if threads:
            monkeypatch.setenv("OPENBLAS_NUM_THREADS", threads)
        keys.append(costs.key)
    assert len(set(keys)) == 3
    monkeypatch.setattr(model.backend, "name", "other")
    assert "OPENBLAS" not in costs.key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '{"KEY": 3}',
        '{"KEY": {"tile_us": "1", "row_us": 1.0}}',
        '{"KEY": {"tile_us": -1.0, "row_us": 1.0}}',
        '{"KEY": {"tile_us": NaN, "row_us": 1.0}}',
        '{"KEY": {"tile_us": 0.0, "row_us": 1.0}}',
        '{"KEY": {"tile_us": 1e300, "row_us": 1.0}}',
        pytest.param("[" * 200_000, id="nested"),
        '{"other": {"tile_us": 7.0, "row_us": 7.0}}',
    ],
)
def test_what_is_damaged_or_of_another_device_is_measured_anew(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    costs = Calibration(model.backend, model.spec, tmp_path)
    (tmp_path / "costs.json").write_text(text.replace("KEY", costs.key))
    monkeypatch.setattr("omnitide.calibration.measure", lambda *_: Costs(2.0, 3.0))
    assert costs() == Costs(2.0, 3.0)
    stored = json.loads((tmp_path / "costs.json").read_text())
    assert stored[costs.key] == {"tile_us": 2.0, "row_us": 3.0}
    assert ("other" in stored) == ("other" in text)


def test_a_failing_measurement_gives_nominal_costs_and_a_note(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("device lost")

    monkeypatch.setattr("omnitide.calibration.measure", fails)
    costs = Calibration(model.backend, model.spec, tmp_path)
    assert costs() == NOMINAL
    assert costs.note is not None
    assert "device lost" in costs.note
    assert not (tmp_path / "costs.json").exists()


def test_a_folder_that_can_not_be_written_gives_a_note(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("omnitide.calibration.measure", lambda *_: Costs(2.0, 3.0))
    costs = Calibration(model.backend, model.spec, tmp_path / "file")
    assert costs() == Costs(2.0, 3.0)
    assert costs.note is not None
    assert "could not be kept" in costs.note


def test_a_file_that_can_not_be_replaced_gives_a_note_and_leaves_nothing_beside_it(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "costs.json").mkdir()
    monkeypatch.setattr("omnitide.calibration.measure", lambda *_: Costs(2.0, 3.0))
    costs = Calibration(model.backend, model.spec, tmp_path)
    assert costs() == Costs(2.0, 3.0)
    assert costs.note is not None
    assert "could not be kept" in costs.note
    assert [p.name for p in tmp_path.iterdir()] == ["costs.json"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system names the cache folder")
def test_costs_are_kept_in_the_cache_folder_of_the_user(
    model: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("omnitide.calibration.measure", lambda *_: Costs(2.0, 3.0))
    costs = Calibration(model.backend, model.spec)
    model.backend.run(costs)
    assert costs.key in (tmp_path / "omnitide" / "costs.json").read_text(encoding="utf-8")
