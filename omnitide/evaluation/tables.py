"""A summary as tables of Markdown, which terminals show as well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omnitide.evaluation.bootstrap import Estimate
from omnitide.evaluation.problem import LEFT_OUT
from omnitide.evaluation.summary import Summary

LISTED = 20
"""Problems and failures that are written out; all of them are in the files."""


def markdown(summary: Summary, problems: Sequence[dict[str, Any]], short: bool) -> str:
    """The whole summary; `short`: only the scores that head the table, and what went wrong."""
    parts = [*_heading(summary), *_scores(summary, short)]
    if not short:
        parts += _pairs(summary)
    parts += [*_coverage(summary), *_problems(problems)]
    return "\n".join(parts) + "\n"


def _heading(summary: Summary) -> Iterator[str]:
    trained = "" if summary.trained else " (untrained: scores mean nothing)"
    yield f"# {summary.benchmark}: {summary.model}{trained}"
    yield ""
    read = reading_words(summary.reading)
    if read:
        yield f"Read with {read}."
        yield ""


def _scores(summary: Summary, short: bool) -> Iterator[str]:
    against = summary.reference
    header = ["score", "setting", "value", "95 %", "marks", "clips"]
    if against is not None:
        header += [f"less {against}", "95 %"]
    rows = []
    for score in summary.scores:
        if short and not score.head:
            continue
        for setting in summary.settings:
            estimate = summary.estimates[setting][score.name]
            row = [score.name, setting, _value(estimate), _interval(estimate)]
            row += [f"{estimate.marks:,}", f"{estimate.clips:,}"]
            if against is not None:
                found = summary.differences.get((setting, against), {}).get(score.name)
                row += ["", ""] if found is None else [_signed(found), _interval(found)]
            rows.append(row)
    yield from aligned(header, rows)
    yield ""
    yield "Intervals: bootstrap over clips. Differences: on the questions of both settings."
    yield ""


def _pairs(summary: Summary) -> Iterator[str]:
    rows = [
        [score.name, first, second, _signed(found[score.name]), _interval(found[score.name])]
        for score in summary.scores
        for (first, second), found in summary.differences.items()
        if second != summary.reference and score.name in found
    ]
    if rows:
        yield from aligned(["score", "setting", "less", "difference", "95 %"], rows)
        yield ""


def _coverage(summary: Summary) -> Iterator[str]:
    header = ["setting", "items", "failed", "replies", "empty", "past the end", "damaged clips"]
    judged = any(c.units for c in summary.coverage.values())
    header += ["for a judge", "judged", "unreadable"] if judged else []
    rows = []
    for setting in summary.settings:
        c = summary.coverage[setting]
        row = [c.items, c.failed, c.answers, c.empty, c.past_end, c.damaged]
        row += [c.units, c.judged, c.unavailable] if judged else []
        rows.append([setting, *(f"{count:,}" for count in row)])
    yield from aligned(header, rows)
    if summary.judges:
        yield ""
        yield f"Judge: {', '.join(summary.judges)}."
    if summary.flips is not None:
        yield f"Winner changed with the order in {summary.flips:.1%} of the comparisons."
    failures = [
        (setting, item, why)
        for setting in summary.settings
        for item, why in summary.coverage[setting].errors.items()
    ]
    for setting, item, why in failures[:LISTED]:
        yield f"failed: {item} under {setting}: {why}"
    if len(failures) > LISTED:
        yield f"and {len(failures) - LISTED} more failures, see summary.json"


def _problems(problems: Sequence[dict[str, Any]]) -> Iterator[str]:
    if not problems:
        return
    yield ""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for problem in problems:
        kinds.setdefault(problem["kind"], []).append(problem)
    for kind, found in kinds.items():
        questions = sum(problem["questions"] for problem in found)
        lost = f", {questions:,} questions left out" if kind in LEFT_OUT else ""
        yield f"{kind}: {len(found):,}{lost}"
        for problem in found[:LISTED]:
            yield f"- {problem['where']}: {problem['what']}"
        if len(found) > LISTED:
            yield f"- and {len(found) - LISTED:,} more, see run.json"


def reading_words(reading: Mapping[str, Any]) -> str:
    """How data were read: every setting that is not empty, with its name."""
    known = {key: value for key, value in reading.items() if value not in (None, "", False)}
    if known.get("protocol") == "official":
        known.setdefault("context", "all")
    return ", ".join(f"{key} {value}" for key, value in known.items())


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table whose columns are padded, so that it reads well as it is."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    for index, row in enumerate(cells):
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"| {' | '.join(padded)} |"
        if index == 0:
            yield f"|{'|'.join('-' * (width + 2) for width in widths)}|"


def _value(estimate: Estimate) -> str:
    return "-" if estimate.value is None else _number(estimate.value)


def _signed(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    return ("+" if estimate.value >= 0 else "-") + _number(abs(estimate.value))


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "-"
    return f"{_number(estimate.low)} to {_number(estimate.high)}"


def _number(value: float) -> str:
    return f"{value:,.1f}" if abs(value) >= 10 or value == 0 else f"{value:.2f}"
