"""The goals of the layouts: predictive placement on 400 units of every shape of stream.

Slots of active subblocks for each live cell at most 1.04; rows moved at most 0.5 % of what eager
packing would move; pages at most those of the fullest history and six; none leaked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from omnitide.capacity import bounded_capacity
from omnitide.config import RetentionConfig
from omnitide.history import History
from omnitide.layouts import make_layout
from omnitide.migration import rounds
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE, PageTable
from omnitide.policies import make_policy
from omnitide.retention import foresee, make_plan
from omnitide.units import Modality, Role, Unit, UnitBuilder, UnitKind

COUNT = 400
REPLY = 116
Rng = np.random.Generator


def line(count: int) -> np.ndarray:
    """Offsets of cells that take a position each."""
    return np.repeat(np.arange(count)[:, None], 3, axis=1)


def system() -> Unit:
    """MiniCPM-o's prefix, a voice of six seconds in it."""
    builder = UnitBuilder().text([1, 2, 3], Role.BOUNDARY).text(np.arange(5))
    builder.text([4], Role.BOUNDARY).content(3, line(60), Modality.AUDIO).end_step()
    return builder.text([5, 6], Role.BOUNDARY).build(UnitKind.SYSTEM)


def second(slices: int = 0, words: int = 0, picture: bool = True) -> Unit:
    """MiniCPM-o: one second."""
    builder = UnitBuilder().text([1], Role.BOUNDARY)
    if picture:
        role = Role.SOURCE_IMAGE if slices else Role.CONTENT
        builder.text([2], Role.BOUNDARY)
        builder.content(3, line(64), Modality.IMAGE, role).end_step().text([4], Role.BOUNDARY)
    for _ in range(slices):
        builder.text([5], Role.BOUNDARY)
        builder.content(3, line(64), Modality.IMAGE, Role.SLICE).end_step()
        builder.text([6], Role.BOUNDARY)
    builder.content(7, line(10), Modality.AUDIO).end_step().text([8], Role.BOUNDARY)
    if words:
        builder.text(np.arange(words)).text([9], Role.BOUNDARY)
    return builder.text([10], Role.BOUNDARY).build(UnitKind.MEDIA)


def block(side: int) -> Unit:
    """Qwen2.5-Omni: two seconds of square film with sound; 0 is sound alone."""
    builder = UnitBuilder().markers([1, 2])
    rows = side // 28
    pictures = [(t, r, c) for t in (0, 25) for r in range(rows) for c in range(rows)]
    if pictures:
        builder.content(3, pictures, Modality.IMAGE, advances=False)
    builder.content(4, line(50), Modality.AUDIO).end_step()
    return builder.markers([5, 6]).build(UnitKind.MEDIA)


def words(kind: UnitKind, count: int) -> Unit:
    """Text and the markers of a turn."""
    return UnitBuilder().text(np.arange(count)).text([1] * 5, Role.BOUNDARY).build(kind)


def asked(rng: Rng, longest_question: int, longest_reply: int) -> Iterator[Unit]:
    yield words(UnitKind.PROMPT, int(rng.integers(5, longest_question)))
    yield words(UnitKind.REPLY, int(rng.integers(10, longest_reply)))


def duplex(rng: Rng, slices: int = 0) -> Iterator[Unit]:
    """Listening, and some seconds of speaking now and then."""
    left = 0
    while True:
        if left == 0 and rng.random() < 0.08:
            left = int(rng.integers(2, 9))
        yield second(slices, (18 if left > 1 else 9) if left else 0)
        left = max(left - 1, 0)


def film(rng: Rng, side: int) -> Iterator[Unit]:
    """Blocks, and questions now and then."""
    while True:
        yield block(side)
        if rng.random() < 0.15:
            yield from asked(rng, 30, 90)


def dialogue(rng: Rng) -> Iterator[Unit]:
    while True:
        yield from asked(rng, 200, 400)


def silence(rng: Rng) -> Iterator[Unit]:
    while True:
        yield second(picture=False)


def mix(rng: Rng) -> Iterator[Unit]:
    while True:
        kind = int(rng.integers(6))
        if kind < 3:
            yield block(28 * int(rng.integers(4, 25)) if kind else 0)
        elif kind == 3:
            yield second(int(rng.integers(0, 10)), int(rng.integers(0, 19)))
        elif kind == 4:
            yield words(UnitKind.TEXT, int(rng.integers(1, 60)))
        else:
            yield from asked(rng, 80, 150)


SHAPES: dict[str, Callable[[Rng], Iterator[Unit]]] = {
    "duplex": duplex,
    "slices": lambda rng: duplex(rng, 9),
    "qwen-448": lambda rng: film(rng, 448),
    "qwen-1344": lambda rng: film(rng, 1344),
    "audio": lambda rng: film(rng, 0),
    "dialogue": dialogue,
    "silence": silence,
    "mix": mix,
}


@pytest.mark.parametrize("marks", [(2500, 1800), (5000, 3500), (9000, 7000)])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_goals(shape: str, marks: tuple[int, int]) -> None:
    config, policy, layout = (
        RetentionConfig(*marks),
        make_policy("omnipick"),
        make_layout("predictive"),
    )
    stream = SHAPES[shape](np.random.default_rng(0))
    units = [system(), *(next(stream) for _ in range(COUNT))]
    largest = max(len(unit) for unit in units)
    capacity = bounded_capacity(config, len(units[0]), largest, REPLY)
    table, history = PageTable(capacity.pages), History()
    live = walked = moved = eager = evictions = peak = longest = 0
    for unit in units:
        fates = foresee(policy, unit, history, config)
        history = history.append(unit, layout.place(table, fates, unit.kind))
        peak, longest = max(peak, table.active_pages), max(longest, len(history))
        if len(history) > config.high_watermark:
            plan = make_plan(policy, history, config)
            evictions += plan.num_deleted > 0
            table.release(history.cells["slot"][~plan.keep])
            history = plan.apply(history)
            slots = np.flatnonzero(table.live)
            eager += int(np.count_nonzero(slots != np.arange(len(slots))))
            moves = layout.plan(table, history)
            if moves is not None:
                for source, destination in rounds(moves, table):
                    table.move(source, destination)
                    history = history.move(source, destination)
                moved += moves.rows_moved
            layout.settle(table, history)
        live += len(history)
        walked += table.active_subblocks * SUBBLOCK_SIZE
    table.check_integrity(history.cells)  # no page leaked

    assert walked / live <= 1.04
    assert moved <= 0.005 * eager
    assert evictions > 0 or shape == "silence"
    assert capacity.rest is not None
    assert peak <= -(-(capacity.rest + largest) // PAGE_SIZE) + 6
    assert capacity.tokens is not None
    assert longest <= capacity.tokens - REPLY
