"""Random streams for the core tests, each drawn as a plain sketch.

A sketch is turned into a `Unit` by `UnitBuilder` (`build`), and into plain `Token`s by code of its
own (`tokens`), so that the slow oracles of the tests never read what the core wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from omnitide.config import RetentionConfig
from omnitide.history import History
from omnitide.layouts import Layout
from omnitide.migration import MigrationPlan
from omnitide.pages import PageTable
from omnitide.retention import RetentionPlan, RetentionPolicy, make_plan
from omnitide.units import Modality, Role, Unit, UnitBuilder, UnitKind

Offset = tuple[int, int, int]


@dataclass(frozen=True)
class Part:
    """Picture or sound cells of one span in a block."""

    modality: Modality
    role: Role
    offsets: tuple[Offset, ...]
    advances: bool = True


@dataclass(frozen=True)
class Piece:
    """One step or a run of text: `text` counts tokens, `markers` share a position, or `parts`."""

    text: int = 0
    markers: int = 0
    parts: tuple[Part, ...] = ()
    role: Role = Role.CONTENT


@dataclass(frozen=True)
class Sketch:
    """A unit as plain data."""

    kind: UnitKind
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Token:
    """The plain twin of one cell."""

    unit: int
    span: int
    step: int
    modality: Modality
    role: Role
    offset: Offset
    advances: bool


def build(sketch: Sketch) -> Unit:
    """The sketch as a unit of the core."""
    builder = UnitBuilder()
    for piece in sketch.pieces:
        if piece.text:
            builder.text(np.arange(piece.text), piece.role)
        elif piece.markers:
            builder.markers(np.arange(piece.markers))
        else:
            for part in piece.parts:
                builder.content(7, part.offsets, part.modality, part.role, part.advances)
            builder.end_step()
    return builder.build(sketch.kind)


def tokens(sketch: Sketch, unit: int = 0) -> list[Token]:
    """The sketch as plain tokens; `unit` is the id that the history will give it."""
    out: list[Token] = []
    span = step = 0
    zero = (0, 0, 0)
    for piece in sketch.pieces:
        if piece.text:
            for _ in range(piece.text):
                out.append(Token(unit, span, step, Modality.TEXT, piece.role, zero, True))
                step += 1
            span += 1
        elif piece.markers:
            for _ in range(piece.markers):
                out.append(Token(unit, span, step, Modality.TEXT, Role.BOUNDARY, zero, True))
            step += 1
            span += 1
        else:
            for part in piece.parts:
                for offset in part.offsets:
                    out.append(
                        Token(unit, span, step, part.modality, part.role, offset, part.advances)
                    )
                span += 1 if part.offsets else 0
            step += 1
    return out


def grid(time: int, height: int, width: int) -> tuple[Offset, ...]:
    """Offsets of a picture, row by row."""
    return tuple((time, r, q) for r in range(height) for q in range(width))


def line(first: int, count: int) -> tuple[Offset, ...]:
    """Offsets of sound."""
    return tuple((i, i, i) for i in range(first, first + count))


def text(count: int, role: Role = Role.CONTENT) -> Piece:
    """A run of text."""
    return Piece(text=count, role=role)


def picture(height: int, width: int, role: Role = Role.CONTENT) -> Piece:
    """A still picture in a step of its own."""
    return Piece(parts=(Part(Modality.IMAGE, role, grid(0, height, width)),))


def sound(count: int) -> Piece:
    """Sound in a step of its own."""
    return Piece(parts=(Part(Modality.AUDIO, Role.CONTENT, line(0, count)),))


SIDE = st.integers(1, 5)
COUNT = st.integers(1, 12)


@st.composite
def film(draw: st.DrawFn) -> Sketch:
    """Pictures and sound interleaved on one base; only the last part moves the counter on."""
    height, width, gap = draw(SIDE), draw(SIDE), draw(st.integers(0, 7))
    parts: list[Part] = []
    heard = 0
    for i in range(draw(st.integers(1, 3))):
        parts.append(Part(Modality.IMAGE, Role.CONTENT, grid(gap * i, height, width), False))
        count = draw(COUNT)
        parts.append(Part(Modality.AUDIO, Role.CONTENT, line(heard, count), False))
        heard += count
    last = parts.pop()
    parts.append(Part(last.modality, last.role, last.offsets, True))
    block = Piece(parts=tuple(parts))
    return Sketch(UnitKind.MEDIA, (Piece(markers=2), block, Piece(markers=2)))


@st.composite
def sliced(draw: st.DrawFn) -> Sketch:
    """A source image, its slices, sound, and now and then a word."""
    edge = text(1, Role.BOUNDARY)
    pieces = [edge, picture(draw(SIDE), draw(SIDE), Role.SOURCE_IMAGE), edge]
    for _ in range(draw(st.integers(0, 3))):
        pieces += [edge, picture(draw(SIDE), draw(SIDE), Role.SLICE), edge]
    pieces.append(sound(draw(COUNT)))
    if draw(st.booleans()):
        pieces.append(text(draw(COUNT)))
    return Sketch(UnitKind.MEDIA, (*pieces, edge))


def one_axis(kind: UnitKind = UnitKind.MEDIA) -> st.SearchStrategy[Sketch]:
    """Units in which every token takes one position."""
    edge = st.builds(text, st.integers(1, 2), st.just(Role.BOUNDARY))
    words = st.builds(text, COUNT)
    body = st.lists(st.one_of(edge, words), min_size=1, max_size=4)
    return body.map(lambda pieces: Sketch(kind, tuple(pieces)))


def words(kind: UnitKind) -> st.SearchStrategy[Sketch]:
    """Text between boundary tokens."""
    edge = text(2, Role.BOUNDARY)
    return st.integers(1, 20).map(lambda n: Sketch(kind, (edge, text(n), edge)))


def single(piece: st.SearchStrategy[Piece]) -> st.SearchStrategy[Sketch]:
    """A media unit of one piece between markers."""
    edge = Piece(markers=2)
    return piece.map(lambda p: Sketch(UnitKind.MEDIA, (edge, p, edge)))


UNITS = st.one_of(
    film(),
    sliced(),
    single(st.builds(picture, SIDE, SIDE)),
    single(st.builds(sound, COUNT)),
    one_axis(),
    words(UnitKind.TEXT),
    words(UnitKind.PROMPT),
    words(UnitKind.REPLY),
    st.just(Sketch(UnitKind.REPLY, ())),
)
"""Any unit but the system prefix; a reply may be empty."""

SYSTEM = words(UnitKind.SYSTEM)


@st.composite
def configs(draw: st.DrawFn, least: int = 1, most: int = 300) -> RetentionConfig:
    """Watermarks small enough to bite, and all that policies can be told."""
    low = draw(st.integers(least, most))
    return RetentionConfig(
        high_watermark=low + draw(st.integers(0, 50)),
        low_watermark=low,
        recent_units=draw(st.one_of(st.none(), st.integers(1, 3), st.just(1000))),
        image_sink=draw(st.integers(0, 6)),
        audio_sink=draw(st.integers(0, 6)),
        text_budget=draw(st.one_of(st.just(0), st.integers(1, 40))),
        recent_share=draw(st.sampled_from([0.1, 0.3, 0.5, 0.75, 1.0])),
        sink_tokens=draw(st.integers(0, 6)),
        heavy_share=draw(st.sampled_from([0.0, 0.1, 0.5, 0.95])),
        text_sink=draw(st.integers(0, 20)),
        text_window=draw(st.integers(0, 40)),
        vision_window=draw(st.sampled_from([0.0, 1.0, 3.5, 16.0])),
    )


def made_up_mass(history: History) -> NDArray[np.float64]:
    """A mass that depends on the cells alone, with many equal values."""
    mass: NDArray[np.float64] = (history.cells["order"] * 37 % 11).astype(np.float64)
    return mass


def evict(
    policy: RetentionPolicy,
    layout: Layout,
    table: PageTable,
    history: History,
    config: RetentionConfig,
) -> tuple[History, RetentionPlan, MigrationPlan | None]:
    """One eviction as a session makes it; changes `table`."""
    plan = make_plan(policy, history, config, made_up_mass(history))
    table.release(history.cells["slot"][~plan.keep])
    history = history.keep(plan.keep)
    migration = layout.plan(table, history)
    if migration is not None:
        migration.validate(table)
        source, destination = migration.arrays()
        table.move(source, destination)
        history = history.move(source, destination)
    layout.settle(table, history)
    return history, plan, migration


@dataclass(frozen=True)
class Streams:
    """What the tests take from here."""

    build: Callable[[Sketch], Unit] = build
    tokens: Callable[..., list[Token]] = tokens
    made_up_mass: Callable[[History], NDArray[np.float64]] = made_up_mass
    evict: Callable[..., tuple[History, RetentionPlan, MigrationPlan | None]] = evict
    configs: Callable[..., st.SearchStrategy[RetentionConfig]] = configs
    one_axis: Callable[..., st.SearchStrategy[Sketch]] = one_axis
    units: Any = UNITS
    system: Any = SYSTEM


@pytest.fixture(scope="session")
def streams() -> Streams:
    """Strategies and helpers for random streams."""
    return Streams()
