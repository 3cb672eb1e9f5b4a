"""The paper's figures 13 and 14 from results: quality against time, and against watermarks.

Needs matplotlib. A colour is a policy; marks tell watermarks apart in figure 13, policies in 14.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from omnitide.errors import ConfigError
from omnitide.evaluation.bootstrap import Estimate
from omnitide.evaluation.score import PERCENT, Score
from omnitide.evaluation.summary import SESSION, Summary

COLOURS = ("#c2410c", "#2563eb", "#6a2c91", "#0f766e", "#d1850a", "#111111", "#64748b")
MARKS = ("o", "s", "^", "D", "v", "P", "X")
NO_SLIDE = {"color": "#444444", "linestyle": (0, (5, 2)), "linewidth": 1.0}

TIME = "session, s"

MAIN = {"svbench": "dialogue, OS (judge)", "livesports": "commentary, alignment (judge)"}
"""Score that is drawn, where it has marks; else `all`, else the first one."""


def draw_time(summaries: Sequence[Summary], score: str | None = None) -> Figure:
    """Figure 13: a panel for each summary, a point for each setting; lower left is better.

    Time decreases to the left and quality increases downward, as in the paper; bars are the
    intervals of both. The dashed line is the quality of the policy that drops nothing.

    Raises:
        ConfigError: A summary has no such score.
    """
    figure, panels = _panels(summaries)
    for axes, summary in zip(panels, summaries, strict=True):
        what = _score(summary, score)
        policies = list(dict.fromkeys(_line_name(summary, name) for name in summary.settings))
        pairs = list(dict.fromkeys(_pair(summary, name) for name in summary.settings))
        for name in summary.settings:
            colour = COLOURS[policies.index(_line_name(summary, name)) % len(COLOURS)]
            mark = MARKS[pairs.index(_pair(summary, name)) % len(MARKS)]
            time, quality = summary.estimates[name][TIME], summary.estimates[name][what.name]
            if time.value is None or quality.value is None:
                continue
            axes.errorbar(
                time.value,
                quality.value,
                xerr=_bars(time),
                yerr=_bars(quality),
                label=name,
                color=colour,
                marker=mark,
                markersize=6,
                elinewidth=0.6,
                capsize=2,
                linestyle="none",
            )
        full = _full(summary, what)
        if full is not None:
            axes.axhline(full, **NO_SLIDE)
        if not what.lower_is_better:
            axes.invert_yaxis()
        axes.set_xlabel("mean stream-loop time of a session, s")
        axes.set_ylabel(_axis_name(what))
        _legend(axes)
    figure.suptitle("Quality against session time; lower left is better", fontsize=10)
    return figure


def draw_watermarks(summaries: Sequence[Summary], score: str | None = None) -> Figure:
    """Figure 14: quality over pairs of watermarks, a line for each policy that cuts.

    Raises:
        ConfigError: A summary has no such score, or no setting with watermarks.
    """
    figure, panels = _panels(summaries)
    for axes, summary in zip(panels, summaries, strict=True):
        what = _score(summary, score)
        pairs = sorted(
            {_pair(summary, name) for name in summary.settings} - {None}, key=lambda p: p or (0, 0)
        )
        if not pairs:
            raise ConfigError(
                "[eval] figure 14 needs settings with watermarks; run a policy that cuts under "
                "several --watermarks"
            )
        lines: dict[str, list[tuple[int, Estimate]]] = {}
        for name in summary.settings:
            pair, estimate = _pair(summary, name), summary.estimates[name][what.name]
            if pair is not None and estimate.value is not None:
                line = _line_name(summary, name)
                lines.setdefault(line, []).append((pairs.index(pair), estimate))
        for (line, points), (_, colour, mark) in zip(
            lines.items(), _styles(tuple(lines)), strict=True
        ):
            for x, estimate in points:
                axes.errorbar(
                    x, estimate.value, yerr=_bars(estimate), color=colour, elinewidth=0.6, capsize=2
                )
            places, values = [x for x, _ in points], [e.value for _, e in points]
            axes.plot(places, values, label=line, color=colour, marker=mark, linewidth=1.2)
        full = _full(summary, what)
        if full is not None:
            axes.axhline(full, label="full", **NO_SLIDE)
        labels = [f"{pair[0]:,}/{pair[1]:,}" for pair in pairs if pair is not None]
        axes.set_xticks(range(len(pairs)), labels, fontsize=7)
        axes.set_xlabel("high/low watermark, tokens")
        axes.set_ylabel(_axis_name(what))
        _legend(axes)
    figure.suptitle("Watermark sensitivity", fontsize=10)
    return figure


def _panels(summaries: Sequence[Summary]) -> tuple[Figure, list[Any]]:
    figure = Figure(
        figsize=(4.8 * len(summaries) + 0.4, 4.4),
        layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08),
    )
    panels = list(figure.subplots(1, len(summaries), squeeze=False)[0])
    for axes, summary in zip(panels, summaries, strict=True):
        note = "" if summary.trained else " (untrained)"
        axes.set_title(f"{summary.model}{note}, {summary.benchmark}", fontsize=8)
    return figure, panels


def _score(summary: Summary, name: str | None) -> Score:
    scores = [score for score in summary.scores if SESSION not in score.tasks]
    known = {score.name: score for score in scores}
    if name is not None:
        if name not in known:
            raise ConfigError(f"[eval] --score must be one of {'; '.join(known)}; got {name!r}")
        return known[name]
    for main in (MAIN.get(summary.benchmark, ""), "all"):
        if main in known:
            return known[main]
    if not scores:
        raise ConfigError(f"[eval] the results of {summary.benchmark} have no score to draw")
    return next((score for score in scores if score.head), scores[0])


def _legend(axes: Any) -> None:
    """Below the picture, where it hides nothing."""
    axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3)


def _axis_name(what: Score) -> str:
    return f"{what.name}, %" if what.scale == PERCENT else what.name


def _styles(names: Sequence[str]) -> list[tuple[str, str, str]]:
    return list(zip(names, cycle(COLOURS), cycle(MARKS), strict=False))


def _bars(estimate: Estimate) -> list[list[float]] | None:
    """Lengths below and above, as matplotlib takes them."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return None
    low, high = estimate.value - estimate.low, estimate.high - estimate.value
    return [[max(low, 0.0)], [max(high, 0.0)]]


def _full(summary: Summary, what: Score) -> float | None:
    for name in summary.settings:
        if summary.facts[name]["policy"] == "full":
            return summary.estimates[name][what.name].value
    return None


def _pair(summary: Summary, name: str) -> tuple[int, int] | None:
    facts = summary.facts[name]
    if facts["high_watermark"] is None:
        return None
    return facts["high_watermark"], facts["low_watermark"]


def _line_name(summary: Summary, name: str) -> str:
    """The setting without its watermarks."""
    facts = summary.facts[name]
    marks = f"{facts['high_watermark']}/{facts['low_watermark']}"
    return " ".join(part for part in name.split() if part != marks)
