"""Histories as a policy and a layout leave them, made without a model.

The units are placed and cut by the functions that a session uses (`simulation.simulator`), so holes
and partly filled tiles are those of a real stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from omnitide.bench.settings import Settings
from omnitide.capacity import Capacity, plan_capacity
from omnitide.config import RetentionConfig
from omnitide.errors import ConfigError
from omnitide.history import History
from omnitide.layouts import make_layout
from omnitide.pages import PAGE_SIZE, PageTable
from omnitide.policies import make_policy
from omnitide.simulation.shapes import make_shape
from omnitide.simulation.simulator import Simulator
from omnitide.units import Modality, Unit, UnitBuilder, UnitKind

CUTS = 3
"""Evictions after which a stream counts as settled."""

SAMPLE = 200
"""Units of a stream from which its largest unit is taken; larger ones are left out."""

MOST_UNITS = 1 << 20
"""Units after which a history that does not reach its length is given up."""

WORD, PICTURE, SOUND = 1000, 1001, 1002
"""Stand for any tokens; nothing looks at them."""


@dataclass(frozen=True, slots=True)
class Left:
    """A history with its table.

    Attributes:
        history, table: As `BoundedCache` would hold them.
        policy, layout: Names.
        config: Watermarks under which it came about.
    """

    history: History
    table: PageTable
    policy: str
    layout: str
    config: RetentionConfig


def scaled(config: RetentionConfig, high: int) -> RetentionConfig:
    """The configuration with another high watermark, and the low one in proportion."""
    low = max(high * config.low_watermark // config.high_watermark, 1)
    return replace(config, high_watermark=high, low_watermark=low)


def just_before_a_cut(settings: Settings, policy: str, layout: str, cells: int) -> Left:
    """A settled history of `cells` cells, at the moment at which the next ones would make it cut.

    The high watermark is the number of cells. Of the unit that reaches it the rest is left out.

    Raises:
        ConfigError: The stream never gets there.
    """
    shape = make_shape(settings.stream)
    sample = list(shape.units(SAMPLE, settings.seed))
    largest = max(len(unit) for unit in sample)
    prefix, config = len(sample[0]), scaled(settings.config, cells)
    if make_policy(policy).bounded:
        if cells <= prefix:
            raise ConfigError(
                f"[bench] a history of {cells:,} cells under policy {policy} must be longer than "
                f"the system prefix of stream {settings.stream}, {prefix:,}; raise --history"
            )
        config = replace(config, low_watermark=max(config.low_watermark, prefix))
    run = _simulator(policy, layout, config, prefix, largest, pages_for(cells + largest))
    cuts = 0
    for unit in islice(shape.units(MOST_UNITS, settings.seed), MOST_UNITS):
        if len(unit) > largest:
            continue
        run.append(unit)
        settled = cuts >= CUTS or not run.policy.bounded
        if settled and len(run.history) >= cells:
            return _first(Left(run.history, run.table, policy, layout, config), cells)
        if unit.kind != UnitKind.PROMPT and run.evict() is not None:
            cuts += 1
    raise ConfigError(
        f"[bench] stream {settings.stream} under policy {policy} never has {cells:,} cells; take "
        "another --history, --stream or --policy"
    )


def after(settings: Settings, policy: str, layout: str, tokens: int, seen: int) -> Left:
    """The history after `seen` tokens of a stream of media units of `tokens` tokens each.

    The last unit is cut short, or, under a policy that cuts, left out where it would be.
    """
    units = steady(settings, tokens)
    prefix = next(units)
    bounded, config = make_policy(policy).bounded, settings.config
    run = _simulator(policy, layout, config, len(prefix), tokens, pages_for(seen))
    run.append(prefix)
    while (room := seen - run.history.tokens_seen) > 0:
        if room < tokens and bounded:
            break
        run.append(next(units) if room >= tokens else words(room))
        run.evict()
    return Left(run.history, run.table, policy, layout, config)


def steady(settings: Settings, tokens: int) -> Iterator[Unit]:
    """The prefix of the settings' stream, then media units of `tokens` tokens without end."""
    yield make_shape(settings.stream).system()
    while True:
        yield media(tokens)


def media(tokens: int) -> Unit:
    """A unit of that many tokens: markers, nine tenths picture, the rest sound; or words if few."""
    inner = tokens - 4
    if inner < 2:
        return words(tokens)
    sound = max(inner // 10, 1)
    side = max(int((inner - sound) ** 0.5), 1)
    place = np.arange(inner - sound)
    grid = np.column_stack([np.zeros_like(place), place // side, place % side])
    line = np.repeat(np.arange(sound)[:, None], 3, axis=1)
    builder = UnitBuilder().markers([WORD, WORD])
    builder.content(PICTURE, grid, Modality.IMAGE).content(SOUND, line, Modality.AUDIO).end_step()
    return builder.markers([WORD, WORD]).build(UnitKind.MEDIA)


def words(tokens: int) -> Unit:
    """A unit of that many words."""
    return UnitBuilder().text([WORD] * tokens).build(UnitKind.TEXT)


def pages_for(tokens: int) -> int:
    """Pages that hold so many tokens and the layouts' partly filled pages."""
    return -(-tokens // PAGE_SIZE) + 8


def _simulator(
    policy: str, layout: str, config: RetentionConfig, prefix: int, largest: int, pages: int = 1
) -> Simulator:
    chosen = make_policy(policy)
    if chosen.bounded:
        _, capacity = plan_capacity(config, True, prefix, largest, largest, None)
    else:
        capacity = Capacity(prefix, None, largest, None, max(pages, pages_for(prefix)))
    return Simulator(chosen, make_layout(layout), config, capacity)


def _first(left: Left, cells: int) -> Left:
    """The first cells of a history; the rest gives its slots back."""
    keep = np.arange(len(left.history)) < cells
    table = left.table.copy()
    table.release(left.history.cells["slot"][~keep])
    return replace(left, history=left.history.keep(keep), table=table)
