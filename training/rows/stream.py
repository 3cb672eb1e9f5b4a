"""A stream of a row: its script laid out in tokens, from the system prefix on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from training.rows.row import Forgetting, Ints
from training.rows.writer import Piece, Writer
from training.world.script import Question, Script, Typed

Item = TypeVar("Item", Typed, Question)


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A stream laid out from its beginning.

    Attributes:
        ids, positions, ranks, modality: As of a `Piece`.
        unit: Unit of each token, -1 for the system prefix.
        starts: First token of each unit.
        ends: By unit, the tokens and the position counter before anything is asked after it.
        inline: Questions that stand in the stream: the place before the answer's first token, and
            the answer.
    """

    ids: Ints
    positions: Ints
    ranks: Ints
    modality: NDArray[np.uint8]
    unit: Ints
    starts: NDArray[np.int64]
    ends: list[tuple[int, int]]
    inline: list[tuple[Question, int, Piece]]

    @classmethod
    def of(cls, script: Script, writer: Writer) -> LaidOut:
        """Lay out a script with the questions that stand in its stream."""
        pieces, units, counters = [writer.system], [-1], [0]
        length, counter = len(writer.system), writer.system.extent
        starts, ends, inline = [], [], []

        def put(piece: Piece, unit: int) -> None:
            nonlocal length, counter
            pieces.append(piece)
            units.append(unit)
            counters.append(counter)
            length, counter = length + len(piece), counter + piece.extent

        typed = _by_unit(script.typed)
        asked = _by_unit([question for question in script.questions if question.inline])
        for unit in range(len(script.pictures)):
            starts.append(length)
            put(writer.media, unit)
            for text in typed.get(unit, []):
                put(writer.typed(text.text), unit)
            ends.append((length, counter))
            for question in asked.get(unit, []):
                answer = writer.answer(question.answer)
                put(writer.prompt(question.prompt), unit)
                inline.append((question, length - 1, answer))
                put(answer, unit)
                put(writer.closing, unit)
        lengths = [len(piece) for piece in pieces]
        return cls(
            ids=np.concatenate([piece.ids for piece in pieces]),
            positions=np.concatenate([p.positions for p in pieces], axis=1)
            + np.repeat(np.array(counters, np.int32), lengths),
            ranks=np.concatenate([piece.ranks for piece in pieces]),
            modality=np.concatenate([piece.modality for piece in pieces]),
            unit=np.repeat(np.array(units, np.int32), lengths),
            starts=np.array(starts),
            ends=ends,
            inline=inline,
        )

    def horizon(self, unit: Ints, forgetting: Forgetting | None) -> NDArray[np.int64]:
        """First token of the oldest unit that is seen whole from each of some units."""
        if forgetting is None:
            return np.zeros(len(unit), np.int64)
        oldest = unit - forgetting.recent + 1
        return np.where(oldest <= 0, 0, self.starts[np.maximum(oldest, 0)])


def _by_unit(items: Sequence[Item]) -> dict[int, list[Item]]:
    found: dict[int, list[Item]] = {}
    for item in items:
        found.setdefault(item.after, []).append(item)
    return found
