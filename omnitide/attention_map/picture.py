"""Figure 5 of the paper for a stream: who attends to what, with units and modalities marked.

Rows are queries, columns the tokens that they attend to, both in the order of the stream. The strip
along each side tells what the tokens are; hair lines lie where units begin. Needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from numpy.typing import NDArray

from omnitide.attention_map.classes import AUDIO, BOUNDARY, PREFIX, SOURCE, TEXT
from omnitide.attention_map.patterns import Head
from omnitide.attention_map.report import AttentionReport
from omnitide.attention_map.watch import AttentionWatch
from omnitide.runs import run_starts
from omnitide.simulation.picture import COLOURS, FAINT, INK, NAMES
from omnitide.simulation.result import Content

ABREAST = 3
"""Panels side by side."""

FAINTEST = 1e-4
"""Share of attention that is drawn lightest; what is below looks like nothing."""

MOST_LINES = 80
"""Units whose beginnings are drawn; of longer streams only the strips tell."""

UNIT_LINE: dict[str, Any] = {"color": "#c2410c", "linewidth": 0.3, "alpha": 0.6}

CONTENTS = (Content.BOUNDARY, Content.TEXT, Content.AUDIO, Content.IMAGE)

TITLES = {
    "sinks": "boundaries and sinks {0:.0%}",
    "recent": "own unit and the one before {0:.0%}",
    "modality": "sound {0:.2g} times a picture, token by token",
}


def draw(
    report: AttentionReport, watch: AttentionWatch, chosen: Sequence[tuple[int, int | None]] = ()
) -> Figure:
    """The means, the heads that show a pattern most, and what was chosen.

    Args:
        report: Of the stream.
        watch: What was seen of it.
        chosen: Layers and heads to draw besides; without a head the layer's mean.
    """
    panels = list(_panels(report, watch, chosen))
    rows = -(-len(panels) // ABREAST)
    figure = Figure(figsize=(4.1 * min(len(panels), ABREAST), 0.9 + 4.0 * rows))
    figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    untrained = "" if report.trained else " (untrained, random weights)"
    figure.suptitle(
        f"{report.model}{untrained}: {len(watch.contents):,} tokens, {report.sizes.units:,} units, "
        f"policy {report.policy}",
        x=0.01,
        ha="left",
        fontsize=10,
    )
    every = figure.subplots(rows, min(len(panels), ABREAST), squeeze=False).ravel()
    images = [
        _panel(axes, title, mean, watch) for axes, (title, mean) in zip(every, panels, strict=False)
    ]
    for axes in every[len(panels) :]:
        axes.set_axis_off()
    figure.colorbar(images[0], ax=list(every), shrink=0.6, label="share of a query's attention")
    kinds = [Patch(facecolor=COLOURS[kind], label=NAMES[kind]) for kind in CONTENTS]
    figure.legend(handles=kinds, loc="outside lower left", ncols=len(kinds))
    return figure


def _panels(
    report: AttentionReport, watch: AttentionWatch, chosen: Sequence[tuple[int, int | None]]
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    everything = list(range(len(watch.layers)))
    heads = list(range(report.num_heads))
    yield "mean over layers and heads", watch.grid.mean(everything, heads)
    for found in report.strongest:
        at = watch.layers.index(found.layer)
        yield _title(found), watch.grid.mean([at], [found.head])
    for layer, head in chosen:
        at = watch.layers.index(layer)
        if head is None:
            yield f"layer {layer}, mean over heads", watch.grid.mean([at], heads)
        else:
            yield f"layer {layer}, head {head}", watch.grid.mean([at], [head])


def _title(found: Head) -> str:
    text = TITLES[found.pattern].format(found.value)
    return f"layer {found.layer}, head {found.head}\n{text}"


def _panel(axes: Axes, title: str, mean: NDArray[np.float64], watch: AttentionWatch) -> Any:
    count, size = len(watch.contents), watch.grid.bin
    bins = -(-count // size)
    share = np.ma.masked_invalid(mean[:bins, :bins])
    extent = (0.0, float(bins * size), float(bins * size), 0.0)
    image = axes.imshow(
        np.ma.maximum(share, FAINTEST),
        extent=extent,
        cmap="Greys",
        norm=LogNorm(FAINTEST, 1.0),
        interpolation="nearest",
        aspect="auto",
    )
    axes.set_title(title, fontsize=8.5)
    begins = run_starts(watch.units)[1:]
    if len(begins) <= MOST_LINES:
        for order in begins.tolist():
            axes.plot([order, order, 0], [count, order, order], **UNIT_LINE)
    axes.set_xlim(0, count)
    axes.set_ylim(count, 0)
    _strips(axes, contents_of(watch.contents, size), extent)
    axes.set_xlabel("token attended to")
    axes.set_ylabel("query")
    axes.tick_params(colors=INK, labelsize=7)
    for side in axes.spines.values():
        side.set_visible(True)
        side.set_color(FAINT)
    return image


def contents_of(classes: NDArray[np.uint8], size: int) -> NDArray[np.int64]:
    """What the tokens of each bin are, as the index in `CONTENTS` of the commonest kind.

    Args:
        classes: Of the tokens, shape (num_tokens,).
        size: Tokens of a bin.
    """
    kinds = np.full(len(classes), CONTENTS.index(Content.IMAGE))
    kinds[classes == SOURCE] = CONTENTS.index(Content.IMAGE)
    kinds[classes >= AUDIO] = CONTENTS.index(Content.AUDIO)
    kinds[(classes == TEXT) | (classes == PREFIX)] = CONTENTS.index(Content.TEXT)
    kinds[classes == BOUNDARY] = CONTENTS.index(Content.BOUNDARY)
    counts = np.zeros((-(-len(classes) // size), len(CONTENTS)), np.int64)
    np.add.at(counts, (np.arange(len(classes)) // size, kinds), 1)
    commonest: NDArray[np.int64] = counts.argmax(axis=1)
    return commonest


def _strips(axes: Axes, kinds: NDArray[np.int64], extent: tuple[float, ...]) -> None:
    colours = ListedColormap([COLOURS[kind] for kind in CONTENTS])
    scale: dict[str, Any] = {"cmap": colours, "vmin": -0.5, "vmax": len(CONTENTS) - 0.5}
    width = extent[1]
    top = axes.inset_axes((0.0, 1.0, 1.0, 0.025), sharex=axes)
    top.imshow(kinds[None], extent=(0, width, 0, 1), aspect="auto", **scale)
    side = axes.inset_axes((1.0, 0.0, 0.025, 1.0), sharey=axes)
    side.imshow(kinds[:, None], extent=(0, 1, width, 0), aspect="auto", **scale)
    for strip in (top, side):
        strip.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False, right=False)
        for line in strip.spines.values():
            line.set_visible(False)
