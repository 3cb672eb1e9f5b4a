"""Recall and what is kept over the distance to the question, a line a setting. Needs matplotlib."""

from __future__ import annotations

from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from omnitide.bench.picture import COLOURS, MARKS
from omnitide.evaluation.needle.benchmark import KEPT, RECALL, at_distance
from omnitide.evaluation.needle.tables import distances_of
from omnitide.evaluation.summary import Summary

PANELS = {RECALL: "facts recalled, %", KEPT: "tokens of a fact still kept, %"}


def draw(summary: Summary) -> Figure:
    """Two panels over the distance; bars are 95 % intervals over streams."""
    figure = Figure(figsize=(9.2, 3.8))
    figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    untrained = "" if summary.trained else " (untrained, random weights)"
    figure.suptitle(f"{summary.model}{untrained}, needle", x=0.01, ha="left", fontsize=10)
    for axes, (metric, label) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        _panel(axes, summary, metric)
        axes.set_ylabel(label)
        axes.set_ylim(-3, 103)
        axes.set_xlabel("seconds between a fact and the question")
    axes.legend(fontsize=7)
    return figure


def _panel(axes: Axes, summary: Summary, metric: str) -> None:
    distances = distances_of(summary)
    for setting, colour, mark in zip(summary.settings, cycle(COLOURS), cycle(MARKS), strict=False):
        points = []
        for distance in distances:
            estimate = summary.estimates[setting].get(at_distance(metric, distance))
            if estimate is None or estimate.value is None:
                continue
            points.append((float(distance), estimate.value))
            if estimate.low is not None and estimate.high is not None:
                axes.plot(
                    [points[-1][0]] * 2, [estimate.low, estimate.high], color=colour, linewidth=0.6
                )
        x, y = [point[0] for point in points], [point[1] for point in points]
        axes.plot(x, y, label=setting, color=colour, marker=mark, markersize=4, linewidth=1.2)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks([float(distance) for distance in distances], distances)
    axes.minorticks_off()
