"""Pictures of benchmarks: times over history, rows or minutes, and where an update's time goes.

Needs matplotlib. Lines are told apart by dashes and marks as well as by colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter

from omnitide.bench.report import Report, Row

COLOURS = ("#111111", "#c2410c", "#6a2c91", "#0f766e", "#d1850a", "#2563eb")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (4, 1, 1, 1)))
MARKS = ("o", "s", "^", "D", "v", "P", "X")

PARTS = {
    "attention_ms": ("attention", "#c2410c", ""),
    "matrix_ms": ("matrix products", "#a9d8f2", ""),
    "migration_ms": ("migration", "#6a2c91", "////"),
    "rest_ms": ("rest", "#d9d9d9", "...."),
}


@dataclass(frozen=True, slots=True)
class Axes:
    """What is drawn over what.

    Attributes:
        x, label: Field of the row along the axis, and its name.
        y: Field of the median; its spread is `y_p10` to `y_p90`.
        unit: Of y, with its name.
        floor: Field of the floor.
        names: Fields that name a line.
    """

    x: str
    label: str
    y: str
    unit: str
    floor: str
    names: tuple[str, ...]


AXES = {
    "attention": Axes(
        "history",
        "cells",
        "us",
        "attention of a layer, us",
        "floor_us",
        ("who", "live", "policy", "layout", "queries"),
    ),
    "migrate": Axes("rows", "rows", "us", "migration, us", "floor_us", ("who",)),
    "decode": Axes(
        "history", "cells", "ms", "a token, ms", "floor_ms", ("who", "policy", "layout")
    ),
    "update": Axes(
        "history",
        "tokens that the stream has had",
        "ms",
        "an update, ms",
        "floor_ms",
        ("who", "policy", "layout", "tokens"),
    ),
}


def draw(report: Report) -> Figure:
    """The picture of a report."""
    split = [row for row in report.rows if "rest_ms" in row]
    width, height = max(9.5, 0.75 * len(split) + 2.0), 4.2 + 3.2 * bool(split)
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08))
    machine, text = report.machine, report.shape.text
    weights = ", ".join(filter(None, (machine.dtype, report.settings.packed)))
    figure.suptitle(
        f"{report.bench}: {report.shape.name}, {text.num_layers} layers, {weights}, "
        f"{machine.backend} on {machine.device}",
        x=0.01,
        ha="left",
        fontsize=10,
        fontweight="bold",
    )
    axes = figure.subplots(1 + bool(split), 1, squeeze=False)[:, 0]
    if report.bench == "session":
        _minutes(axes[0], report.rows)
    else:
        _lines(axes[0], report.rows, AXES[report.bench])
    if split:
        _parts(axes[1], split)
    return figure


def _lines(axes: Any, rows: Sequence[Row], what: Axes) -> None:
    lines: dict[str, list[Row]] = {}
    for row in rows:
        name = ", ".join(_word(key, row[key]) for key in what.names if row[key] != "")
        lines.setdefault(name, []).append(row)
    for (name, line), colour, dash, mark in zip(
        lines.items(), cycle(COLOURS), cycle(DASHES), cycle(MARKS), strict=False
    ):
        line.sort(key=lambda row: int(row[what.x]))
        x, y = [row[what.x] for row in line], [row[what.y] for row in line]
        low, high = ([row[f"{what.y}_{p}"] for row in line] for p in ("p10", "p90"))
        style = {"color": colour, "linestyle": dash, "linewidth": 1.2}
        axes.plot(x, y, label=name, marker=mark, markersize=4, **style)
        axes.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(x, [row[what.floor] for row in line], color=colour, linewidth=0.5)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({row[what.x] for row in rows}))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(what.label)
    axes.set_ylabel(what.unit)
    axes.set_title("medians, p10 to p90; thin lines: floors")
    _legend(axes)


def _minutes(axes: Any, rows: Sequence[Row]) -> None:
    for row, colour, dash in zip(rows, cycle(COLOURS), cycle(DASHES), strict=False):
        minutes = range(1, len(row["minute_ms"]) + 1)
        name = f"{row['policy']}, {row['layout']}"
        axes.plot(minutes, row["minute_ms"], label=name, color=colour, linestyle=dash)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("minute of the stream")
    axes.set_ylabel("an update, median ms")
    _legend(axes)


def _parts(axes: Any, rows: Sequence[Row]) -> None:
    names = [
        f"{row['policy']}\n{row['layout']}\n{row['tokens']:,} after {row['history']:,}"
        for row in rows
    ]
    places, bottom = range(len(rows)), [0.0] * len(rows)
    for key, (name, colour, hatch) in PARTS.items():
        heights = [max(row[key], 0.0) for row in rows]
        axes.bar(
            places,
            heights,
            bottom=bottom,
            label=name,
            color=colour,
            hatch=hatch,
            edgecolor="#ffffff",
            linewidth=0.3,
            width=0.7,
        )
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    axes.set_xticks(places, names, fontsize=6)
    axes.set_ylabel("an update, mean ms")
    _legend(axes)


def _word(field: str, value: Any) -> str:
    """A name as it stands; a number with what it counts."""
    return f"{value:,} {field}" if isinstance(value, int) else str(value)


def _legend(axes: Any) -> None:
    """Beside the picture, where it hides nothing."""
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
