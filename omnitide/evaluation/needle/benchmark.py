"""`needle` as a benchmark: items by modality and distance, marks of recall and retention."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from omnitide.evaluation.benchmark import question_key
from omnitide.evaluation.dataset import Dataset, Reading
from omnitide.evaluation.item import Item, Note, Question
from omnitide.evaluation.judgement import JudgeUnit
from omnitide.evaluation.mark import Mark
from omnitide.evaluation.needle.fact import KINDS, recalled
from omnitide.evaluation.needle.options import NeedleOptions
from omnitide.evaluation.needle.sound import TOOLS, speech_tool
from omnitide.evaluation.needle.stream import NeedleStream
from omnitide.evaluation.problem import NOTE, Problem
from omnitide.evaluation.record import Record
from omnitide.evaluation.score import Score

FACT_SECONDS = 3.0
"""How long a fact is shown; a sentence that is said is not much longer."""

SPEECH_SECONDS = 6.0
"""The same for speech, which lasts so long at most."""

MAX_TOKENS = 16

RECALL, KEPT, WHOLE = "recall", "kept", "kept whole"
"""Metrics: the reply names the fact; share of the fact's tokens still in the history when it is
asked for; whether all of them are."""


class Needle:
    """The benchmark. It reads no files."""

    name = "needle"

    def __init__(self, options: NeedleOptions | None = None) -> None:
        self.options = options or NeedleOptions()

    def read(self, reading: Reading | None = None) -> Dataset:
        """The items. What this machine can't make is a problem, so that it is told."""
        options = self.options
        wanted, problems = options.modalities, []
        if wanted is None:
            wanted = tuple(KINDS)
            if speech_tool() is None:
                wanted = tuple(name for name in wanted if name != "speech")
                what = f"speech is left out: it needs one of {', '.join(TOOLS)}"
                left = len(set(options.distances)) * options.samples
                problems = [Problem(NOTE, "speech", what, left)]
        return Dataset(tuple(_items(options, wanted)), tuple(problems))

    def marks(self, item: Item, record: Record) -> list[Mark]:
        """Whether the fact was recalled, and what of it was still kept."""
        (question,) = item.questions
        (answer,) = record.answers
        key, task = question_key(item, question.id), question.task
        known = recalled(item.tags["modality"], item.tags["answer"], answer.text)
        marks = [Mark(key, task, RECALL, float(known))]
        for kept, tokens in answer.kept:
            marks.append(Mark(key, task, KEPT, kept / tokens if tokens else 0.0))
            marks.append(Mark(key, task, WHOLE, float(0 < tokens == kept)))
        return marks

    def units(self, item: Item, record: Record) -> list[JudgeUnit]:
        """Nothing for a judge to mark."""
        return []

    def scores(self, tasks: Sequence[str]) -> tuple[Score, ...]:
        """Of each metric: all, by distance, by modality, and by both."""
        found = []
        cells = [cell_of(task) for task in tasks]
        modalities = list(dict.fromkeys(modality for modality, _ in cells))
        distances = sorted({distance for _, distance in cells}, key=float)
        for metric in (RECALL, KEPT, WHOLE):
            found.append(Score(metric, metric, tuple(tasks), head=True))
            for distance in distances:
                at = tuple(t for t, (_, d) in zip(tasks, cells, strict=True) if d == distance)
                found.append(Score(at_distance(metric, distance), metric, at))
            for modality in modalities:
                of = tuple(t for t, (m, _) in zip(tasks, cells, strict=True) if m == modality)
                found.append(Score(f"{metric} of {modality}", metric, of))
            for task in tasks:
                found.append(Score(f"{metric} of {task}", metric, (task,)))
        return tuple(found)

    def predictions(self, pairs: Sequence[tuple[Item, Record]]) -> Mapping[str, str]:
        """None: there are no authors with a format of their own."""
        return {}


def task_name(modality: str, distance: float) -> str:
    """The task of a modality and a distance, as in tables."""
    return f"{modality} at {distance:g} s"


def at_distance(metric: str, distance: str) -> str:
    """The name of a metric's score at a distance, over all modalities."""
    return f"{metric} at {distance} s"


def cell_of(task: str) -> tuple[str, str]:
    """Modality and distance of a task."""
    modality, _, distance = task.removesuffix(" s").partition(" at ")
    return modality, distance


def _items(options: NeedleOptions, modalities: Sequence[str]) -> Iterator[Item]:
    for modality in dict.fromkeys(modalities):
        for distance in dict.fromkeys(options.distances):
            for sample in range(options.samples):
                yield _item(options, modality, distance, sample)


def _item(options: NeedleOptions, modality: str, distance: float, sample: int) -> Item:
    name = f"{modality}-{distance:g}-{sample}"
    # A fact does not depend on its distance: the same ones are asked for sooner and later.
    seed = zlib.crc32(f"{options.seed}/{modality}/{sample}".encode())
    kind = KINDS[modality]
    answer = kind.draw(np.random.default_rng(seed))
    start = options.lead
    stop = start + (SPEECH_SECONDS if modality == "speech" else FACT_SECONDS)
    seconds = stop + distance
    typed = modality == "typed"
    question = Question(
        "fact",
        kind.prompt,
        None,
        expected=answer,
        task=task_name(modality, distance),
        max_tokens=MAX_TOKENS,
        # A text has no seconds of its own, so what is kept of it can't be told from the rest.
        watched=() if typed else ((start, stop),),
    )
    note = Note(f"The pass code is {answer}.", start)
    return Item(
        name,
        name,
        NeedleStream(modality, answer, start, stop, seconds, options.size, seed),
        (note, question) if typed else (question,),
        {"modality": modality, "distance": f"{distance:g}", "answer": answer},
    )
