"""The files that a run leaves beside its journals: summary, predictions."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from omnitide.errors import ConfigError
from omnitide.evaluation.benchmark import Benchmark
from omnitide.evaluation.item import Item
from omnitide.evaluation.results import Results, read_results
from omnitide.evaluation.summary import Summary, summarise
from omnitide.evaluation.tables import markdown
from omnitide.whole_file import WholeFile

SUMMARY_JSON, SUMMARY_MD, PREDICTIONS = "summary.json", "summary.md", "predictions"


def write_summary(folder: Path, benchmark: Benchmark, against: str | None = None) -> Summary:
    """Make the summary of a folder and write it there, as JSON and as Markdown.

    Raises:
        ConfigError: There are no results, or it can't be written.
    """
    results = read_results(folder)
    summary = summarise(results, benchmark.scores, against)
    problems = results.manifest.problems
    found = {**summary.as_dict(), "selection": results.manifest.selection, "problems": problems}
    write_text(folder / SUMMARY_JSON, json.dumps(found, indent=2, allow_nan=False) + "\n")
    write_text(folder / SUMMARY_MD, markdown(summary, problems, short=False))
    return summary


def write_predictions(
    folder: Path, benchmark: Benchmark, items: Sequence[Item], results: Results
) -> None:
    """Write replies in the authors' own format, a folder for each setting.

    Raises:
        ConfigError: They can't be written.
    """
    known = {item.id: item for item in items}
    for setting in results.settings:
        pairs = [
            (known[r.record.item], r.record)
            for r in results.of(setting)
            if r.record.error is None and r.record.item in known
        ]
        for name, text in benchmark.predictions(pairs).items():
            write_text(folder / PREDICTIONS / file_name(setting) / name, text)


def file_name(setting: str) -> str:
    """A setting's name as a name of a file: `omnipick-2500-1800`."""
    return re.sub(r"[^\w.=-]+", "-", setting)


def write_text(path: Path, text: str) -> None:
    """Write a file that appears whole.

    Raises:
        ConfigError: It can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"[eval] can't make {path.parent}: {error.strerror}") from error
    with WholeFile(path, "eval", ConfigError) as file:
        file.write(text.encode())
        file.appear()
