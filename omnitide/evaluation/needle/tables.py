"""Recall and retention as one table each: modalities and settings down, distances across."""

from __future__ import annotations

from collections.abc import Iterator

from omnitide.evaluation.needle.benchmark import KEPT, RECALL, WHOLE, at_distance, task_name
from omnitide.evaluation.needle.fact import KINDS
from omnitide.evaluation.summary import Summary
from omnitide.evaluation.tables import aligned

TITLES = {
    RECALL: "Recalled, % of the facts",
    KEPT: "Kept when asked, % of a fact's tokens",
    WHOLE: "Kept whole when asked, % of the facts",
}


def distances_of(summary: Summary) -> list[str]:
    """Distances of a summary's scores in seconds, least first."""
    begin = at_distance(RECALL, "").removesuffix(" s")
    names = [s.name for s in summary.scores if s.name.startswith(begin)]
    return sorted((name.removeprefix(begin).removesuffix(" s") for name in names), key=float)


def grid(summary: Summary) -> str:
    """All tables, as Markdown."""
    return "\n".join(line for metric in TITLES for line in _table(summary, metric))


def _table(summary: Summary, metric: str) -> Iterator[str]:
    distances = distances_of(summary)
    known = {score.name for score in summary.scores}
    rows = []
    for kind in ("", *KINDS):
        if kind and f"{metric} of {kind}" not in known:
            continue
        for setting in summary.settings:
            cells = [_name(metric, kind, distance) for distance in distances]
            whole = f"{metric} of {kind}" if kind else metric
            values = [_value(summary, setting, name) for name in (*cells, whole)]
            rows.append([kind or "all", setting, *values])
    yield TITLES[metric]
    yield ""
    yield from aligned(["", "setting", *(f"{d} s" for d in distances), "all"], rows)
    yield ""


def _name(metric: str, kind: str, distance: str) -> str:
    if kind:
        return f"{metric} of {task_name(kind, float(distance))}"
    return at_distance(metric, distance)


def _value(summary: Summary, setting: str, name: str) -> str:
    estimate = summary.estimates[setting].get(name)
    return "-" if estimate is None or estimate.value is None else f"{estimate.value:.0f}"
