"""`omnitide convert`: quantise a checkpoint, report the error of each matrix."""

from __future__ import annotations

import argparse
import json
import re
import time as clock
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from omnitide.cli.console import PlainConsole
from omnitide.cli.progress import SECONDS_BETWEEN_LINES
from omnitide.cli.report import bytes_in_words
from omnitide.cli.terminal import printable, say
from omnitide.convert.conversion import convert
from omnitide.convert.plan import Plan
from omnitide.convert.planner import plan_conversion
from omnitide.convert.recipe import Format, Recipe, read_rules
from omnitide.convert.shard import ModuleError
from omnitide.convert.workspace import unfinished
from omnitide.errors import ConfigError
from omnitide.models.hub import resolve

LEAST_MEMORY = 1 / 64
"""GiB; below, a row of a large matrix may not fit."""

MOST_MEMORY = 1 << 20
"""GiB; no machine has more."""

WIDE = 500
"""Columns of a screen that holds a row of the table, whatever the names."""

_NUMBERED = re.compile(r"\.\d+\.")


class Advance(Protocol):
    """Is told the bytes that are done since the last call."""

    def __call__(self, count: int, /) -> None: ...


def run_convert(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code.

    Raises:
        ConfigError: An option makes no sense, or the place of the result is taken.
        CheckpointError: The model can't be read, or the result can't be written.
    """
    for flag, value in (("--hf-path", options.hf_path), ("--mlx-path", options.mlx_path)):
        if not value:
            raise ConfigError(f"[convert] {flag} must be given; see {options.program} --help")
    if not LEAST_MEMORY <= options.memory_limit <= MOST_MEMORY:
        raise ConfigError(
            f"[convert] --memory-limit must be at least {LEAST_MEMORY:g} GiB and at most "
            f"{MOST_MEMORY:,} GiB, got {options.memory_limit:g}"
        )
    format = Format(options.q_bits, options.q_group_size)
    recipe = Recipe(format, read_rules(options.module, format))
    folder, target = resolve(options.hf_path), Path(options.mlx_path)
    plan = plan_conversion(folder, recipe, options.dtype, options.drop_unused)
    screen = PlainConsole(stderr=True)
    try:
        with _progress(screen, plan.source_bytes, options.verbose) as advance:
            limit = int(options.memory_limit * 2**30)
            errors = convert(plan, folder, target, limit, advance, lambda: _tell_resumed(target))
    except KeyboardInterrupt:
        say("note", "what is finished stays; the same command goes on from there")
        raise
    if options.json:
        print(json.dumps(_as_dict(plan, target, errors), indent=2))
    else:
        _show(PlainConsole(stderr=False), plan, target, errors, options.verbose)
    return 0


def _tell_resumed(target: Path) -> None:
    say("note", f"going on with {unfinished(target).name}")


@contextmanager
def _progress(console: Console, total: int, verbose: bool) -> Iterator[Advance]:
    """Shows how much of the source is done: a bar on a screen, else lines now and then."""
    if not console.is_terminal:
        yield _Lines(console if verbose else None, total)
        return
    columns = (BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(TextColumn("converting"), *columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.update(task, advance=count)


class _Lines:
    """A line at most every few seconds, on a console or on none."""

    def __init__(self, console: Console | None, total: int) -> None:
        self._console, self._total, self._done = console, total, 0
        self._last = clock.monotonic()

    def __call__(self, count: int) -> None:
        self._done += count
        now = clock.monotonic()
        if self._console is not None and now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            share = 100 * self._done / max(self._total, 1)
            done, total = bytes_in_words(self._done), bytes_in_words(self._total)
            self._console.print(f"{share:.0f} %  {done} of {total}", soft_wrap=True)


def _as_dict(plan: Plan, target: Path, errors: list[ModuleError]) -> dict[str, object]:
    return {
        "folder": str(target),
        "source_bytes": plan.source_bytes,
        "written_bytes": plan.written_bytes,
        "files": [shard.file for shard in plan.shards],
        "modules": [asdict(error) for error in errors],
        "kept": [item.info.name for item in plan.items if item.format is None],
        "left_out": list(plan.left_out),
    }


def _show(
    console: Console, plan: Plan, target: Path, errors: list[ModuleError], each: bool
) -> None:
    """A row for each matrix, or for each kind of matrix: names that differ in the layer only."""
    kinds: dict[tuple[str, int, int], list[ModuleError]] = {}
    for error in errors:
        name = error.module if each else _NUMBERED.sub(".*.", error.module)
        kinds.setdefault((name, error.bits, error.group_size), []).append(error)
    grid = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "right", "right"):
        grid.add_column(justify=justify)
    grid.add_row("matrix", "number", "bits, group", "relative error", "largest", style="dim")
    for (name, bits, group_size), same in kinds.items():
        relative = [error.relative_error for error in same]
        spread = f"{max(relative):.3g}"
        if f"{min(relative):.3g}" != spread:
            spread = f"{min(relative):.3g} to {spread}"
        largest = f"{max(error.largest_error for error in same):.3g}"
        grid.add_row(name, str(len(same)), f"{bits}, {group_size}", spread, largest)
    # Names are for --module, so none is cut: a narrow screen breaks lines by itself.
    console.width = max(console.width, WIDE)
    console.print(grid)
    kept = sum(item.format is None for item in plan.items)
    left = f", {len(plan.left_out)} left out" if plan.left_out else ""
    console.print(
        f"{printable(str(target))}: {bytes_in_words(plan.written_bytes)} of "
        f"{bytes_in_words(plan.source_bytes)}; {len(errors)} matrices quantised, "
        f"{kept} tensors kept{left}",
        soft_wrap=True,
    )
