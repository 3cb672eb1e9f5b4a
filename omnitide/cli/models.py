"""`omnitide models`: what is supported, and what a stream costs each known checkpoint."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from fractions import Fraction

from rich.console import Console
from rich.table import Table

from omnitide.capacity import CLOSING, bounded_capacity
from omnitide.cli.report import bytes_in_words
from omnitide.cli.terminal import PlainConsole
from omnitide.config import DEFAULTS, MediaOptions, RetentionConfig, family_retention
from omnitide.errors import ConfigError
from omnitide.media.chunk import SAMPLE_RATE
from omnitide.models.catalog import KnownCheckpoint, known_checkpoints, supported
from omnitide.pages import PAGE_SIZE

ITEMSIZE = 2
"""Bytes of a value of K or V in half precision."""

MINUTE = 60


@dataclass(frozen=True, slots=True)
class Cost:
    """What a stream costs one checkpoint. Bytes are of K and V in half precision.

    Attributes:
        name, parameters: Of the checkpoint.
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
    media = MediaOptions(options.fps, options.chunk_seconds, options.max_pixels)
    for name in ("width", "height", "max_tokens"):
        if getattr(options, name) < 1:
            raise ConfigError(
                f"[models] --{name.replace('_', '-')} must be at least 1, "
                f"got {getattr(options, name)}"
            )
    units = units_of_a_minute(media, sound=not options.no_audio)
    retention = family_retention(DEFAULTS, high_watermark=options.high_watermark)
    costs = [
        cost_of(known, media, options.height, options.width, units, retention, options.max_tokens)
        for known in known_checkpoints()
    ]
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
        f"A stream of {options.width} x {options.height} pixels (at most {options.max_pixels:,} "
        f"are kept), {options.fps:g} fps, {sound}, {options.chunk_seconds:g} s a unit",
        soft_wrap=not console.is_terminal,
    )
    grid = Table.grid(padding=(0, 3))
    grid.add_column(style="dim")
    for _ in costs:
        grid.add_column(justify="right")
    grid.add_row("checkpoint", *(cost.name for cost in costs))
    grid.add_row("parameters", *(f"{cost.parameters:,}" for cost in costs))
    weights = [bytes_in_words(cost.parameters * ITEMSIZE) for cost in costs]
    grid.add_row("weights in half precision", *weights)
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
    console.print(grid)
    console.print(
        f"KV in half precision; bounded at a high watermark of {options.high_watermark:,} tokens.",
        soft_wrap=not console.is_terminal,
    )
