"""Units: what a streaming event puts into the history, token by token.

Invariant: the cells of a unit are in logical order, and cells of one span are contiguous.

A unit is made with `UnitBuilder` by a model family (it alone knows its markers and its position
rules) and read by everything else through the columns of `CELL`. The columns that the history
fills in later (unit, order, position, slot) are -1 until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omnitide.runs import run_lengths, run_starts


class Modality(IntEnum):
    """What a token stands for. Values are stored in `CELL["modality"]`."""

    TEXT = 0
    IMAGE = 1
    AUDIO = 2


class Role(IntEnum):
    """What a token does in its unit. Values are stored in `CELL["role"]`."""

    BOUNDARY = 0
    SOURCE_IMAGE = 1
    SLICE = 2
    CONTENT = 3


class UnitKind(StrEnum):
    """Which streaming event made the unit."""

    SYSTEM = "system"
    MEDIA = "media"
    TEXT = "text"
    PROMPT = "prompt"
    REPLY = "reply"


AXES = 3
"""Width of the position columns. One-axis models read column 0; the others stay equal to it."""

CELL = np.dtype(
    [
        ("token", np.int32),  # token id; the placeholder's id for picture and sound
        ("unit", np.int32),  # id of the unit in the history
        ("span", np.int32),  # index of the span in the unit
        ("modality", np.uint8),
        ("role", np.uint8),
        ("step", np.int32),  # position step in the unit: cells of one step share a base position
        ("offset", np.int32, (AXES,)),  # offset from that base on each axis
        ("advances", np.bool_),  # whether the cell counts for the extent of its step
        ("order", np.int64),  # place in the logical history; not re-used, but for a renewed prefix
        ("position", np.int32, (AXES,)),  # what RoPE rotates by
        ("slot", np.int32),  # where K and V lie: page * PAGE_SIZE + row
    ]
)

Cells = NDArray[np.void]
"""A one-dimensional array of dtype `CELL`."""


@dataclass(frozen=True, slots=True)
class Span:
    """A half-open range `[start, stop)` of a unit's cells with one modality and one role."""

    start: int
    stop: int
    modality: Modality
    role: Role


@dataclass(frozen=True, slots=True)
class Unit:
    """The tokens of one streaming event, ready to enter a history.

    Attributes:
        kind: Which event made it.
        cells: Its cells, dtype `CELL`, shape (num_tokens,); history columns are -1.
        time: Second of the stream at which it starts, or None where that means nothing.
        seconds: Seconds of the stream that it covers.
    """

    kind: UnitKind
    cells: Cells
    time: float | None = None
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.cells)


def span_starts(cells: Cells) -> NDArray[np.int64]:
    """Index of the first cell of each span, over any run of units. Shape (num_spans,)."""
    return run_starts(cells["span"], cells["unit"])


def span_ranks(cells: Cells) -> NDArray[np.int64]:
    """Place of each cell in its span as it now stands, from 0. Shape (num_cells,)."""
    starts = span_starts(cells)
    lengths = run_lengths(starts, len(cells))
    return np.arange(len(cells)) - starts.repeat(lengths)


def spans_of(cells: Cells) -> tuple[Span, ...]:
    """The spans of one unit's cells, offsets counted from its first cell."""
    starts = span_starts(cells)
    stops = np.append(starts, len(cells))[1:]
    return tuple(
        Span(int(a), int(b), Modality(int(cells["modality"][a])), Role(int(cells["role"][a])))
        for a, b in zip(starts, stops, strict=True)
    )


class UnitBuilder:
    """Collects the cells of one unit, span by span.

    Positions are stated as steps: a step has a base (the position counter where it begins) and its
    cells lie at base + offset. The counter then moves on by the step's extent, which is one more
    than the largest offset of its cells that `advance`. Text is one step a token; an image is one
    step whose offsets are (0, row, column); picture and sound that share a base are one step.
    """

    def __init__(self, first_step: int = 0, first_span: int = 0) -> None:
        self._blocks: list[Cells] = []
        self._step = first_step
        self._span = first_span

    def text(self, tokens: ArrayLike, role: Role = Role.CONTENT) -> UnitBuilder:
        """Add a span of text: one position a token."""
        ids = np.asarray(tokens, np.int32).reshape(-1)
        steps = self._step + np.arange(len(ids))
        self._step += len(ids)
        return self._add(ids, Modality.TEXT, role, steps, np.zeros((len(ids), AXES), np.int32))

    def markers(self, tokens: ArrayLike) -> UnitBuilder:
        """Add a span of boundary tokens that all share one position."""
        ids = np.asarray(tokens, np.int32).reshape(-1)
        offsets = np.zeros((len(ids), AXES), np.int32)
        self._add(ids, Modality.TEXT, Role.BOUNDARY, self._step, offsets)
        self._step += 1
        return self

    def content(
        self,
        token: int,
        offsets: ArrayLike,
        modality: Modality,
        role: Role = Role.CONTENT,
        advances: bool = True,
    ) -> UnitBuilder:
        """Add a span of picture or sound to the current step. Close it with `end_step`.

        Args:
            token: Placeholder id.
            offsets: Offsets from the step's base, shape (num_tokens, 3); any ints >= 0.
            modality: `IMAGE` or `AUDIO`.
            role: `CONTENT`, `SOURCE_IMAGE` or `SLICE`.
            advances: Whether these cells count for the extent of the step.
        """
        block = np.asarray(offsets, np.int32).reshape(-1, AXES)
        ids = np.full(len(block), token, np.int32)
        return self._add(ids, modality, role, self._step, block, advances)

    def end_step(self) -> UnitBuilder:
        """Let the next cells begin a new step."""
        self._step += 1
        return self

    def build(self, kind: UnitKind, time: float | None = None, seconds: float = 0.0) -> Unit:
        """The unit made of all cells added so far."""
        cells = np.concatenate(self._blocks) if self._blocks else np.empty(0, CELL)
        return Unit(kind, cells, time, seconds)

    def _add(
        self,
        ids: NDArray[np.int32],
        modality: Modality,
        role: Role,
        steps: ArrayLike,
        offsets: NDArray[np.int32],
        advances: bool = True,
    ) -> UnitBuilder:
        if len(ids) == 0:
            return self
        block = np.empty(len(ids), CELL)
        for column in ("unit", "order", "position", "slot"):
            block[column] = -1
        block["token"] = ids
        block["span"] = self._span
        block["modality"] = modality
        block["role"] = role
        block["step"] = steps
        block["offset"] = offsets
        block["advances"] = advances
        self._blocks.append(block)
        self._span += 1
        return self
