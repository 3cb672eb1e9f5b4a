"""`omnitide simulate`: what policies and layouts keep, move and cost, without a model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from omnitide.cli import FAILED
from omnitide.cli.console import PlainConsole
from omnitide.cli.migration import read_costs, read_rule
from omnitide.cli.plot import open_picture
from omnitide.cli.request import RETENTION_OPTIONS
from omnitide.cli.terminal import printable, say, write_words
from omnitide.config import DEFAULTS, MigrationConfig, RetentionConfig, family_retention
from omnitide.costs import NOMINAL, Costs
from omnitide.errors import CapacityError, ConfigError
from omnitide.layouts import LAYOUTS
from omnitide.policies import POLICIES
from omnitide.simulation.result import SimulationResult, Timeline
from omnitide.simulation.shapes import DEFAULT_SHAPE, make_shape
from omnitide.simulation.simulator import needs_model, simulate
from omnitide.simulation.stream import Stream, shape_stream
from omnitide.simulation.trace import Trace

UNITS = 400
"""Units of a shape, unless others are given."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to simulate.

    Attributes:
        stream: Units.
        choices: Policies and layouts, one row each.
        left_out: Policies that `--compare` would show, but a simulation can't.
        config: Watermarks and budgets.
        max_kv_size, costs, migration: As in `simulate`.
    """

    stream: Stream
    choices: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]
    config: RetentionConfig
    max_kv_size: int | None
    costs: Costs
    migration: MigrationConfig


@dataclass(slots=True)
class Rows:
    """What came out.

    Attributes:
        results: Of the rows that could be simulated to their end.
        timelines: Of the same rows, if they are drawn.
        failures: Of the others, which and why; and of a picture that could not be written.
    """

    results: list[SimulationResult] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def run_simulate(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code.

    Raises:
        ConfigError: An option, or what they make together, makes no sense.
        TraceError: The trace can't be read.
        CapacityError: A unit does not fit.
    """
    with open_picture(options.plot) as picture:
        plan = read_plan(options)
        rows = _simulate_all(plan, PlainConsole(stderr=True), picture is not None)
        if rows.results:
            if picture is not None:
                try:
                    picture.save(rows.results, rows.timelines)
                except ConfigError as error:  # the figures are shown all the same
                    rows.failures.append(str(error))
            if options.json:
                found = [result.as_dict() for result in rows.results]
                write_words(json.dumps(found, indent=2, allow_nan=False) + "\n")
            else:
                _show(PlainConsole(stderr=False), plan, rows.results)
    for failure in rows.failures:
        say("error", failure)
    return FAILED if rows.failures else 0


def read_plan(options: argparse.Namespace) -> Plan:
    """Check the options.

    Raises:
        ConfigError, TraceError: See `run_simulate`.
    """
    given = {name: getattr(options, name) for name in RETENTION_OPTIONS}
    migration, costs = None, NOMINAL
    if options.trace is None:
        stream = shape_stream(
            make_shape(options.shape or DEFAULT_SHAPE),
            UNITS if options.units is None else options.units,
            options.seed or 0,
        )
        config = family_retention(DEFAULTS, **given)
        policy, layout, size = options.default_policy, options.default_layout, options.max_kv_size
    else:
        for option, value in (("--shape", options.shape), ("--seed", options.seed)):
            if value is not None:
                raise ConfigError(
                    f"[simulate] give {option} or --trace, not both: a trace holds its units; "
                    f"leave out {option}"
                )
        trace = Trace(options.trace)
        stream = _first(trace.stream(), options.units)
        header = trace.header
        config = _changed(header.retention, given)
        policy, layout = header.policy, header.layout
        size = header.max_kv_size if options.max_kv_size is None else options.max_kv_size
        migration, costs = header.migration, header.migration.costs or NOMINAL
    if size is not None and size < 1:
        raise ConfigError(f"[simulate] --max-kv-size must be at least 1, got {size}")
    choices, left_out = _choices(options, policy, layout)
    return Plan(
        stream,
        choices,
        left_out,
        config,
        size,
        read_costs(options, costs),
        read_rule("simulate", options, [layout for _, layout in choices], migration),
    )


def _choices(
    options: argparse.Namespace, policy: str, layout: str
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Policies by layouts, and what is left out. To compare widens what was not given.

    Layouts are widened first.
    """
    policies, layouts, left_out = list(options.policy), list(options.layout), []
    if options.compare:
        if not layouts:
            layouts = list(LAYOUTS)
        elif not policies:
            policies = [name for name in POLICIES if not needs_model(name)]
            left_out = [name for name in POLICIES if needs_model(name)]
    pairs = [(p, q) for p in policies or [policy] for q in layouts or [layout]]
    return tuple(dict.fromkeys(pairs)), tuple(left_out)


def _changed(recorded: RetentionConfig, given: dict[str, Any]) -> RetentionConfig:
    """The recorded settings with those that were given in their place."""
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(recorded, **changes)


def _first(stream: Stream, count: int | None) -> Stream:
    """The first `count` units after the prefix; all if None."""
    if count is None:
        return stream
    if count < 1:
        raise ConfigError(f"[simulate] --units must be at least 1, got {count}")
    return replace(stream, units=lambda: islice(stream.units(), count + 1))


def _simulate_all(plan: Plan, screen: Console, drawn: bool) -> Rows:
    """Every row. One that does not fit leaves the others be, unless it is the only one."""
    rows = Rows()
    with Progress(
        BarColumn(bar_width=20),
        TextColumn("{task.description}", markup=False),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    ) as progress:
        for policy, layout in plan.choices:
            task = progress.add_task(f"{policy}, {layout}", total=plan.stream.count)
            timeline = Timeline() if drawn else None
            try:
                result = simulate(
                    plan.stream,
                    policy,
                    layout,
                    plan.config,
                    max_kv_size=plan.max_kv_size,
                    costs=plan.costs,
                    migration=plan.migration,
                    timeline=timeline,
                    progress=partial(_advance, progress, task),
                )
            except (CapacityError, ConfigError) as error:
                if len(plan.choices) == 1:
                    raise
                rows.failures.append(f"{policy}, {layout}: {error}")
                continue
            rows.results.append(result)
            if timeline is not None:
                rows.timelines.append(timeline)
    return rows


def _advance(progress: Progress, task: TaskID, done: int) -> None:
    progress.update(task, completed=done)


ROWS: tuple[tuple[str, str], ...] = (
    ("cells kept", "live_cells"),
    ("units with a cell left", "kept_units"),
    ("active pages", "active_pages"),
    ("active subblocks", "active_subblocks"),
    ("slots walked a cell", "active_subblock_ratio"),
    ("physical span", "physical_span"),
    ("peak span", "peak_span"),
    ("pages of memory, peak", "peak_memory_pages"),
    ("moves accepted by", "accept"),
    ("rows moved", "rows_moved"),
    ("  as a share of eager's", "rows_moved_share_of_eager"),
    ("evictions", "evictions"),
    ("planning, median ms", "plan_ms_p50"),
    ("attention, estimated ms", "attention_ms"),
    ("copies, estimated ms", "copy_ms"),
)
"""Labels of the table and the fields beside them."""

LABELS, COLUMN = 25, 14
"""Width of the labels and of a simulation, characters."""


def _show(console: Console, plan: Plan, results: Sequence[SimulationResult]) -> None:
    first = results[0]
    title = f"{first.shape}: {first.units:,} units, {first.tokens_seen:,} tokens"
    # Those of a policy that heeds them, where there is one: --max-kv-size may have lowered them.
    cut = next((r for r in results if r.high_watermark is not None), None)
    if cut is not None:
        title += f"; watermarks {cut.high_watermark:,} and {cut.low_watermark:,}"
    console.print(Text(printable(title)), soft_wrap=True)
    at_once = max((console.width - LABELS) // COLUMN, 1)
    for start in range(0, len(results), at_once):
        console.print()
        console.print(_table(results[start : start + at_once]))
    console.print()
    console.print(
        "Cells, pages, subblocks and span are those at the end, slots walked those of the whole "
        f"stream.\nTimes are estimated at {plan.costs.tile_us:g} us a subblock and "
        f"{plan.costs.row_us:g} us a row, all layers together.",
        soft_wrap=True,
    )
    for policy in plan.left_out:
        console.print(
            f"{policy} is left out: it decides by the attention of a model, which a simulation has "
            "not; measure\nit with omnitide generate.",
            soft_wrap=True,
        )


def _table(results: Sequence[SimulationResult]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    for _ in results:
        grid.add_column(justify="right")
    grid.add_row("policy", *(result.policy for result in results))
    grid.add_row("layout", *(result.layout for result in results))
    for label, name in ROWS:
        grid.add_row(label, *(_cell(result, name) for result in results))
    return grid


def _cell(result: SimulationResult, name: str) -> str:
    value = getattr(result, name)
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if name == "rows_moved_share_of_eager":
        return f"{value:.1%}"
    if name.endswith("_ratio"):
        return f"{value:.3f}"
    if name == "plan_ms_p50":
        return f"{value:.2f}"
    return f"{value:,.0f}"
