"""The paper's figures 7, 8, 9 and 12, in shape, from the simulator, beside the paper's numbers.

    python benchmarks/paper_figures.py [--plot FOLDER]

The paper ran real models on a laptop and a GPU; this runs their token layouts without them. What it
says of its settings: watermarks 2500/1800 by default, one frame and one second of sound a unit,
pages of 64 slots, StreamingLLM with two sinks; figure 12 is taken where a history without eviction
has reached 32K tokens. What it does not say, and what stands here instead:

- Figure 8's watermarks. 1,024 slots hold what is left, so they can't be the default ones: 2300/1000
  are taken, and the state after the last eviction.
- Sinks and budgets of OmniPick: ours (8, 8, 256).
- Picture sizes of figure 12's Qwen streams: 896x896, at which a newest unit and the sinks of older
  ones come near the paper's 2,778 cells. Lengths of questions and replies: ours. MiniCPM-o: one
  frame of 448x448 a second. The paper's state may lie before or after an eviction; ours is the
  one after the unit that reached 32K.
- The threshold of the ordered-suffix mode.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from omnitide.config import MigrationConfig, RetentionConfig
from omnitide.layouts import LAYOUTS
from omnitide.pages import PAGE_SIZE
from omnitide.policies import POLICIES
from omnitide.simulation import minicpm, qwen
from omnitide.simulation.result import SimulationResult, Timeline
from omnitide.simulation.shapes import make_shape
from omnitide.simulation.simulator import needs_model, simulate
from omnitide.simulation.stream import Stream
from omnitide.units import Unit, UnitKind

AS_THE_PAPER = MigrationConfig("layout")
"""Moves run whatever they cost: the rules of the paper are in what its layouts propose."""

CHECKPOINT = 32_768
"""Tokens of the full history at which figure 12 looks."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table: what it is, the paper's number if there is one, ours."""

    what: str
    paper: str
    ours: str


def stream_of(name: str, units: list[Unit]) -> Stream:
    """A stream of given units, the system prefix first."""
    rest = units[1:]
    return Stream(
        name,
        lambda: units,
        len(rest),
        len(units[0]),
        max(len(u) for u in rest if u.kind != UnitKind.REPLY),
        max((len(u) for u in rest if u.kind == UnitKind.REPLY), default=0),
    )


def up_to(tokens: int, units: Iterator[Unit]) -> list[Unit]:
    """Units until they hold so many tokens."""
    taken, total = [], 0
    for unit in units:
        taken.append(unit)
        total += len(unit)
        if total >= tokens:
            return taken
    return taken


def qwen_stream() -> Stream:
    """A second a unit, one pair of frames of 896x896, a question every eight."""
    units = [qwen.system()]
    for second in itertools.count():
        units.append(qwen.film(float(second), 896, 1.0))
        if second % 8 == 7:
            units += [qwen.prompt(second + 1.0, 12), qwen.reply(second + 1.0, 40)]
        if sum(map(len, units)) >= CHECKPOINT:
            return stream_of("qwen", units)
    raise AssertionError("itertools.count ends never")


def minicpm_stream() -> Stream:
    """MiniCPM-o, duplex."""
    shape = make_shape("minicpm-duplex")
    return stream_of("minicpm-o", up_to(CHECKPOINT, shape.units(CHECKPOINT)))


def packed(cells: int) -> int:
    """Span of so many cells packed from slot 0, rounded up to a page."""
    return -(-cells // PAGE_SIZE) * PAGE_SIZE


def figures_7_and_8() -> tuple[list[Row], tuple[SimulationResult, Timeline]]:
    """60 units of MiniCPM-o: span, cells and holes, native and packed."""
    stream = stream_of("minicpm-o", [minicpm.system(), *(minicpm.unit(i) for i in range(60))])
    timeline = Timeline()
    config = RetentionConfig(2300, 1000)
    native = simulate(stream, "omnipick", "native", config, timeline=timeline)
    last = timeline.maps[-1]
    cells = int(np.count_nonzero(last.contents))
    span, eager = last.contents.size, packed(cells)
    rows = [
        Row("native span, slots", "2,304", f"{span:,}"),
        Row("eager span, slots", "1,024", f"{eager:,}"),
        Row("native / eager", "2.25", f"{span / eager:.2f}"),
        Row("useful cells", "at most 1,024", f"{cells:,}"),
        Row("holes in the native span", "at least 1,280", f"{span - cells:,}"),
        Row("slots of subblocks with a cell", "-", f"{timeline.subblocks[last.unit] * 32:,}"),
        Row("rows that eager copies in the run", "-", f"{eager_rows(stream, config):,}"),
    ]
    return rows, (native, timeline)


def eager_rows(stream: Stream, config: RetentionConfig) -> int:
    """Rows that packing after each eviction moves; from a run that moves some."""
    paper = simulate(stream, "omnipick", "paper", config, migration=AS_THE_PAPER)
    share = paper.rows_moved_share_of_eager
    return round(paper.rows_moved / share) if share else 0


def figure_9() -> tuple[list[Row], tuple[SimulationResult, Timeline]]:
    """Class-aware placement with selective migration: what it leaves of a scattered history."""
    stream = stream_of("minicpm-o", [minicpm.system(), *(minicpm.unit(i) for i in range(120))])
    rows, shown = [], None
    for layout in ("native", "paper", "predictive"):
        timeline = Timeline()
        result = simulate(stream, "omnipick", layout, timeline=timeline, migration=AS_THE_PAPER)
        ours = (
            f"{result.active_pages} pages, {result.active_subblocks} subblocks, "
            f"{result.rows_moved_share_of_eager:.1%} moved"
        )
        rows.append(Row(f"{layout}: {result.live_cells:,} cells in", "-", ours))
        if layout == "paper":
            shown = (result, timeline)
    assert shown is not None
    return rows, shown


def figure_12(stream: Stream, paper: dict[str, str]) -> tuple[list[Row], list[SimulationResult]]:
    """Useful cells and span at the checkpoint, by policy and layout."""
    choices = [("omnipick", "native")]
    choices += [("omnipick", layout) for layout in ("suffix", "paper", "predictive")]
    choices += [("streaming-llm", "native"), ("h2o", "native")]
    rows, results = [], []
    for policy, layout in choices:
        if policy not in POLICIES or layout not in LAYOUTS or needs_model(policy):
            continue
        result = simulate(stream, policy, layout, migration=AS_THE_PAPER)
        results.append(result)
        ours = (
            f"{result.live_cells:,} in {result.physical_span:,} "
            f"({result.physical_span / result.live_cells:.2f}), at most "
            f"{result.peak_live_cells:,} in {result.peak_span:,}, "
            f"{result.active_subblocks * 32:,} walked"
        )
        rows.append(
            Row(f"{policy}, {layout}", paper.get(layout if policy == "omnipick" else "", "-"), ours)
        )
    least = packed(results[0].live_cells)
    rows.append(Row("least span that holds them", "-", f"{least:,}"))
    return rows, results


QWEN = {"native": "2,778 in 3,840 (1.38)", "suffix": "2,778 in 2,816 (1.01)"}
MINICPM = {"native": "2,095 in 2,560 (1.22)", "suffix": "2,095 in 2,304 (1.10)"}


def show(title: str, rows: list[Row]) -> None:
    """Print a table in Markdown."""
    print(f"\n{title}\n\n| | paper | here |\n|---|---|---|")
    for row in rows:
        print(f"| {row.what} | {row.paper} | {row.ours} |")


def draw(folder: Path, name: str, drawn: tuple[SimulationResult, Timeline]) -> None:
    """A simulation as `omnitide simulate --plot` draws it."""
    from omnitide.simulation.picture import Picture

    folder.mkdir(parents=True, exist_ok=True)
    with Picture(folder / name) as picture:
        picture.save([drawn[0]], [drawn[1]])


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plot", metavar="FOLDER", type=Path, help="draw figures 8 and 9 there")
    folder = parser.parse_args().plot
    rows, native = figures_7_and_8()
    show("Figures 7 and 8: holes after eviction, 60 units of MiniCPM-o", rows)
    rows, placed = figure_9()
    show("Figure 9: class-aware placement, 120 units of MiniCPM-o, 2500/1800", rows)
    rows, _ = figure_12(qwen_stream(), QWEN)
    show("Figure 12, Qwen2.5-Omni at 32K tokens", rows)
    rows, _ = figure_12(minicpm_stream(), MINICPM)
    show("Figure 12, MiniCPM-o at 32K tokens", rows)
    if folder is not None:
        draw(folder, "figure8.png", native)
        draw(folder, "figure9.png", placed)


if __name__ == "__main__":
    main()
