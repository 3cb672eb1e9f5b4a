"""StreamingBench (arXiv 2411.03628): timed multiple choice and proactive answers.

Under the protocol "stream" a session follows a film once and asks its questions at their moments,
the reading of the authors' `*_stream.json`. Under "official" each question has a session of its own
that sees `context` seconds before it; the main leaderboard uses 60. A proactive question has a
session of its own under both, since polls of two questions would overlap.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from omnitide.evaluation.benchmark import question_key
from omnitide.evaluation.choices import first_letter, lettered, named_letter
from omnitide.evaluation.clips import Clips
from omnitide.evaluation.dataset import Collector, Dataset, Reading, find_files
from omnitide.evaluation.film import Film
from omnitide.evaluation.item import Item, Poll, Question
from omnitide.evaluation.judgement import JudgeUnit
from omnitide.evaluation.mark import Mark
from omnitide.evaluation.moment import clock
from omnitide.evaluation.problem import DOUBLED, NOTE
from omnitide.evaluation.record import Answer, Record
from omnitide.evaluation.score import Score
from omnitide.evaluation.streamingbench_rows import (
    CLIP_FILES,
    CONTEXTUAL,
    OMNI_SOURCE,
    PROACTIVE,
    REAL_TIME,
    STREAM_FILES,
    Row,
    read_rows,
)

OFFICIAL, ROBUST = "official", "robust"
"""Metrics: the first character of the reply is the letter; the reply names the letter."""

TIMELY, OUTPUT = "time", "answer"
"""Metrics of the proactive task."""

SLACK = 2.0
"""Seconds by which a proactive answer may be early or late."""

POLLED = 4.0
"""Seconds behind the due moment until which the authors poll."""

SEQUENTIAL = "Sequential Question Answering"

GROUPS = {"real-time": REAL_TIME, "omni-source": OMNI_SOURCE, "contextual": CONTEXTUAL}


class StreamingBench:
    """See `benchmark.Benchmark`."""

    name = "streamingbench"

    def read(self, reading: Reading) -> Dataset:
        """Read question files (JSON or CSV), or the folder of them. See `Benchmark.read`."""
        names = STREAM_FILES if reading.protocol == "stream" else CLIP_FILES
        out = Collector(Clips(reading.videos))
        films: dict[str, list[Row]] = {}
        for path in find_files(reading.data, names, "StreamingBench's src/data or files of it"):
            for row in read_rows(path, out, reading.as_published):
                films.setdefault(row.film, []).append(row)
        items: list[Item] = []
        for film, rows in films.items():
            rows = [replace(row, number=number) for number, row in enumerate(rows)]
            _note_doubles(film, rows, out)
            found = out.film(film, len(rows), rows[0].path, rows[0].film)
            if found is not None:
                items += _items(film, found, rows, reading)
        return Dataset(tuple(items), tuple(out.problems))

    def marks(self, item: Item, record: Record) -> list[Mark]:
        """Official and robust choice; time and answer of the proactive task."""
        answers = {answer.question: answer for answer in record.answers}
        found = []
        for event in item.questions:
            key, answer = question_key(item, event.id), answers[event.id]
            if isinstance(event, Poll):
                values = _proactive(event, answer)
            elif event.expected is None:
                continue
            else:
                options = tuple(json.loads(event.tags["options"]))
                values = {
                    OFFICIAL: first_letter(answer.text) == event.expected,
                    ROBUST: named_letter(answer.text, options) == event.expected,
                }
            found += [Mark(key, event.task, name, float(value)) for name, value in values.items()]
        return found

    def units(self, item: Item, record: Record) -> list[JudgeUnit]:
        """None: no judge is needed."""
        return []

    def scores(self, tasks: Sequence[str]) -> tuple[Score, ...]:
        """Tasks, groups (questions pooled as the authors do, and mean of tasks) and all."""
        found: list[Score] = []
        choice = [task for group in GROUPS.values() for task in group if task in tasks]
        choice += [task for task in tasks if task not in (*choice, PROACTIVE)]
        for metric, ending in ((OFFICIAL, ""), (ROBUST, " (robust)")):
            found += [Score(task + ending, metric, (task,)) for task in choice]
            for group, members in GROUPS.items():
                has = tuple(task for task in members if task in tasks)
                if has:
                    found.append(Score(group + ending, metric, has, head=True))
                    of = tuple(task + ending for task in has)
                    found.append(Score(f"{group}, mean of tasks{ending}", of=of))
            if choice:
                found.append(Score("all" + ending, metric, tuple(choice), head=True))
        if PROACTIVE in tasks:
            found.append(Score("proactive, time (polled)", TIMELY, (PROACTIVE,), head=True))
            found.append(Score("proactive, answer (polled)", OUTPUT, (PROACTIVE,), head=True))
        return tuple(found)

    def predictions(self, pairs: Sequence[tuple[Item, Record]]) -> Mapping[str, str]:
        """One JSON list; the reply of a question under "omnitide", as the authors' scorer reads."""
        entries = []
        for item, record in pairs:
            answers = {answer.question: answer for answer in record.answers}
            questions = [_prediction(event, answers.get(event.id)) for event in item.questions]
            entries.append({"video_path": item.tags["path"], "questions": questions})
        return {"streamingbench.json": json.dumps(entries, indent=1) + "\n"}


def _note_doubles(film: str, rows: Sequence[Row], out: Collector) -> None:
    seen: set[tuple[str, float]] = set()
    for row in rows:
        key = (row.question, row.at)
        if key in seen:
            out.note(DOUBLED, row.id, "asked twice in the data; counted twice, as published")
        seen.add(key)
    moments = [row.at for row in rows if row.task != PROACTIVE]
    if moments != sorted(moments):
        out.note(NOTE, film, "questions are not in the order of their moments; sorted")


def _items(film: str, path: str, rows: Sequence[Row], reading: Reading) -> list[Item]:
    sound = reading.sound is not False
    tags = {"path": rows[0].path}
    items = []
    choices = [row for row in rows if row.task != PROACTIVE]
    if reading.protocol == "stream" and choices:
        questions = tuple(_question(row, "") for row in choices)
        items.append(Item(film, film, Film(path, sound=sound), questions, tags))
    elif choices:
        for row in choices:
            stop = max(row.at, 1.0)
            start = 0.0 if reading.context is None else max(0.0, stop - reading.context)
            source = Film(path, float(int(start)), stop, sound)
            context = _earlier(row, choices) if row.task == SEQUENTIAL else ""
            items.append(Item(row.id, film, source, (_question(row, context),), tags))
    for row in rows:
        if row.task == PROACTIVE and row.due is not None:
            start = 0.0 if reading.protocol == "stream" else row.at
            source = Film(path, start, None, sound)
            items.append(Item(row.id, film, source, (_poll(row),), tags))
    return items


def _question(row: Row, context: str) -> Question:
    options = lettered(row.options)
    prompt = "\n".join(
        (
            "You are an expert at answering questions about videos. You have seen and heard the "
            f"video so far. {context}Answer the question by choosing one of the options. Reply "
            "with the letter alone.",
            f"Question: {row.question}",
            "Options:",
            *options,
            "The best option is:",
        )
    )
    return Question(
        str(row.number),
        prompt,
        row.at,
        row.answer,
        row.task,
        tags={"question": row.question, "options": json.dumps(options), "stamp": row.stamp},
    )


def _earlier(row: Row, rows: Sequence[Row]) -> str:
    """What was asked before, with the right answers, as the authors give it."""
    lines = [
        f"At {clock(earlier.at)} the question was: {earlier.question} The options were: "
        f"{' '.join(lettered(earlier.options))} The answer was: {earlier.answer}."
        for earlier in rows
        if earlier.at < row.at and earlier.task == SEQUENTIAL
    ]
    if not lines:
        return ""
    return (
        "Here is the conversation so far. " + " ".join(lines) + " Do not confuse the new question "
        "with those. "
    )


def _poll(row: Row) -> Poll:
    return Poll(
        str(row.number),
        f'You are asked: "{row.question}" Is it the right time to output "{row.output}"? Answer '
        "yes or no.",
        at=row.at + 1,
        until=(row.due or row.at) + POLLED,
        then=row.question,
        expected=row.output,
        task=PROACTIVE,
        tags={"question": row.question, "due": repr(row.due), "stamp": row.stamp},
    )


def _proactive(event: Poll, answer: Answer) -> dict[str, bool]:
    """The authors': in time within 2 s, and the output in the reply, letter for letter."""
    due = float(event.tags["due"])
    timely = answer.asked is not None and abs(answer.asked - due) <= SLACK
    return {TIMELY: timely, OUTPUT: timely and (event.expected or "") in answer.text}


def _prediction(event: Question | Poll, answer: Answer | None) -> dict[str, object]:
    row: dict[str, object] = {"task_type": event.task, "question": event.tags["question"]}
    row["time_stamp"] = event.tags["stamp"]
    if isinstance(event, Poll):
        row["ground_truth_time_stamp"] = clock(float(event.tags["due"]))
        row["ground_truth_output"] = event.expected
        reply = Answer(event.id, None) if answer is None else answer
        time = event.until if reply.asked is None else reply.asked  # polled until then, in vain
        turn = {"role": "assistant", "content": reply.text, "time": time, "cost": reply.seconds}
        return {**row, "omnitide": {"answer": reply.text, "dialog_history": [turn]}}
    row["answer"] = event.expected
    row["options"] = json.loads(event.tags["options"])
    return {**row, "omnitide": None if answer is None else answer.text}
