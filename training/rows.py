"""A training row: streams one after another, each followed by the branches that ask about it.

A branch is a question with its answer that nobody else sees. It follows the end of a unit: its
positions go on from there, and it sees the stream up to there and itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from omnitide.units import Modality
from training.script import Picture, Question, Script, Sound, Typed
from training.settings import PICTURE_TOKENS, SOUND_TOKENS, Settings
from training.wordings import TASKS
from training.writer import Piece, Writer

Ints = NDArray[np.int32]
Item = TypeVar("Item", Typed, Question)

BLANK = Picture(0, None, "", None, 1, 0)
"""Stands in places for units that are empty."""

SILENCE = Sound(None, "", 0, 0)

_TASK_IDS = {task: i for i, task in enumerate(TASKS)}


@dataclass(frozen=True, slots=True)
class Forgetting:
    """How much of a stream later tokens see.

    Attributes:
        recent: Newest units that are seen whole.
        sink: First tokens of each older picture and sound that stay; text and markers all do.
    """

    recent: int
    sink: int


@dataclass(frozen=True, slots=True)
class Row:
    """Arrays of fixed length, see `settings.Settings` for the lengths.

    Attributes:
        ids: Token ids; 0 behind the last document.
        positions: (3, tokens).
        document, branch: Which stream a token belongs to and which branch (0: the stream itself);
            -1 and -1 where there is nothing. Branches are counted through the row.
        unit: The unit during or after which a token comes; -1 for the system prefix.
        first, seen, horizon, own, kept: Who sees whom, see `masks.Visibility`.
        label_places: Tokens whose next token is learned; the row's length where there is no label.
        label_ids, label_weights, label_answers: That token, its weight, and its answer's index.
        answer_tasks, answer_distances: By answer: index in `TASKS`, distance in units; -1: none.
        picture_places, sound_places: (units, 32) and (units, 50), places of a unit's tokens; the
            row's length for a unit that is not there.
        streams: By unit, the document it belongs to; a number of its own where there is none.
        pictures, sounds: By unit.
        num_units, num_tokens: That are there.
    """

    ids: Ints
    positions: Ints
    document: Ints
    branch: Ints
    unit: Ints
    first: Ints
    seen: Ints
    horizon: Ints
    own: Ints
    kept: NDArray[np.bool_]
    label_places: Ints
    label_ids: Ints
    label_weights: NDArray[np.float32]
    label_answers: Ints
    answer_tasks: Ints
    answer_distances: Ints
    picture_places: Ints
    sound_places: Ints
    streams: Ints
    pictures: tuple[Picture, ...]
    sounds: tuple[Sound, ...]
    num_units: int
    num_tokens: int


class RowBuilder:
    """Fills a row script by script."""

    def __init__(self, settings: Settings, writer: Writer, length_power: float = 0.5) -> None:
        """An empty row.

        Args:
            settings: Lengths.
            writer: Lays out pieces.
            length_power: A token of an answer of n tokens weighs n ** -length_power.
        """
        self._settings, self._writer, self._power = settings, writer, length_power
        tokens, units = settings.row_tokens, settings.row_units
        self._ids = np.zeros(tokens, np.int32)
        self._positions = np.zeros((3, tokens), np.int32)
        place = np.arange(tokens, dtype=np.int32)
        self._document = np.full(tokens, -1, np.int32)
        self._branch = np.full(tokens, -1, np.int32)
        self._unit = np.full(tokens, -1, np.int32)
        self._first, self._seen = np.zeros(tokens, np.int32), np.zeros(tokens, np.int32)
        self._horizon, self._own = np.zeros(tokens, np.int32), place.copy()
        self._kept = np.ones(tokens, np.bool_)
        self._picture_places = np.full((units, PICTURE_TOKENS), tokens, np.int32)
        self._sound_places = np.full((units, SOUND_TOKENS), tokens, np.int32)
        # -2, -3, ...: a unit that is not there continues no stream.
        self._streams = -2 - np.arange(units, dtype=np.int32)
        self._pictures: list[Picture] = []
        self._sounds: list[Sound] = []
        self._labels: list[tuple[int, int, float, int]] = []
        self._answers: list[tuple[int, int]] = []
        self._at = self._documents = self._branches = 0

    @property
    def units_left(self) -> int:
        """Media units for which there is room."""
        return self._settings.row_units - len(self._pictures)

    def add(
        self,
        script: Script,
        random: np.random.Generator,
        forgetting: Forgetting | None = None,
        last: bool = True,
    ) -> bool:
        """Put a stream and as many of its questions as fit into the row.

        Args:
            script: At least one unit.
            random: Chooses among questions if not all fit.
            forgetting: What later tokens see; None: everything.
            last: Whether the branches may take all that is left. Otherwise they leave later
                streams a share by the number of their units.

        Returns:
            False if there is no room for the stream; nothing has changed then.
        """
        stream = _Stream.of(script, self._writer)
        labels = sum(len(answer) for _, _, answer in stream.inline)
        if (
            len(script.pictures) > self.units_left
            or self._at + len(stream.ids) > self._settings.row_tokens
            or len(self._labels) + labels > self._settings.row_labels
            or len(self._answers) + len(stream.inline) > self._settings.row_answers
        ):
            return False
        start = self._at
        self._put_stream(stream, script, forgetting)
        share = self._settings.row_tokens * len(self._pictures) // self._settings.row_units
        limit = self._settings.row_tokens if last else share
        for question in self._chosen(script, random, limit):
            self._put_branch(question, stream, start, forgetting)
        self._documents += 1
        return True

    def build(self) -> Row:
        """The row as it is now."""
        settings = self._settings
        tokens, room = settings.row_tokens, settings.row_labels
        places = np.full(room, tokens, np.int32)
        ids, answers = np.zeros(room, np.int32), np.zeros(room, np.int32)
        weights = np.zeros(room, np.float32)
        if self._labels:
            columns = list(zip(*self._labels, strict=True))
            count = len(self._labels)
            places[:count], ids[:count] = columns[0], columns[1]
            weights[:count], answers[:count] = columns[2], columns[3]
        tasks = np.full(settings.row_answers, -1, np.int32)
        distances = np.full(settings.row_answers, -1, np.int32)
        if self._answers:
            tasks[: len(self._answers)] = [task for task, _ in self._answers]
            distances[: len(self._answers)] = [distance for _, distance in self._answers]
        return Row(
            ids=self._ids,
            positions=self._positions,
            document=self._document,
            branch=self._branch,
            unit=self._unit,
            first=self._first,
            seen=self._seen,
            horizon=self._horizon,
            own=self._own,
            kept=self._kept,
            label_places=places,
            label_ids=ids,
            label_weights=weights,
            label_answers=answers,
            answer_tasks=tasks,
            answer_distances=distances,
            picture_places=self._picture_places,
            sound_places=self._sound_places,
            streams=self._streams,
            pictures=(*self._pictures, *[BLANK] * self.units_left),
            sounds=(*self._sounds, *[SILENCE] * self.units_left),
            num_units=len(self._pictures),
            num_tokens=self._at,
        )

    def _put_stream(self, stream: _Stream, script: Script, forgetting: Forgetting | None) -> None:
        at, count = self._at, len(stream.ids)
        run = slice(at, at + count)
        self._ids[run], self._positions[:, run] = stream.ids, stream.positions
        self._document[run], self._branch[run] = self._documents, 0
        self._unit[run] = stream.unit
        self._first[run] = at
        self._seen[run] = np.arange(at + 1, at + count + 1)
        self._horizon[run] = at + stream.horizon(stream.unit, forgetting)
        if forgetting is not None:
            self._kept[run] = stream.ranks < forgetting.sink
        slot = len(self._pictures)
        for kind, places in (
            (Modality.IMAGE, self._picture_places),
            (Modality.AUDIO, self._sound_places),
        ):
            found = at + np.flatnonzero(stream.modality == kind)
            places[slot : slot + len(script.pictures)] = found.reshape(len(script.pictures), -1)
        self._streams[slot : slot + len(script.pictures)] = self._documents
        self._pictures += script.pictures
        self._sounds += script.sounds
        for question, place, answer in stream.inline:
            self._label(question, at + place, answer)
        self._at = at + count

    def _chosen(self, script: Script, random: np.random.Generator, limit: int) -> list[Question]:
        """Questions for branches: all, or so many as fit before `limit`, ascending."""
        asked = [question for question in script.questions if not question.inline]
        room = limit - self._at
        labels = self._settings.row_labels - len(self._labels)
        answers = self._settings.row_answers - len(self._answers)
        chosen = []
        for index in random.permutation(len(asked)).tolist():
            prompt = self._writer.prompt(asked[index].prompt)
            answer = self._writer.answer(asked[index].answer)
            # The token that ends the answer is learned and never read.
            length = len(prompt) + len(answer) - 1
            if length <= room and len(answer) <= labels and answers:
                room, labels, answers = room - length, labels - len(answer), answers - 1
                chosen.append(index)
        return [asked[index] for index in sorted(chosen)]

    def _put_branch(
        self, question: Question, stream: _Stream, start: int, forgetting: Forgetting | None
    ) -> None:
        prompt = self._writer.prompt(question.prompt)
        answer = self._writer.answer(question.answer)
        at, count = self._at, len(prompt) + len(answer) - 1
        run = slice(at, at + count)
        end, counter = stream.ends[question.after]
        self._branches += 1
        self._ids[run] = np.concatenate([prompt.ids, answer.ids[:-1]])
        self._positions[:, run] = counter + np.concatenate(
            [prompt.positions, prompt.extent + answer.positions[:, :-1]], axis=1
        )
        self._document[run], self._branch[run] = self._documents, self._branches
        self._unit[run] = question.after
        self._first[run], self._seen[run] = start, start + end
        after = np.full(1, question.after)
        self._horizon[run] = start + stream.horizon(after, forgetting)
        self._own[run] = at
        self._label(question, at + len(prompt) - 1, answer)
        self._at = at + count

    def _label(self, question: Question, place: int, answer: Piece) -> None:
        """Learn an answer whose first token follows `place`."""
        number, weight = len(self._answers), len(answer) ** -self._power
        self._labels += [
            (place + i, token, weight, number) for i, token in enumerate(answer.ids.tolist())
        ]
        self._answers.append((_TASK_IDS[question.task], question.distance))


@dataclass(frozen=True, slots=True)
class _Stream:
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
    def of(cls, script: Script, writer: Writer) -> _Stream:
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
