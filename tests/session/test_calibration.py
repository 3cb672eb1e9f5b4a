"""Measured costs: remembered, keyed by what they depend on, and never the end of a session."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from omnitide.acceptance import Costs
from omnitide.calibration import NOMINAL, Calibration


def test_measured_once_and_remembered(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = model.backend.run
    first = run(Calibration(model.backend, model.spec, tmp_path))
    assert first.tile_us >= 0
    assert first.row_us > 0
    monkeypatch.setattr("omnitide.calibration.measure", None)
    again = Calibration(model.backend, model.spec, tmp_path)
    assert run(again) == first
    assert again.note is None
    assert list(json.loads((tmp_path / "costs.json").read_text())) == [again.key]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '{"KEY": 3}',
        '{"KEY": {"tile_us": "1", "row_us": 1.0}}',
        '{"KEY": {"tile_us": -1.0, "row_us": 1.0}}',
        '{"KEY": {"tile_us": NaN, "row_us": 1.0}}',
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


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system names the cache folder")
def test_costs_are_kept_in_the_cache_folder_of_the_user(
    model: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    costs = Calibration(model.backend, model.spec)
    model.backend.run(costs)
    assert costs.key in (tmp_path / "omnitide" / "costs.json").read_text(encoding="utf-8")
