"""The options that say when rows are moved, for `generate` and `simulate` alike."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from omnitide.cli.options import number_or_none, stated
from omnitide.config import RULES, SPAN_PAGES, MigrationConfig
from omnitide.costs import Costs
from omnitide.errors import ConfigError
from omnitide.layouts import LAYOUTS
from omnitide.layouts.suffix import Suffix


def add_migration(group: Any, tile: str, row: str) -> None:
    """Add the options. `tile` and `row` say which costs hold where none are given."""
    own = "; ".join(
        f"{name}: {layout.accept}" for name, layout in LAYOUTS.items() if layout.accept is not None
    )
    help = f"rule by which moves run: {', '.join(RULES)} (default: by layout, {own})"
    group.add_argument("--accept", metavar="NAME", choices=RULES, help=help)
    pages = f"pages that --accept span and the suffix layout save ({stated(SPAN_PAGES)})"
    number_or_none(group, pages, "--span-pages")
    for flag, what, held in (
        ("--tile-cost-us", "attention over a subblock", tile),
        ("--row-cost-us", "copying a row", row),
    ):
        help = f"microseconds of {what}, all layers together ({stated(held)})"
        group.add_argument(flag, metavar="US", type=float, help=help)


def read_rule(
    op: str,
    options: argparse.Namespace,
    layouts: Sequence[str],
    recorded: MigrationConfig | None = None,
) -> MigrationConfig:
    """The rule that was asked for, else the recorded one; without costs.

    Raises:
        ConfigError: An option makes no sense, or has no effect on any of the layouts.
    """
    base = MigrationConfig() if recorded is None else recorded
    accept = base.accept if options.accept is None else options.accept
    pages = base.span_pages if options.span_pages is None else options.span_pages
    moving = [name for name in LAYOUTS if LAYOUTS[name].accept is not None]
    if options.accept is not None and not set(moving) & set(layouts):
        raise ConfigError(
            f"[{op}] --accept is for a layout that moves rows ({', '.join(moving)}), got "
            f"{', '.join(layouts)}; change --layout or leave it out"
        )
    if options.span_pages is not None and accept != "span" and Suffix.name not in layouts:
        raise ConfigError(
            f"[{op}] --span-pages is for --accept span and --layout suffix, got "
            f"{', '.join(layouts)} and {accept or 'no --accept'}; add one or leave it out"
        )
    return MigrationConfig(accept, pages)


def read_migration(options: argparse.Namespace, layout: str) -> MigrationConfig:
    """Rule and costs of `omnitide generate`.

    Raises:
        ConfigError: They make no sense, or have no effect on the layout.
    """
    rule = read_rule("generate", options, [layout])
    given = replace(rule, tile_cost_us=options.tile_cost_us, row_cost_us=options.row_cost_us)
    used = rule.accept or LAYOUTS[layout].accept
    if given.costs is not None and used != "cost":
        raise ConfigError(
            f"[generate] --tile-cost-us and --row-cost-us are for --accept cost, got {layout} and "
            f"{used or 'no moves'}; leave them out"
        )
    return given


def read_costs(options: argparse.Namespace, recorded: Costs) -> Costs:
    """Costs of `omnitide simulate`: each as given, else as recorded.

    Raises:
        ConfigError: A cost is negative or no number.
    """
    return Costs(
        recorded.tile_us if options.tile_cost_us is None else options.tile_cost_us,
        recorded.row_us if options.row_cost_us is None else options.row_cost_us,
    )
