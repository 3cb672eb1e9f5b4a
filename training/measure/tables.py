"""The results of `recall` as tables of Markdown: policies, tasks, distances, sweeps, ablations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from omnitide.evaluation.bootstrap import Estimate
from omnitide.evaluation.results import Result, Results
from omnitide.evaluation.setting import FULL
from omnitide.evaluation.summary import Summary
from omnitide.evaluation.tables import aligned
from omnitide.layouts import LAYOUTS
from training.measure.recall import (
    ALL,
    BANDS,
    COUNTED,
    COUNTED_FAR,
    KEPT,
    at_band,
    of_task,
)

SOLVED = 90.0
"""Percent of a task's questions that the full history must answer for the task to count."""

LEAST_QUESTIONS = 10
"""Questions of a task below which that share says too little."""


def solved_tasks(summary: Summary) -> frozenset[str] | None:
    """Tasks that the full history solves; None where no setting keeps the full history."""
    if FULL not in summary.settings:
        return None
    found = {task: summary.estimates[FULL][of_task(task)] for task in _tasks(summary)}
    return frozenset(
        task
        for task, estimate in found.items()
        if estimate.marks >= LEAST_QUESTIONS and (estimate.value or 0.0) >= SOLVED
    )


def on_same_streams(results: Results) -> Results:
    """The results of those streams that every setting has followed to the end.

    A run that was stopped, or given more settings later, leaves some settings with fewer streams;
    side by side they must have been asked the same.
    """
    done: dict[str, set[str]] = {}
    for result in results.results:
        if result.record.error is None:
            done.setdefault(result.record.setting, set()).add(result.record.item)
    same = set.intersection(*done.values()) if done else set()
    return replace(results, results=tuple(r for r in results.results if r.record.item in same))


def tables(summary: Summary, counted: frozenset[str] | None, results: Sequence[Result]) -> str:
    """All tables.

    Args:
        summary: Of `recall.Recall(counted)`.
        counted: Tasks that count; None: all.
        results: What it was made of, for the layouts.
    """
    parts = list(_policies(summary))
    if any(score.name == COUNTED for score in summary.scores):
        parts += [*_by_distance(summary), *_sweep(summary), *_variants(summary)]
    else:
        parts += [f"No task counts: the full history answers none to {SOLVED:g} %.", ""]
    parts += [*_by_task(summary, counted), *_layouts(results)]
    return "\n".join(parts) + "\n"


def _policies(summary: Summary) -> Iterator[str]:
    yield "### Right answers, %"
    yield ""
    against = summary.reference
    header = ["setting", "counted tasks", "95 %", f"less {against}", "95 %"]
    header += ["10 units and more", "95 %", "kept of the fact", "all tasks", "95 %"]
    header += ["counted questions", "questions", "streams"]
    rows = []
    for setting in _plain(summary):
        found = summary.estimates[setting]
        counted, far = found.get(COUNTED), found.get(COUNTED_FAR)
        less = summary.differences.get((setting, str(against)), {}).get(COUNTED)
        kept, all_ = found.get(f"{KEPT} of {COUNTED_FAR}"), found.get(ALL)
        row = [setting, _value(counted), _interval(counted), _signed(less), _interval(less)]
        row += [_value(far), _interval(far), _value(kept), _value(all_), _interval(all_)]
        row += [_count(counted, "marks"), _count(all_, "marks"), _count(all_, "clips")]
        rows.append(row)
    yield from aligned(header, rows)
    yield ""


def _by_distance(summary: Summary) -> Iterator[str]:
    yield "### Right answers of counted tasks by distance in units, %"
    yield ""
    known = {score.name for score in summary.scores}
    bands = [name for name, _, _ in BANDS if at_band(name) in known]
    rows = []
    for setting in _plain(summary):
        found = summary.estimates[setting]
        rows.append([setting, *(_value(found[at_band(name)]) for name in bands)])
    last = summary.estimates[summary.settings[0]]
    rows.append(["questions", *(f"{last[at_band(name)].marks:,}" for name in bands)])
    yield from aligned(["setting", *bands], rows)
    yield ""


def _by_task(summary: Summary, counted: frozenset[str] | None) -> Iterator[str]:
    yield "### Right answers by task, %"
    yield ""
    if counted is not None:
        yield f"Tasks in brackets don't count: full history is below {SOLVED:g} %, or they are few."
        yield ""
    rows = []
    for task in _tasks(summary):
        name = task if counted is None or task in counted else f"({task})"
        found = [summary.estimates[setting][of_task(task)] for setting in _plain(summary)]
        rows.append([name, *map(_value, found), f"{found[0].marks:,}"])
    yield from aligned(["task", *_plain(summary), "questions"], rows)
    yield ""


def _sweep(summary: Summary) -> Iterator[str]:
    """Policies down, watermarks across."""
    plain = _plain(summary)
    marks = sorted({_marks(s) for s in plain if _marks(s)}, key=lambda m: int(m.partition("/")[0]))
    if len(marks) < 2:
        return
    yield "### Right answers of counted tasks by watermarks, %"
    yield ""
    rows = []
    for policy in dict.fromkeys(s.partition(" ")[0] for s in plain if _marks(s)):
        names = [f"{policy} {pair}" for pair in marks]
        cells = [_value(summary.estimates.get(name, {}).get(COUNTED)) for name in names]
        rows.append([policy, *cells])
    yield from aligned(["policy", *marks], rows)
    yield ""


def _variants(summary: Summary) -> Iterator[str]:
    """Each variant less the same policy and watermarks without a change."""
    rows = []
    for setting in summary.settings:
        base, change = _base(setting), _change(setting)
        if not change or base not in summary.settings or setting != _without_layout(setting):
            continue
        found = summary.estimates[setting]
        row = [base, change, _value(found.get(COUNTED)), _value(found.get(COUNTED_FAR))]
        for score in (COUNTED, COUNTED_FAR):
            less = summary.differences.get((setting, base), {}).get(score)
            row += [_signed(less), _interval(less)]
        rows.append(row)
    if rows:
        yield "### Variants, right answers of counted tasks, %"
        yield ""
        header = ["setting", "change", "counted", "10 units and more"]
        header += ["counted less unchanged", "95 %", "10 and more less unchanged", "95 %"]
        yield from aligned(header, rows)
        yield ""


def _layouts(results: Sequence[Result]) -> Iterator[str]:
    """How many replies differ between layouts, where several were run."""
    found = layout_differences(results)
    if not found:
        return
    yield "### Layouts"
    yield ""
    rows = [[name, f"{asked:,}", f"{differ:,}"] for name, (asked, differ) in found.items()]
    yield from aligned(["setting", "questions", "answered otherwise in another layout"], rows)
    yield ""


def layout_differences(results: Sequence[Result]) -> dict[str, tuple[int, int]]:
    """By setting without its layout: questions asked in several layouts, and those that differ."""
    replies: dict[str, dict[tuple[str, str], list[str]]] = {}
    for result in results:
        of = replies.setdefault(_without_layout(result.record.setting), {})
        for answer in result.record.answers:
            of.setdefault((result.record.item, answer.question), []).append(answer.text)
    found = {}
    for setting, of in replies.items():
        several = [texts for texts in of.values() if len(texts) > 1]
        if several:
            found[setting] = len(several), sum(len(set(texts)) > 1 for texts in several)
    return found


def _tasks(summary: Summary) -> list[str]:
    begin = of_task("")
    names = [score.name for score in summary.scores if score.name.startswith(begin)]
    return [name.removeprefix(begin) for name in names]


def _plain(summary: Summary) -> list[str]:
    """Settings without variants, which have a table of their own, and layouts, which are equal."""
    return [setting for setting in summary.settings if setting == _base(setting)]


def _without_layout(setting: str) -> str:
    return " ".join(part for part in setting.split(" ") if part not in LAYOUTS)


def _base(setting: str) -> str:
    """Policy and watermarks of a setting's name."""
    return " ".join(setting.split(" ")[:2]) if _marks(setting) else setting.split(" ")[0]


def _change(setting: str) -> str:
    """What a setting's name says beyond policy, watermarks and layout."""
    return " ".join(_without_layout(setting).split(" ")[2:])


def _marks(setting: str) -> str:
    part = setting.partition(" ")[2].partition(" ")[0]
    return part if part.replace("/", "", 1).isdecimal() and "/" in part else ""


def _value(estimate: Estimate | None) -> str:
    return "-" if estimate is None or estimate.value is None else f"{estimate.value:.1f}"


def _signed(estimate: Estimate | None) -> str:
    return "-" if estimate is None or estimate.value is None else f"{estimate.value:+.1f}"


def _count(estimate: Estimate | None, of: str) -> str:
    return "0" if estimate is None else f"{getattr(estimate, of):,}"


def _interval(estimate: Estimate | None) -> str:
    if estimate is None or estimate.low is None or estimate.high is None:
        return "-"
    return f"{estimate.low:.1f} to {estimate.high:.1f}"
