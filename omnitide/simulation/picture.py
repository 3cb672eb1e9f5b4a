"""Pictures of simulations: page maps, kept tokens and span over time. Needs matplotlib.

Contents are told apart by lightness first and by hue second, areas by hatching too, lines by their
dashes: what is drawn reads the same in black-and-white print and for the colour-blind.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.errors import ConfigError
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE, PageClass
from omnitide.simulation.result import Content, PageMap, SimulationResult, Timeline
from omnitide.whole_file import WholeFile

try:
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
except ImportError as missing:
    raise ConfigError(
        "[plot] pictures need matplotlib; pip install 'omnitide[plot]' or matplotlib"
    ) from missing

SUFFIXES = (".png", ".svg")

INK, FAINT, PAPER = "#222222", "#8a8a8a", "#ffffff"

COLOURS = {
    Content.BOUNDARY: "#111111",
    Content.TEXT: "#6a2c91",
    Content.AUDIO: "#d1850a",
    Content.IMAGE: "#a9d8f2",
}
"""Lightness (L* of CIELAB) about 5, 30, 61 and 84."""

NAMES = {
    Content.BOUNDARY: "boundary",
    Content.TEXT: "text",
    Content.AUDIO: "sound",
    Content.IMAGE: "picture",
}

HATCHES = {Content.BOUNDARY: "", Content.TEXT: "////", Content.AUDIO: "....", Content.IMAGE: ""}

HOLE, HOLE_LINE = "#f4f1ea", "#cfc8b8"

CLASSES: dict[PageClass, tuple[str, Any]] = {
    PageClass.MUST_KEEP: ("must-keep page", "full"),
    PageClass.SELECTED_HISTORY: ("selected history", "bottom"),
    PageClass.RECENT_CONTEXT: ("recent context", "none"),
}
"""Name of a class, and how much of its mark is filled: above a page, and in the legend."""

SPAN: dict[str, Any] = {"color": "#111111", "linewidth": 1.2, "linestyle": (0, (5, 1.5))}
WALKED: dict[str, Any] = {"color": "#c2410c", "linewidth": 0.9}
USEFUL = "#d9d9d9"

ABREAST = 4
"""Simulations side by side in one row of a picture."""

ALIKE = 3
"""Spans up to so many times the shortest share a scale."""

BANDS = 8
"""Evictions shown in a page map; from longer streams that many are taken, evenly."""

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.6,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "svg.hashsalt": "omnitide",
    "svg.fonttype": "path",
}


class Picture:
    """A file to draw to, checked before the work that is drawn is done. Use it as a context."""

    def __init__(self, path: str | Path) -> None:
        """Check the name.

        Raises:
            ConfigError: A suffix that is not drawn, or a place that can't be written.
        """
        self.path = Path(path)
        if self.path.suffix.lower() not in SUFFIXES:
            raise ConfigError(
                f"[plot] the name must end in {' or '.join(SUFFIXES)}, got {self.path.name!r}"
            )
        self._file = WholeFile(self.path, "plot", ConfigError)

    def save(self, results: Sequence[SimulationResult], timelines: Sequence[Timeline]) -> None:
        """Draw simulations of one stream: one in full, several side by side.

        Raises:
            ConfigError: The file can't be written.
        """
        self.write(lambda: overview(results, timelines))

    def write(self, draw: Callable[[], Figure]) -> None:
        """Write what `draw` draws in the pictures' common style.

        Raises:
            ConfigError: The file can't be written.
        """
        with rc_context(STYLE):
            figure = draw()
            buffer = io.BytesIO()
            kind = self.path.suffix.lower()[1:]
            date = {"Date": None} if kind == "svg" else {"Software": None}
            figure.savefig(buffer, format=kind, dpi=160, metadata=date, facecolor=PAPER)
        self._file.write(buffer.getvalue())
        self._file.appear()

    def __enter__(self) -> Picture:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.__exit__(kind, error, traceback)


def overview(results: Sequence[SimulationResult], timelines: Sequence[Timeline]) -> Figure:
    """All three pictures of each simulation: page map, kept tokens, span against useful cells.

    Up to `ABREAST` stand side by side, more in rows. They share their scales, but for those whose
    span is so much longer that the others could not be read beside it.
    """
    columns = min(len(results), ABREAST)
    rows = -(-len(results) // columns)
    figure = Figure(
        figsize=(max(8.0, 4.2 * columns), 0.6 + 8.0 * rows),
        layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.08),
    )
    figure.suptitle(_headline(results), x=0.01, ha="left", fontsize=11, fontweight="bold")
    grid = figure.add_gridspec(3 * rows, columns, height_ratios=[3.4, 1.25, 1.25] * rows)
    longest = [max(t.span) for t in timelines]
    shared = max(span for span in longest if span <= ALIKE * min(longest))
    for place, (result, timeline, span) in enumerate(zip(results, timelines, longest, strict=True)):
        row, column = divmod(place, columns)
        axes = [figure.add_subplot(grid[3 * row + part, column]) for part in range(3)]
        most = max(span, shared)
        draw_page_map(axes[0], timeline, most // PAGE_SIZE)
        walked = f"{result.active_subblock_ratio:.2f} slots walked a cell"
        axes[0].set_title(f"{result.policy}, {result.layout}: {walked}")
        draw_kept(axes[1], result, timeline)
        draw_span(axes[2], timeline, most)
    figure.legend(
        handles=_legend(),
        loc="outside lower left",
        ncols=6 if columns < 3 else 11,
        handlelength=1.4,
        columnspacing=1.4,
    )
    return figure


def _headline(results: Sequence[SimulationResult]) -> str:
    first = results[0]
    text = f"{_plain(first.shape)}: {first.units:,} units, {first.tokens_seen:,} tokens"
    for result in results:
        if result.high_watermark is not None:
            return f"{text}, watermarks {result.high_watermark:,} / {result.low_watermark:,}"
    return text


def sum_kept(timeline: Timeline) -> NDArray[np.int64]:
    """Live cells after each unit, shape (num_units,)."""
    total: NDArray[np.int64] = np.stack(timeline.kept).sum(axis=1)
    return total


def draw_page_map(axes: Any, timeline: Timeline, pages: int) -> None:
    """One band an eviction: each column a page, each line of it a slot, holes hatched."""
    chosen = _spread(timeline.maps, BANDS)
    if not chosen:
        axes.text(0.5, 0.5, "nothing was evicted", transform=axes.transAxes, ha="center")
        axes.set_axis_off()
        return
    wide = PAGE_WIDTH + PAGE_GAP
    band = BAND_HEIGHT + BAND_GAP
    image = np.ones((len(chosen) * band - BAND_GAP, pages * wide - PAGE_GAP, 3), np.float32)
    for row, page_map in enumerate(chosen):
        for page in range(len(page_map.classes)):
            if page_map.classes[page] != PageClass.FREE:
                place = image[row * band : row * band + BAND_HEIGHT, page * wide :]
                place[:, :PAGE_WIDTH] = _page(page_map, page)
    axes.imshow(image, aspect="auto", interpolation="none")
    axes.spines[:].set_visible(False)
    axes.set_yticks(
        [row * band + BAND_HEIGHT / 2 for row in range(len(chosen))],
        [f"unit {m.unit:,}" for m in chosen],
    )
    axes.tick_params(left=False)
    step = next(s for s in (5, 10, 20, 50, 100, 1000) if pages / s < 12 or s == 1000)
    ticks = range(0, pages, step)
    axes.set_xticks([page * wide + PAGE_WIDTH / 2 for page in ticks], [str(p) for p in ticks])
    axes.set_xlabel("page")


PAGE_WIDTH, PAGE_GAP = 9, 2
STRIP, STRIP_GAP = 7, 2
BAND_HEIGHT = PAGE_SIZE + STRIP + STRIP_GAP
BAND_GAP = 16


def _page(page_map: PageMap, page: int) -> NDArray[np.float32]:
    """Pixels of a page: a strip for its class, then a line for each slot."""
    pixels = np.ones((BAND_HEIGHT, PAGE_WIDTH, 3), np.float32)
    pixels[:STRIP] = _strip(PageClass(int(page_map.classes[page])))
    slots = pixels[STRIP + STRIP_GAP :]
    slots[:] = _rgb(HOLE)
    rows, columns = np.indices((PAGE_SIZE, PAGE_WIDTH))
    slots[(rows + columns) % 5 == 0] = _rgb(HOLE_LINE)
    for content, colour in COLOURS.items():
        slots[page_map.contents[page] == content] = _rgb(colour)
    return pixels


def _strip(page_class: PageClass) -> NDArray[np.float32]:
    """The mark of a class, shape (STRIP, PAGE_WIDTH, 3); a line for a page of no class."""
    strip = np.ones((STRIP, PAGE_WIDTH, 3), np.float32)
    ink = _rgb(INK)
    _, fill = CLASSES.get(page_class, ("", None))
    if fill == "full":
        strip[:] = ink
    elif fill == "bottom":
        strip[STRIP // 2 :] = ink
    elif fill == "none":
        strip[[0, -1]] = ink
        strip[:, [0, -1]] = ink
    else:
        strip[-1] = ink
    return strip


def draw_kept(axes: Any, result: SimulationResult, timeline: Timeline) -> None:
    """Kept tokens by content over time, stacked, with both watermarks, if anything is cut."""
    kept = np.stack(timeline.kept)
    units = np.arange(len(kept))
    order = (Content.BOUNDARY, Content.TEXT, Content.AUDIO, Content.IMAGE)
    axes.stackplot(
        units,
        *(kept[:, content] for content in order),
        colors=[COLOURS[content] for content in order],
        hatch=[HATCHES[content] for content in order],
        edgecolor=PAPER,
        linewidth=0.3,
    )
    marks = {"high": result.high_watermark, "low": result.low_watermark}
    for name, level in marks.items():
        if level is None:
            continue
        axes.axhline(level, color=INK, linewidth=0.7, linestyle=(0, (4, 2)))
        axes.annotate(
            name,
            (1, level),
            xycoords=("axes fraction", "data"),
            xytext=(2, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    axes.set_xlim(0, max(len(kept) - 1, 1))
    axes.set_ylim(0, max(result.high_watermark or 0, int(kept.sum(axis=1).max())) * 1.08)
    axes.set_ylabel("tokens kept")


def draw_span(axes: Any, timeline: Timeline, most: int) -> None:
    """Physical span against the cells that are useful."""
    live, span = sum_kept(timeline), np.array(timeline.span)
    walked = np.array(timeline.subblocks) * SUBBLOCK_SIZE
    units = np.arange(len(live))
    axes.fill_between(units, live, step="post", color=USEFUL, linewidth=0)
    axes.step(units, walked, where="post", **WALKED)
    axes.step(units, span, where="post", **SPAN)
    axes.set_xlim(0, max(len(live) - 1, 1))
    axes.set_ylim(0, most * 1.08)
    axes.set_xlabel("unit")
    axes.set_ylabel("slots")


def _legend() -> list[Any]:
    handles: list[Any] = [
        Patch(facecolor=COLOURS[c], edgecolor=PAPER, hatch=HATCHES[c], label=NAMES[c])
        for c in COLOURS
    ]
    handles.append(Patch(facecolor=HOLE, edgecolor=HOLE_LINE, hatch="/////", label="hole"))
    handles += [
        Line2D([], [], linestyle="", marker="s", color=INK, fillstyle=fill, label=name)
        for name, fill in CLASSES.values()
    ]
    handles += [
        Line2D([], [], label="physical span", **SPAN),
        Line2D([], [], label="active subblocks", **WALKED),
        Patch(facecolor=USEFUL, label="useful cells"),
    ]
    return handles


def _spread(maps: Sequence[PageMap], count: int) -> list[PageMap]:
    """At most `count` of the maps, evenly, the last one among them."""
    if len(maps) <= count:
        return list(maps)
    chosen = np.linspace(0, len(maps) - 1, count).round().astype(int)
    return [maps[i] for i in chosen]


def _rgb(colour: str) -> NDArray[np.float32]:
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)], np.float32)


def _plain(name: str) -> str:
    """A name that matplotlib takes for text: no mathematics, nothing unprintable."""
    return "".join(c if c.isprintable() else "?" for c in name).replace("$", r"\$")
