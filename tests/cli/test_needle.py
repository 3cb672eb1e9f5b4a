"""`omnitide eval needle` with the embedded model: files, tables, going on, bad options."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]

SMALL = (
    *("--modality", "shape", "--modality", "typed", "--distance", 0, 6, "--samples", 1),
    *("--lead", 1, "--size", 56, "--policy", "full,fifo", "--watermarks", "260/180"),
)


def test_tables_files_and_a_picture(call: Call, tmp_path: Path) -> None:
    out, picture = tmp_path / "out", tmp_path / "needle.svg"
    result = call("eval", "needle", *SMALL, "--out", out, "--plot", picture)
    assert result.code == 0
    assert "| recall" in result.out
    # Kept under fifo: all at once, nothing after six seconds (see tests/needle).
    rows = [line.split("|")[1:-1] for line in result.out.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert ["", "setting", "0 s", "6 s", "all"] in cells
    assert ["shape", "full", "100", "100", "100"] in cells
    assert ["shape", "fifo 260/180", "100", "0", "50"] in cells
    assert ["typed", "fifo 260/180", "0", "0", "0"] in cells
    assert (out / "needle.md").read_text() in result.out
    assert xml.parse(picture).getroot().tag.endswith("svg")
    lines = [json.loads(line) for line in (out / "items.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * 2 * 2
    assert {line["record"]["error"] for line in lines} == {None}
    # Units as the model's family cuts them, not the paper's second: there is no protocol to keep.
    media = json.loads((out / "run.json").read_text())["options"]["media"]
    assert (media["fps"], media["chunk_seconds"]) == (2.0, 2.0)

    again = call("eval", "needle", *SMALL, "--out", out, "--json")
    assert again.code == 0
    assert len((out / "items.jsonl").read_text().splitlines()) == 8
    by_setting = {row["setting"]: row["scores"] for row in again.json()["settings"]}
    assert by_setting["fifo 260/180"]["kept"]["value"] == 50.0
    assert by_setting["full"]["recall of typed at 6 s"]["value"] == 0.0

    summary = call("eval", "summary", out)
    assert summary.code == 0
    assert "| kept whole" in summary.out

    other = call("eval", "needle", *SMALL, "--out", out, "--samples", 2)
    assert other.code == 2
    assert "holds results with another reading" in other.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--modality", "smell"), "invalid choice: 'smell'"),
        (("--distance", -1), "[needle] --distance must be at least 0 seconds, got -1"),
        (("--samples", 0), "[needle] --samples must be at least 1, got 0"),
        (("--size", 20), "[needle] --size must be from 28 to 1024 pixels, got 20"),
        (("--plot", "needle.gif"), "must end in .png or .svg"),
        (("--policy", "best"), "'best'"),
    ],
)
def test_bad_options_are_refused(
    options: tuple[Any, ...], message: str, call: Call, tmp_path: Path
) -> None:
    result = call("eval", "needle", *SMALL, "--out", tmp_path / "out", *options)
    assert result.code == 2
    assert message in result.err
    assert not (tmp_path / "out").exists()


def test_speech_without_a_tool_is_refused(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = call("eval", "needle", *SMALL, "--modality", "speech", "--out", tmp_path / "out")
    assert result.code == 2
    assert "--modality speech needs one of espeak-ng, espeak; install espeak-ng" in result.err
