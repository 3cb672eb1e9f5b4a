"""A benchmark's report as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from omnitide.bench.report import Report, Row
from omnitide.cli.report import bytes_in_words

Column = tuple[str, str, str]
"""Title, field of the row, format."""

_CASE: tuple[Column, ...] = (("", "who", "s"), ("policy", "policy", "s"), ("layout", "layout", "s"))
_US: tuple[Column, ...] = (
    ("us", "us", ",.1f"),
    ("p10", "us_p10", ",.1f"),
    ("p90", "us_p90", ",.1f"),
    ("floor", "floor_us", ",.1f"),
    ("ratio", "ratio", ",.2f"),
)
_MS: tuple[Column, ...] = tuple(
    (t.replace("us", "ms"), f.replace("us", "ms"), ",.2f") for t, f, _ in _US
)

COLUMNS: dict[str, tuple[Column, ...]] = {
    "attention": (
        ("", "who", "s"),
        ("live", "live", "s"),
        ("policy", "policy", "s"),
        ("layout", "layout", "s"),
        ("queries", "queries", ",d"),
        ("cells", "history", ",d"),
        ("tiles", "tiles", ",d"),
        *_US,
        ("GB/s", "gb_per_s", ",.3g"),
        ("TFLOP/s", "tflops_per_s", ".3g"),
    ),
    "migrate": (
        ("", "who", "s"),
        ("rows", "rows", ",d"),
        ("layers", "layers", ",d"),
        *_US,
        ("GB/s", "gb_per_s", ",.3g"),
        ("of copy", "share_of_copy", ".0%"),
        ("us a row", "us_per_row", ",.3f"),
    ),
    "decode": (
        *_CASE,
        ("cells", "history", ",d"),
        ("layers", "layers", ",d"),
        *_MS,
        ("tokens/s", "tokens_per_s", ",.1f"),
    ),
    "update": (
        *_CASE,
        ("tokens", "tokens", ",d"),
        ("after", "history", ",d"),
        ("live", "live", ",.0f"),
        *_MS,
        ("cuts", "evictions", ",d"),
        ("moved", "rows_moved", ",d"),
    ),
    "session": (
        *_CASE,
        ("first ms", "first_ms", ",.2f"),
        ("last ms", "last_ms", ",.2f"),
        ("last/first", "last_to_first", ",.3f"),
        ("token ms", "decode_ms", ",.2f"),
        ("all s", "total_s", ",.2f"),
        ("first memory", "first_memory", "B"),
        ("last memory", "last_memory", "B"),
        ("pools", "pool_bytes", "B"),
        ("kept", "tokens_kept", ",d"),
        ("seen", "tokens_seen", ",d"),
        ("cuts", "evictions", ",d"),
        ("moved", "rows_moved", ",d"),
    ),
}

SPLIT: tuple[Column, ...] = (
    ("mean", "mean_ms", ",.2f"),
    ("attention", "attention_ms", ",.2f"),
    ("matrix", "matrix_ms", ",.2f"),
    ("migration", "migration_ms", ",.2f"),
    ("rest", "rest_ms", ",.2f"),
)


def lines(report: Report) -> Iterator[str]:
    """The machine, the table and the notes."""
    machine, ceilings, text = report.machine, report.ceilings, report.shape.text
    yield f"{machine.backend} on {machine.device}, {machine.dtype}"
    if machine.clocks is not None:
        yield machine.clocks
    yield ", ".join(f"{name} {number}" for name, number in machine.versions.items())
    yield (
        f"at best {ceilings.copy_bytes_per_s / 1e9:,.1f} GB/s copied (read and written), "
        f"{ceilings.flops_per_s / 1e12:,.3g} TFLOP/s in matrix products"
    )
    yield (
        f"{report.shape.name}: {text.num_layers} layers, {text.num_heads} heads, "
        f"{text.num_kv_heads} KV heads of {text.head_dim}"
        + (f", {report.settings.packed}" if report.settings.packed else "")
    )
    yield ""
    columns = COLUMNS[report.bench]
    if report.settings.split and report.bench == "update":
        columns += SPLIT
    yield from _table(columns, report.rows)
    for note in report.notes:
        yield f"note: {note}"


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> Iterator[str]:
    cells = [[title for title, _, _ in columns]]
    cells += [[_cell(row.get(field), kind) for _, field, kind in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    words = [kind == "s" for _, _, kind in columns]
    for line in cells:
        padded = (
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, words, strict=True)
        )
        yield "  ".join(padded).rstrip()


def _cell(value: Any, kind: str) -> str:
    if value is None or value == "":
        return "-"
    return bytes_in_words(value) if kind == "B" else format(value, kind)
