"""StreamingBench's files as published: nested, flat, one entry a video, or a CSV of a mirror."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omnitide.errors import ConfigError
from omnitide.evaluation.dataset import Collector, read_csv_file, read_json_file
from omnitide.evaluation.moment import parse_moment
from omnitide.evaluation.problem import COUNT, FIXED, NOTE
from omnitide.evaluation.streamingbench_fixes import TIME_FIXES, repaired

REAL_TIME = (
    "Object Recognition",
    "Action Recognition",
    "Text-Rich Understanding",
    "Clips Summarize",
    "Attribute Recognition",
    "Spatial Understanding",
    "Counting",
    "Event Understanding",
    "Causal Reasoning",
    "Prospective Reasoning",
)
OMNI_SOURCE = (
    "Emotion Recognition",
    "Scene Understanding",
    "Source Discrimination",
    "Multimodal Alignment",
)
CONTEXTUAL = ("Misleading Context", "Anomaly Context", "Sequential Question Answering")
PROACTIVE = "Proactive Output"
TASKS = (*REAL_TIME, *OMNI_SOURCE, *CONTEXTUAL, PROACTIVE)

STREAM_FILES = (
    "questions_real_stream.json",
    "questions_omni_stream.json",
    "questions_sqa_stream.json",
    "questions_proactive.json",
)
CLIP_FILES = (
    "questions_real.json",
    "questions_omni.json",
    "questions_sqa.json",
    "questions_proactive.json",
)
QUESTIONS = {
    "questions_real.json": 2500,
    "questions_omni.json": 1500,
    "questions_sqa.json": 250,
    "questions_proactive.json": 250,
    "questions_proactive_50.json": 51,
    "questions_real_stream.json": 2495,
    "questions_omni_stream.json": 1500,
    "questions_sqa_stream.json": 250,
}
"""Questions of each published file."""


@dataclass(frozen=True, slots=True)
class Row:
    """A question.

    Attributes:
        film: Stem of the film's name, such as `sample_7_real`.
        path: The film as the file names it.
        number: Place among the questions of the film, in the order of the file.
        task: Canonical name of the task.
        question, options, answer: As published; no options for the proactive task.
        at: Second at which it is asked.
        stamp: The time stamp as published.
        due: Second at which a proactive answer is due.
        output: The proactive answer.
    """

    film: str
    path: str
    number: int
    task: str
    question: str
    options: tuple[str, ...]
    answer: str | None
    at: float
    stamp: str
    due: float | None = None
    output: str | None = None

    @property
    def id(self) -> str:
        """Unlike that of any other row."""
        return f"{self.film}/{self.number}"


def read_rows(path: Path, out: Collector, as_published: bool) -> list[Row]:
    """All sound rows of a file; the others are problems.

    Raises:
        ConfigError: The file is none of StreamingBench's.
    """
    rows: list[Row] = []
    numbers: dict[str, int] = {}
    seen = 0
    entries = _csv_entries(path) if path.suffix.lower() == ".csv" else _json_entries(path)
    for where, entry, question in entries:
        seen += 1
        row = out.row(where, lambda e=entry, q=question: _row(e, q), question)  # type: ignore[misc]
        if row is None:
            continue
        number = numbers[row.film] = numbers.get(row.film, -1) + 1
        rows.append(_fixed(row, number, where, out, as_published))
    expected = QUESTIONS.get(path.name, seen)
    if seen != expected:
        out.note(COUNT, path.name, f"{seen} questions, {expected} were published")
    return rows


def task_name(name: str) -> str:
    """The canonical name of a task, however it is written; the name itself if it is none."""
    plain = name.replace("_", " ").strip().casefold().removesuffix(" understanding")
    for task in TASKS:
        if task.casefold().removesuffix(" understanding") == plain:
            return task
    return name


def _json_entries(path: Path) -> Iterator[tuple[str, Any, Any]]:
    content = read_json_file(path)
    if not isinstance(content, list):
        raise ConfigError(
            f"[eval] {path} must hold a list of videos, got {type(content).__name__}; take the "
            "questions_*.json of StreamingBench"
        )
    flat = [e for outer in content for e in (outer if isinstance(outer, list) else [outer])]
    for index, entry in enumerate(flat):
        where = f"{path.name} entry {index}"
        questions = entry.get("questions") if isinstance(entry, dict) else None
        if not isinstance(questions, list):
            yield where, entry, None
            continue
        for number, question in enumerate(questions):
            yield f"{where} question {number}", entry, question


def _csv_entries(path: Path) -> Iterator[tuple[str, Any, Any]]:
    columns, rows = read_csv_file(path)
    if not {"question_id", "question", "time_stamp"} <= set(columns):
        raise ConfigError(
            f"[eval] {path} must have columns question_id, question and time_stamp, got "
            f"{', '.join(columns)}"
        )
    for index, row in enumerate(rows):
        yield f"{path.name} row {index}", row, row


def _row(entry: Any, question: Any) -> Row:
    """A row of an entry and one of its questions; any error of Python's means it is malformed."""
    if not isinstance(entry, dict) or not isinstance(question, dict):
        raise ValueError("must be an object with a list of questions")
    task = task_name(str(question["task_type"]))
    path = str(entry.get("video_path") or entry.get("video") or "")
    if not path:
        number = str(question["question_id"]).split("_")[-2]
        path = f"sample_{number}_{_kind(task)}.mp4"
    words = question["question"]
    if not isinstance(words, str) or not words.strip():
        raise ValueError(f"question must be text, got {words!r}")
    stamp = str(question["time_stamp"])
    due = output = None
    options: tuple[str, ...] = ()
    if task == PROACTIVE:
        due = parse_moment(question["ground_truth_time_stamp"])
        output = str(question["ground_truth_output"])
    else:
        options = _options(question["options"])
    answer = question.get("answer")
    if answer is not None and str(answer).strip():
        answer = str(answer).strip()
        if task != PROACTIVE and answer not in tuple("ABCDEFGH"):
            raise ValueError(f"answer must be a letter, got {answer!r}")
    else:
        answer = None
    film = Path(path.replace("\\", "/")).stem
    return Row(film, path, 0, task, words, options, answer, parse_moment(stamp), stamp, due, output)


def _options(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):  # a CSV holds a Python literal
        try:
            value = ast.literal_eval(value)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"options must be a list, got {value!r}") from error
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(o, str) for o in value):
        raise ValueError(f"options must be a list of at least two texts, got {value!r}")
    return tuple(value)


def _kind(task: str) -> str:
    """The word that ends the names of a task's films."""
    if task in REAL_TIME:
        return "real"
    if task in (PROACTIVE, "Sequential Question Answering"):
        return "proactive" if task == PROACTIVE else "sqa"
    ending = "" if task.endswith("Understanding") or task not in CONTEXTUAL else "_Understanding"
    return task.replace(" ", "_") + ending


def _fixed(row: Row, number: int, where: str, out: Collector, as_published: bool) -> Row:
    row = replace(row, number=number)
    if row.task not in TASKS:
        out.note(NOTE, where, f"task {row.task!r} is in no table; it counts in none of the groups")
    if as_published:
        return replace(row, options=row.options[:4])
    right = TIME_FIXES.get((row.film, row.stamp))
    if right is not None:
        out.note(FIXED, where, f"time stamp {row.stamp} of {row.film} reads {right}")
        row = replace(row, at=parse_moment(right), stamp=right)
    if len(row.options) > 4:
        options = repaired(row.options)
        out.note(FIXED, where, f"{len(row.options)} options become {len(options)}")
        row = replace(row, options=options)
    return row
