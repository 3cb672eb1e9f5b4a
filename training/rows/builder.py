"""Fills a row script by script: streams, and so many of their questions as fit."""

from __future__ import annotations

import numpy as np

from omnitide.units import Modality
from training.rows.row import Forgetting, Row
from training.rows.stream import LaidOut
from training.rows.writer import Piece, Writer
from training.settings import PICTURE_TOKENS, SOUND_TOKENS, Settings
from training.world.questions.wordings import TASKS
from training.world.script import Picture, Question, Script, Sound

BLANK = Picture(0, None, "", None, 1, 0)
"""Stands in places for units that are empty."""

SILENCE = Sound(None, "", 0, 0)

_TASK_IDS = {task: i for i, task in enumerate(TASKS)}


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
        stream = LaidOut.of(script, self._writer)
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

    def _put_stream(self, stream: LaidOut, script: Script, forgetting: Forgetting | None) -> None:
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
        self, question: Question, stream: LaidOut, start: int, forgetting: Forgetting | None
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
