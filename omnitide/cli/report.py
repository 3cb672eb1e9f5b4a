"""The figures at the end of a run: a table for people, one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from omnitide.cli.terminal import printable
from omnitide.cli.transcript import Transcript
from omnitide.policies import POLICIES
from omnitide.response import SessionStats


def as_json(
    transcript: Transcript,
    stats: SessionStats,
    trained: bool,
    broken: str | None,
    duplex: bool = False,
) -> str:
    """One JSON object in ASCII: `text`, every key of the statistics, `trained` and `broken`.

    Args:
        transcript: Becomes `text`, and `turns` if the model spoke when it decided to.
        stats: Figures at the end.
        trained: Whether the weights are trained.
        broken: Why the stream was not followed to its end, or None.
        duplex: Whether the model spoke when it decided to.
    """
    result = {
        "text": transcript.as_list(),
        **({"turns": [asdict(turn) for turn in transcript.turns]} if duplex else {}),
        **stats.as_dict(),
        "trained": trained,
        "broken": broken,
    }
    return json.dumps(result, indent=2, allow_nan=False)


def table(stats: SessionStats, trained: bool) -> Table:
    """The table that ends a run."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for label, value in _rows(stats, trained):
        grid.add_row(label, Text(printable(value)))
    return grid


def _rows(stats: SessionStats, trained: bool) -> Iterator[tuple[str, str]]:
    yield "model", stats.model if trained else f"{stats.model} (untrained, random weights)"
    yield "backend", stats.backend
    marks = f", watermarks {stats.high_watermark:,} and {stats.low_watermark:,}"
    yield "policy", stats.policy + (marks if POLICIES[stats.policy].bounded else ", never cut")
    yield "units", f"{stats.units:,}"
    yield (
        "tokens",
        f"{stats.tokens_seen:,} seen, {stats.tokens_kept:,} kept, "
        f"capacity {stats.capacity_tokens:,}",
    )
    yield "evictions", f"{stats.evictions:,}, {stats.rows_moved:,} rows moved"
    if stats.tile_cost_us is not None and stats.row_cost_us is not None:
        yield (
            "moves judged at",
            f"{stats.tile_cost_us:.3g} us a subblock, {stats.row_cost_us:.3g} us a row",
        )
    yield (
        "pages",
        f"{stats.active_pages:,} active, {stats.active_subblocks:,} subblocks, "
        f"span {stats.physical_span:,} slots",
    )
    yield "KV memory", _memory(stats)
    yield "update", f"{stats.update_ms_p50:,.1f} ms median, {stats.update_ms_p95:,.1f} ms p95"
    if stats.decode_tokens_per_s:
        yield "decoding", f"{stats.decode_tokens_per_s:,.1f} tokens/s"
    yield "peak memory", bytes_in_words(stats.peak_memory_bytes)


def _memory(stats: SessionStats) -> str:
    held, full = stats.physical_kv_bytes, stats.full_kv_bytes
    text = f"{bytes_in_words(held)} of pools, {bytes_in_words(full)} for the full history"
    return f"{text} ({full / held:.1f} times)" if full > held > 0 else text


def bytes_in_words(count: float) -> str:
    """Bytes in the largest binary unit that leaves at least one, with three digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} TiB"
