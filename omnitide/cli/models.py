"""`omnitide models`: what is supported, and what a stream costs each known checkpoint."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction

from rich.console import Console
from rich.table import Table

from omnitide.capacity import CLOSING, bounded_capacity
from omnitide.cli.console import PlainConsole
from omnitide.cli.report import bytes_in_words
from omnitide.config import MediaOptions, RetentionConfig, family_retention
from omnitide.errors import ConfigError
from omnitide.media.chunk import SAMPLE_RATE
from omnitide.models.catalog import KnownCheckpoint, known_checkpoints, supported
from omnitide.pages import PAGE_SIZE

ITEMSIZE = 2
"""Bytes of a value of K or V in half precision."""

MINUTE = 60

LABELS, COLUMN = 26, 24
"""Characters of the labels of the table, and of a column of figures."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a stream costs one checkpoint. Bytes are of K and V in half precision.

    Attributes:
        name, parameters: Of the checkpoint.
        fps, seconds_per_unit: How the stream is cut for it.
        tokens_per_unit: Of the largest unit.
        tokens_per_minute: Rounded.
        kv_bytes_per_token: In all layers.
        kv_bytes_per_minute: By which a history grows that nothing is dropped from.
        kv_bytes_per_hour: The same, of an hour.
        bounded_tokens: Most tokens of a bounded history at any time.
        bounded_kv_bytes: Of its pools, which never grow.
    """

    name: str
    parameters: int
    fps: float
    seconds_per_unit: float
    tokens_per_unit: int
    tokens_per_minute: int
    kv_bytes_per_token: int
    kv_bytes_per_minute: int
    kv_bytes_per_hour: int
    bounded_tokens: int
    bounded_kv_bytes: int


def models(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit code.

    Raises:
        ConfigError: A number out of range.
        MediaError: A picture whose sides are too unequal.
    """
    given = (options.fps, options.chunk_seconds, options.max_pixels)
    for name in ("width", "height", "max_tokens"):
        if getattr(options, name) < 1:
            raise ConfigError(
                f"[models] --{name.replace('_', '-')} must be at least 1, "
                f"got {getattr(options, name)}"
            )
    costs = []
    for known in known_checkpoints():
        media = known.defaults.media(*given)
        units = units_of_a_minute(media, sound=not options.no_audio)
        retention = family_retention(known.defaults, high_watermark=options.high_watermark)
        size = options.height, options.width
        costs.append(cost_of(known, media, *size, units, retention, options.max_tokens))
    if options.json:
        result = {"families": supported(), "checkpoints": [asdict(cost) for cost in costs]}
        print(json.dumps(result, indent=2))
    else:
        _show(PlainConsole(stderr=False), options, costs)
    return 0


def units_of_a_minute(media: MediaOptions, sound: bool) -> list[tuple[int, int]]:
    """Frames and samples of each unit that starts in the first minute, cut as the reader does."""
    length = Fraction(media.chunk_seconds).limit_denominator(1_000_000)
    fps = Fraction(media.fps).limit_denominator(1_000_000)
    units = []
    for number in range(math.ceil(MINUTE / length)):
        start, stop = number * length, (number + 1) * length
        frames = math.ceil(stop * fps) - math.ceil(start * fps)
        samples = round(stop * SAMPLE_RATE) - round(start * SAMPLE_RATE)
        units.append((frames, samples if sound else 0))
    return units


def cost_of(
    known: KnownCheckpoint,
    media: MediaOptions,
    height: int,
    width: int,
    units: list[tuple[int, int]],
    retention: RetentionConfig,
    max_tokens: int,
) -> Cost:
    """The cost of a stream.

    Args:
        known: The checkpoint.
        media: Pixel limit and length of a unit.
        height, width: Pixels of the film.
        units: Frames and samples of each.
        retention: Watermarks.
        max_tokens: Longest reply.
    """
    counts = [known.media_tokens(media, n, height, width, samples) for n, samples in units]
    minute = round(sum(counts) / (len(units) * media.chunk_seconds) * MINUTE)
    token = known.spec.kv_bytes_per_token(ITEMSIZE)
    bound = bounded_capacity(retention, 0, max(counts), max_tokens + CLOSING)
    return Cost(
        name=known.spec.name,
        parameters=known.parameters,
        fps=media.fps,
        seconds_per_unit=media.chunk_seconds,
        tokens_per_unit=max(counts),
        tokens_per_minute=minute,
        kv_bytes_per_token=token,
        kv_bytes_per_minute=minute * token,
        kv_bytes_per_hour=minute * token * 60,
        bounded_tokens=bound.tokens or 0,
        bounded_kv_bytes=bound.pages * PAGE_SIZE * token,
    )


def _show(console: Console, options: argparse.Namespace, costs: list[Cost]) -> None:
    console.print("Families")
    for name, words in supported().items():
        console.print(f"  {name}  {words}", soft_wrap=not console.is_terminal)
    sound = "no sound" if options.no_audio else "sound"
    console.print()
    console.print(
        f"A stream of {options.width} x {options.height} pixels, {sound}",
        soft_wrap=not console.is_terminal,
    )
    abreast = max((console.width - LABELS) // COLUMN, 1)
    for first in range(0, len(costs), abreast):
        if first:
            console.print()
        console.print(_grid(costs[first : first + abreast]))
    console.print(
        f"KV in half precision; bounded at a high watermark of {options.high_watermark:,} tokens.",
        soft_wrap=not console.is_terminal,
    )


def _grid(costs: Sequence[Cost]) -> Table:
    """A column for each checkpoint."""
    grid = Table.grid(padding=(0, 3))
    grid.add_column(style="dim")
    for _ in costs:
        grid.add_column(justify="right")
    grid.add_row("checkpoint", *(cost.name for cost in costs))
    grid.add_row("parameters", *(f"{cost.parameters:,}" for cost in costs))
    weights = [bytes_in_words(cost.parameters * ITEMSIZE) for cost in costs]
    grid.add_row("weights in half precision", *weights)
    grid.add_row("frames a second", *(f"{cost.fps:g}" for cost in costs))
    grid.add_row("seconds a unit", *(f"{cost.seconds_per_unit:g}" for cost in costs))
    grid.add_row("tokens a unit", *(f"{cost.tokens_per_unit:,}" for cost in costs))
    grid.add_row("tokens a minute", *(f"{cost.tokens_per_minute:,}" for cost in costs))
    rows = {
        "KV a token": "kv_bytes_per_token",
        "KV a minute, unbounded": "kv_bytes_per_minute",
        "KV an hour, unbounded": "kv_bytes_per_hour",
        "KV at any time, bounded": "bounded_kv_bytes",
    }
    for label, field in rows.items():
        grid.add_row(label, *(bytes_in_words(getattr(cost, field)) for cost in costs))
    return grid
