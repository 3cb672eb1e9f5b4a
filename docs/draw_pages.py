"""Draw docs/pages.svg: where the cells of one stream lie under two layouts.

    python docs/draw_pages.py

Runs the core alone, without a model: two-second blocks of a 448x448 film with sound, OmniPick at
the default watermarks, the same history in both layouts.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np

from omnitide.config import RetentionConfig
from omnitide.history import History
from omnitide.layouts import make_layout
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE, PageTable
from omnitide.policies import make_policy
from omnitide.retention import make_plan
from omnitide.units import Modality, Role, Unit, UnitBuilder, UnitKind

UNITS = 60
PAGES = 56
COLUMN, ROW = 15, 2.5
MARGIN, TITLE = 14, 24

# Told apart by lightness too, for print and for the colour-blind.
COLOURS = {
    "boundary": "#1b1b1b",
    "text": "#7b2d8b",
    "sound": "#d98c00",
    "picture": "#8ec6e6",
}


def film_block(index: int) -> Unit:
    """566 tokens: two pairs of frames and two seconds of sound, as Qwen2.5-Omni lays them out."""
    picture = np.indices((2, 16, 16)).reshape(3, -1).T * (25, 1, 1)
    sound = np.repeat(np.arange(50)[:, None], 3, axis=1)
    builder = UnitBuilder().markers([0, 0])
    builder.content(0, picture, Modality.IMAGE).content(0, sound, Modality.AUDIO).end_step()
    return builder.markers([0, 0]).build(UnitKind.MEDIA, 2.0 * index, 2.0)


def words(kind: UnitKind, count: int) -> Unit:
    """A unit of text."""
    return UnitBuilder().text([0] * count).build(kind)


def follow(layout_name: str) -> tuple[History, PageTable]:
    """History and table after the stream."""
    policy, layout = make_policy("omnipick"), make_layout(layout_name)
    config = RetentionConfig()
    history, table = History(), PageTable(PAGES)
    units = [words(UnitKind.SYSTEM, 24)]
    for index in range(UNITS):
        units.append(film_block(index))
        if index % 6 == 5:
            units.append(words(UnitKind.REPLY, 30))
    for unit in units:
        slots = layout.place(table, policy.survivors(unit.cells, config), unit.kind)
        history = history.append(unit, slots)
        if len(history) > config.high_watermark:
            plan = make_plan(policy, history, config)
            table.release(history.cells["slot"][~plan.keep])
            history = history.keep(plan.keep)
    table.check_integrity(history.cells)
    return history, table


def kinds_by_slot(history: History) -> list[str | None]:
    """What lies in each slot of the pool."""
    cells = history.cells
    names = {Modality.TEXT: "text", Modality.AUDIO: "sound", Modality.IMAGE: "picture"}
    slots: list[str | None] = [None] * (PAGES * PAGE_SIZE)
    for slot, modality, role in zip(cells["slot"], cells["modality"], cells["role"], strict=True):
        boundary = role == Role.BOUNDARY
        slots[slot] = "boundary" if boundary else names[Modality(int(modality))]
    return slots


def panel(name: str, top: float) -> list[str]:
    """SVG elements of one layout."""
    history, table = follow(name)
    walked = table.active_subblocks * SUBBLOCK_SIZE
    title = (
        f"{name}: {len(history):,} tokens kept in {table.active_subblocks} tiles of "
        f"{SUBBLOCK_SIZE}, {walked / len(history):.2f} slots walked a token"
    )
    parts = [f'<text x="{MARGIN}" y="{top + 14:g}">{title}</text>']
    top += TITLE
    height = PAGE_SIZE * ROW
    slots = kinds_by_slot(history)
    for page in range(PAGES):
        left = MARGIN + page * COLUMN
        parts.append(
            f'<rect x="{left}" y="{top:g}" width="{COLUMN - 2}" height="{height:g}" '
            'fill="#f3f3f3" stroke="#d0d0d0" stroke-width="0.5"/>'
        )
        rows = slots[page * PAGE_SIZE : (page + 1) * PAGE_SIZE]
        row = 0
        for kind, run in groupby(rows):
            count = len(list(run))
            if kind is not None:
                parts.append(
                    f'<rect x="{left}" y="{top + row * ROW:g}" width="{COLUMN - 2}" '
                    f'height="{count * ROW:g}" fill="{COLOURS[kind]}"/>'
                )
            row += count
    return parts


def main() -> None:
    """Write the picture beside this file."""
    width = 2 * MARGIN + PAGES * COLUMN
    step = TITLE + PAGE_SIZE * ROW + MARGIN
    parts: list[str] = []
    for index, name in enumerate(("native", "predictive")):
        parts += panel(name, MARGIN + index * step)
    foot = MARGIN + 2 * step
    for index, (kind, colour) in enumerate([*COLOURS.items(), ("free", "#f3f3f3")]):
        left = MARGIN + index * 110
        parts.append(
            f'<rect x="{left}" y="{foot:g}" width="12" height="12" fill="{colour}" '
            'stroke="#d0d0d0" stroke-width="0.5"/>'
            f'<text x="{left + 18}" y="{foot + 11:g}">{kind}</text>'
        )
    body = "\n".join(parts)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {foot + 26:g}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#1b1b1b">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )
    Path(__file__).with_name("pages.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
