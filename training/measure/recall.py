"""`recall` as a benchmark: held-out scripts with questions about now and about long ago.

Every question is asked when its unit is over, aside by default: the history is then the stream
alone, and no reply tells a later question anything.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from omnitide.errors import ConfigError
from omnitide.evaluation.benchmark import question_key
from omnitide.evaluation.dataset import Dataset
from omnitide.evaluation.item import Event, Item, Note
from omnitide.evaluation.item import Question as Asked
from omnitide.evaluation.judgement import JudgeUnit
from omnitide.evaluation.mark import Mark
from omnitide.evaluation.needle.fact import recalled
from omnitide.evaluation.record import Record
from omnitide.evaluation.score import Score
from training.render.stream import MadeStream
from training.world.scenario import draw_script
from training.world.script import Question, Script
from training.world.unit import SECONDS
from training.world.vocabulary import SPLITS

CORRECT, KEPT = "correct", "kept"
"""Metrics: the reply is right; share of the tokens of its fact's unit that were still kept."""

BANDS: tuple[tuple[str, int, int], ...] = (
    ("0", 0, 0),
    ("1-3", 1, 3),
    ("4-6", 4, 6),
    ("7-9", 7, 9),
    ("10-14", 10, 14),
    ("15-24", 15, 24),
    ("25-", 25, 1 << 30),
    ("none", -1, -1),
)
"""Distances in units, first and last; "none" is for answers that hang on no single unit."""

FAR = ("10-14", "15-24", "25-")

ALL, COUNTED, COUNTED_FAR = "all", "counted", "counted, 10 units and more"

SHORT_REPLY, LONG_REPLY, LONG_ANSWER = 12, 48, 24
"""Tokens of a reply, and letters of an answer that needs the longer one."""

NEEDLE = "needle_"
OF_TEXT = ("typed_fact", "needle_typed")
"""Tasks whose fact is text: no unit of picture and sound holds it."""


@dataclass(frozen=True, slots=True)
class RecallOptions:
    """What streams are made.

    Attributes:
        split: "tune" to choose settings by, "test" to report.
        units: Length of a stream.
        questions: Of a stream; a poor one may give fewer.
        tasks: Names of tasks; empty: all.
        inline: Whether the questions that a script puts into the stream stay there with their
            replies; otherwise they are asked aside like the others.
        seed: Of the scripts.
    """

    split: str = "tune"
    units: int = 46
    questions: int = 30
    tasks: tuple[str, ...] = ()
    inline: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ConfigError(f"[recall] --split must be one of {', '.join(SPLITS)}")
        for name, value in (("--units", self.units), ("--questions", self.questions)):
            if value < 1:
                raise ConfigError(f"[recall] {name} must be at least 1, got {value}")
        if self.seed < 0:
            raise ConfigError(f"[recall] --seed must be at least 0, got {self.seed}")

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)


class Recall:
    """The benchmark. It reads no files but the bank.

    Attributes:
        counted: Tasks that count in comparisons; None: all.
    """

    name = "recall"

    def __init__(self, counted: frozenset[str] | None = None) -> None:
        self.counted = counted

    def read(self, options: RecallOptions, streams: int, bank: str) -> Dataset:
        """The items, a stream each. The first ones are the same however many there are.

        Raises:
            ConfigError: Fewer than one stream, or an unknown task.
        """
        if streams < 1:
            raise ConfigError(f"[recall] --streams must be at least 1, got {streams}")
        try:
            return Dataset(tuple(_item(options, number, bank) for number in range(streams)))
        except ValueError as error:
            raise ConfigError(f"[recall] {error}; correct --tasks") from error

    def marks(self, item: Item, record: Record) -> list[Mark]:
        """Whether each question was answered rightly, and what of its fact was still kept."""
        asked = {question.id: question for question in item.questions}
        found = []
        for answer in record.answers:
            question = asked[answer.question]
            key, task = question_key(item, question.id), cell_name(question)
            right = is_right(question.task, question.expected or "", answer.text)
            found.append(Mark(key, task, CORRECT, float(right)))
            found += [Mark(key, task, KEPT, k / total) for k, total in answer.kept if total]
        return found

    def units(self, item: Item, record: Record) -> list[JudgeUnit]:
        """Nothing for a judge to mark."""
        return []

    def scores(self, tasks: Sequence[str]) -> tuple[Score, ...]:
        """Of all questions, of the counted ones, by distance, and by task."""
        split = [(task, *task.split("|")) for task in tasks]
        counts = [(cell, band) for cell, task, band in split if self._counts(task)]
        far = tuple(cell for cell, band in counts if band in FAR)
        found = [
            Score(ALL, CORRECT, tuple(tasks), head=True),
            Score(COUNTED, CORRECT, tuple(cell for cell, _ in counts), head=True),
            Score(COUNTED_FAR, CORRECT, far, head=True),
            Score(f"{KEPT} of {COUNTED_FAR}", KEPT, far),
        ]
        for name, _, _ in BANDS:
            cells = tuple(cell for cell, band in counts if band == name)
            found.append(Score(at_band(name), CORRECT, cells))
            found.append(Score(f"{KEPT} {at_band(name)}", KEPT, cells))
        for task in dict.fromkeys(task for _, task, _ in split):
            found.append(Score(of_task(task), CORRECT, tuple(c for c, t, _ in split if t == task)))
        return tuple(found)

    def predictions(self, pairs: Sequence[tuple[Item, Record]]) -> Mapping[str, str]:
        """None: there are no authors with a format of their own."""
        return {}

    def _counts(self, task: str) -> bool:
        return self.counted is None or task in self.counted


def at_band(name: str) -> str:
    """The score of the counted questions of a band of distances."""
    return f"at {name}"


def of_task(task: str) -> str:
    """The score of a task."""
    return f"task {task}"


def cell_name(question: Any) -> str:
    """Task and band of distances of a question of an item, as marks name them."""
    distance = int(question.tags["distance"])
    band = next(name for name, first, last in BANDS if first <= distance <= last)
    return f"{question.task}|{band}"


def is_right(task: str, answer: str, reply: str) -> bool:
    """Whether a reply is the answer: letter case, spaces and a full stop at the end apart.

    The needle's prompts are marked by the needle's own rule.
    """
    if task.startswith(NEEDLE):
        return recalled(task.removeprefix(NEEDLE), answer, reply)
    return _plain(reply) == _plain(answer)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(" .")


def _item(options: RecallOptions, number: int, bank: str) -> Item:
    random = np.random.default_rng([options.seed, zlib.crc32(options.split.encode()), number])
    tasks = options.tasks or None
    script = draw_script(random, options.units, options.split, options.questions, tasks)
    name = f"{options.split}-{number}"
    return Item(name, name, MadeStream(script, bank), tuple(events_of(script, options.inline)))


def events_of(script: Script, inline: bool) -> Iterator[Event]:
    """Typed text and questions in the order in which rows of training have them.

    After each unit: what is typed, then what is asked aside, then what stays in the stream.
    """
    numbered = list(enumerate(script.questions))
    for unit in range(len(script.pictures)):
        for typed in script.typed:
            if typed.after == unit:
                yield Note(typed.text, _end(unit))
        due = [(n, q, inline and q.inline) for n, q in numbered if q.after == unit]
        for number, question, stays in sorted(due, key=lambda found: found[2]):
            yield _asked(number, question, stays)


def _end(unit: int) -> float:
    return float((unit + 1) * SECONDS)


def _asked(number: int, question: Question, stays: bool) -> Asked:
    fact = question.after - question.distance
    media = question.distance >= 0 and question.task not in OF_TEXT
    return Asked(
        str(number),
        question.prompt,
        _end(question.after),
        expected=question.answer,
        task=question.task,
        max_tokens=SHORT_REPLY if len(question.answer) <= LONG_ANSWER else LONG_REPLY,
        watched=((_end(fact - 1), _end(fact)),) if media else (),
        tags={"distance": str(question.distance)},
        aside=not stays,
    )
