"""An attention map's numbers as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omnitide.attention_map.report import MODALITIES, AttentionReport, Row, Share

RANKS_SHOWN = 16
"""First tokens of a span that are listed; JSON has all."""

PATTERNS = {
    "sinks": "boundaries and sinks of other units",
    "recent": "own unit and the one before",
    "modality": "sound against pictures, a token",
}


def lines(report: AttentionReport) -> Iterator[str]:
    """All tables."""
    sizes = report.sizes
    trained = "" if report.trained else " (untrained, random weights: the numbers mean nothing)"
    yield f"{report.model}{trained}, policy {report.policy}"
    yield (
        f"{sizes.prefix:,} tokens of system prefix, {sizes.tokens:,} in {sizes.units:,} units; "
        f"{report.queries:,} queries in {len(report.layers)} layers of {report.num_heads} heads"
    )
    yield ""
    yield "Where attention goes, mean over layers and heads"
    yield from _aligned(
        [["", "share", "even", "times"], *(_where(share) for share in report.where)]
    )
    yield ""
    yield "By distance, the system prefix apart"
    yield from _aligned(
        [
            ["units back", "share", "even", "times", *(f"{name} x" for name in MODALITIES)],
            *(
                [
                    _back(row.back),
                    f"{row.all.share:.1%}",
                    f"{row.all.even:.1%}",
                    _times(row.all.times),
                    *(_times(part.times) for part in row.parts),
                ]
                for row in report.distances
            ),
        ]
    )
    yield ""
    yield "First tokens of a span in other units, times even attention"
    yield from _aligned(
        [
            ["", *map(str, range(1, RANKS_SHOWN + 1)), "..."],
            ["picture", *_ranks(report.image_ranks)],
            ["sound", *_ranks(report.audio_ranks)],
        ]
    )
    yield ""
    yield "By layer, mean over its heads"
    yield from _aligned([_HEADER, *(_row(row) for row in report.layers)])
    yield ""
    yield "Heads that show a pattern most"
    yield from _aligned(
        [
            ["", "layer", "head", ""],
            *(
                [PATTERNS[h.pattern], str(h.layer), str(h.head), _value(h.pattern, h.value)]
                for h in report.strongest
            ),
        ]
    )
    yield ""
    yield "Suggested for OmniPick"
    for found in report.suggestions:
        value = "-" if found.value is None else f"{found.value}"
        yield f"{found.option} {value}: {found.why}"


_HEADER = ["layer", "sinks", "recent", "prefix", *MODALITIES, "sound / picture"]


def _row(row: Row) -> list[str]:
    shares = (row.sinks, row.recent, row.prefix, row.boundary, row.text, row.picture, row.sound)
    return [str(row.layer), *(f"{share:.1%}" for share in shares), _times(row.asymmetry)]


def _where(share: Share) -> list[str]:
    return [share.name, f"{share.share:.1%}", f"{share.even:.1%}", _times(share.times)]


def _value(pattern: str, value: float) -> str:
    return f"{value:.3g} times" if pattern == "modality" else f"{value:.1%}"


def _ranks(values: Sequence[float | None]) -> list[str]:
    return [_times(value) for value in (*values[:RANKS_SHOWN], values[-1])]


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _back(units: tuple[int, int]) -> str:
    first, last = units
    if first == last:
        return "own" if first == 0 else str(first)
    return f"{first}-{last}" if first < 64 else "64 and more"


def _aligned(rows: list[list[str]]) -> Iterator[str]:
    """Columns as wide as they must be: words on the left, numbers on the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        first, *rest = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([first, *rest]).rstrip()
