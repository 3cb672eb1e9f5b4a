"""The tables of recall: numbers of made-up marks, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnitide.evaluation.manifest import Manifest
from omnitide.evaluation.mark import Mark
from omnitide.evaluation.record import Record
from omnitide.evaluation.results import Result, Results
from omnitide.evaluation.summary import summarise

FULL, PICK, TIGHT, BARE = (
    "full", "omnipick 9/6", "omnipick 8/5", "omnipick 9/6 image_sink=0",
)  # fmt: skip

# By setting: right answers out of ten to see|0, out of ten to see|25-, out of ten to hear|1-3.
RIGHT = {FULL: (10, 9, 8), PICK: (10, 7, 8), TIGHT: (10, 6, 8), BARE: (10, 2, 8)}
CELLS = ("see|0", "see|25-", "hear|1-3")


@pytest.fixture
def results(tmp_path: Path) -> Results:
    """Two streams of which each has half of the marks, right ones first."""
    found = []
    for setting, counts in RIGHT.items():
        for stream in range(2):
            marks = [
                Mark(f"s{stream}#{cell}{n}", cell, "correct", float(2 * n + stream < count))
                for cell, count in zip(CELLS, counts, strict=True)
                for n in range(5)
            ]
            record = Record(f"s{stream}", f"s{stream}", setting)
            found.append(Result(record, tuple(marks)))
    manifest = Manifest("recall", {}, "", "x", "", "reference", "float32", True, {})
    return Results(tmp_path, manifest, tuple(found))


@pytest.fixture
def written(results: Results) -> Callable[[Any], str]:
    """The tables, with given tasks counted."""

    def write(counted: Any) -> str:
        from training.measure.recall import Recall
        from training.measure.tables import tables

        summary = summarise(results, Recall(counted).scores, draws=50)
        return tables(summary, counted, results.results)

    return write


def cells(text: str, heading: str, row: str) -> list[str]:
    """The cells of a row of the table under a heading."""
    table = text.partition(heading)[2].partition("###")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    (found,) = (cells for cells in rows if cells[0] == row)
    return found


def test_tasks_count_where_the_full_history_solves_them(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    from training.measure.recall import Recall
    from training.measure.tables import solved_tasks

    assert solved_tasks(summarise(results, Recall().scores, draws=50)) == {"see"}
    few = [r for r in results.results if r.record.item == "s0"]
    half = Results(results.folder, results.manifest, tuple(few))
    assert solved_tasks(summarise(half, Recall().scores, draws=50)) == {"see"}
    monkeypatch.setattr("training.measure.tables.LEAST_QUESTIONS", 11)
    assert solved_tasks(summarise(half, Recall().scores, draws=50)) == set()
    bounded = [r for r in results.results if r.record.setting != FULL]
    without = Results(results.folder, results.manifest, tuple(bounded))
    assert solved_tasks(summarise(without, Recall().scores, draws=50)) is None


def test_numbers_of_every_table(written: Callable[[Any], str]) -> None:
    text = written(frozenset({"see"}))
    row = cells(text, "### Right answers, %", PICK)
    assert (row[1], row[3], row[5], row[8]) == ("85.0", "-10.0", "70.0", "83.3")
    assert row[-3:] == ["20", "30", "2"]
    with pytest.raises(ValueError, match="not enough"):
        cells(text, "### Right answers, %", BARE)  # a variant has its own table
    assert cells(text, "by distance", TIGHT)[1:] == ["100.0", "60.0"]
    assert cells(text, "by distance", "questions")[1:] == ["10", "10"]
    assert cells(text, "by task", "see")[1:] == ["95.0", "80.0", "85.0", "20"]
    assert cells(text, "by task", "(hear)")[1:] == ["80.0"] * 3 + ["10"]
    assert cells(text, "by watermarks", "omnipick")[1:] == ["80.0", "85.0"]
    row = cells(text, "### Variants", PICK)
    assert row[1:4] == ["image_sink=0", "60.0", "20.0"]
    assert (row[4], row[6]) == ("-25.0", "-50.0")
    assert "### Layouts" not in text


def test_without_a_counted_task_it_is_said(written: Callable[[Any], str]) -> None:
    text = written(frozenset())
    assert "No task counts: the full history answers none to 90 %." in text
    assert cells(text, "### Right answers, %", PICK)[1] == "-"
    assert cells(text, "### Right answers, %", PICK)[8] == "83.3"
    assert "by distance" not in text
    assert cells(text, "by task", "(see)")[1:3] == ["95.0", "80.0"]
