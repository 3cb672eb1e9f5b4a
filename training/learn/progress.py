"""Short tables from the logs of runs: speed and loss, or right answers by task."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from training.learn.recorder import FILE

Line = dict[str, Any]


def read_log(run: Path) -> list[Line]:
    """The lines of a run's log."""
    text = (run / FILE).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def speed_table(logs: dict[str, list[Line]]) -> str:
    """A row for each run. Speeds are medians over the lines but the first, which compiles."""
    rows = [
        [
            "run", "steps", "first step s", "steps/s", "tokens/s", "units/s", "waited", "GB",
            "loss at", "loss now", "exact now",
        ]
    ]  # fmt: skip
    for name, lines in logs.items():
        train = [line for line in lines if line["kind"] == "train"]
        if not train:
            rows.append([name, "none"] + [""] * 9)
            continue
        steady = train[1:] or train
        speeds = [
            median(line[key] for line in steady)
            for key in ("steps_per_second", "tokens_per_second", "units_per_second", "waited")
        ]
        rows.append(
            [
                name,
                str(train[-1]["step"]),
                f"{train[0]['seconds']:.1f}",
                f"{speeds[0]:.2f}",
                f"{speeds[1]:,.0f}",
                f"{speeds[2]:,.0f}",
                f"{speeds[3]:.1%}",
                str(train[-1].get("gigabytes", "")),
                f"{train[0]['loss']:.3f}",
                f"{train[-1]['loss']:.3f}",
                f"{train[-1]['exact']:.1%}",
            ]
        )
    return _aligned(rows)


def tasks_table(logs: dict[str, list[Line]], kind: str) -> str:
    """Right answers by task in the newest line of a kind, a column for each run."""
    newest = {
        name: next((line for line in reversed(lines) if line["kind"] == kind), {"tasks": {}})
        for name, lines in logs.items()
    }
    tasks = dict.fromkeys(task for line in newest.values() for task in line["tasks"])
    rows = [["task", *newest]]
    for task in tasks:
        cells = []
        for line in newest.values():
            found = line["tasks"].get(task)
            cells.append(f"{found['exact']:.0%} of {found['answers']}" if found else "")
        rows.append([task, *cells])
    return _aligned(rows)


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
