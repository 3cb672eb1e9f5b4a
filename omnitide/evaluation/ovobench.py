"""OVO-Bench (`ovo_bench_new.json`): choices about the past and the present, and probes to come.

Under "stream" a session follows a film once with all its probes at their moments. Under "official"
every probe has a session of its own that sees everything up to it: the film up to that second, or
the authors' cut clip `{id}.mp4` or `{id}_{i}.mp4` where the film is not there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omnitide.errors import ConfigError
from omnitide.evaluation.benchmark import question_key
from omnitide.evaluation.choices import LETTERS, named_letter
from omnitide.evaluation.clips import Clips
from omnitide.evaluation.dataset import Collector, Dataset, Reading, find_files, read_json_file
from omnitide.evaluation.film import Film
from omnitide.evaluation.item import Item, Question
from omnitide.evaluation.judgement import JudgeUnit
from omnitide.evaluation.mark import Mark
from omnitide.evaluation.moment import parse_moment
from omnitide.evaluation.problem import COUNT, MALFORMED, Problem
from omnitide.evaluation.record import Record
from omnitide.evaluation.score import Score

BACKWARD = ("EPM", "HLD", "ASI")
REAL_TIME = ("STU", "OJR", "ATR", "FPD", "ACR", "OCR")
FORWARD = ("REC", "SSR", "CRR")
GROUPS = {"backward": BACKWARD, "real-time": REAL_TIME, "forward": FORWARD}

OFFICIAL, ROBUST = "official", "robust"

FILE = "ovo_bench_new.json"
RECORDS = 1640


@dataclass(frozen=True, slots=True)
class Probe:
    """One question of a record.

    Attributes:
        id: `{id}` of the record, or `{id}_{i}` of its i-th probe: the name of the cut clip.
        record: The record.
        question: As it is asked.
    """

    id: str
    record: dict[str, Any]
    question: Question


class OVOBench:
    """See `benchmark.Benchmark`."""

    name = "ovobench"

    def read(self, reading: Reading) -> Dataset:
        """Read the annotation file, or the folder that holds it. See `Benchmark.read`."""
        out = Collector(Clips(reading.videos))
        probes: list[Probe] = []
        for path in find_files(reading.data, (FILE,), f"OVO-Bench's {FILE}"):
            content = read_json_file(path)
            if not isinstance(content, list):
                raise ConfigError(f"[eval] {path} must hold a list of records; take {FILE}")
            records = content
            if len(records) != RECORDS and path.name == FILE:
                out.note(COUNT, path.name, f"{len(records)} records, {RECORDS} were published")
            for index, record in enumerate(records):
                where = f"{path.name} record {index}"
                probes += out.row(where, lambda r=record: _probes(r), record) or []  # type: ignore[misc]
        names = [probe.id for probe in probes]
        for name in sorted({n for n in names if names.count(n) > 1}):
            what = "its id stands twice; the first is taken"
            out.problems.append(Problem(MALFORMED, name, what, names.count(name) - 1))
        probes = list({probe.id: probe for probe in reversed(probes)}.values())[::-1]
        sound = reading.sound is True
        make = _streams if reading.protocol == "stream" else _clips
        return Dataset(tuple(make(probes, sound, out)), tuple(out.problems))

    def marks(self, item: Item, record: Record) -> list[Mark]:
        """The authors' rule and a strict one."""
        answers = {answer.question: answer.text for answer in record.answers}
        found = []
        for event in item.questions:
            if event.expected is None:
                continue
            key, reply = question_key(item, event.id), answers[event.id]
            official, robust = _right(event.task, event.expected, reply, event.tags)
            found.append(Mark(key, event.task, OFFICIAL, float(official)))
            found.append(Mark(key, event.task, ROBUST, float(robust)))
        return found

    def units(self, item: Item, record: Record) -> list[JudgeUnit]:
        """None: no judge is needed."""
        return []

    def scores(self, tasks: Sequence[str]) -> tuple[Score, ...]:
        """Tasks over probes, groups over tasks, and the mean of the groups."""
        found: list[Score] = []
        for metric, ending in ((OFFICIAL, ""), (ROBUST, " (robust)")):
            groups = []
            for group, members in GROUPS.items():
                has = [task for task in members if task in tasks]
                found += [Score(task + ending, metric, (task,)) for task in has]
                if has:
                    name, of = group + ending, tuple(task + ending for task in has)
                    found.append(Score(name, of=of, head=True))
                    groups.append(name)
            if groups:
                found.append(Score("all" + ending, of=tuple(groups), head=True))
        return tuple(found)

    def predictions(self, pairs: Sequence[tuple[Item, Record]]) -> Mapping[str, str]:
        """One JSON object with lists `backward`, `realtime` and `forward`."""
        lists: dict[str, list[dict[str, Any]]] = {"backward": [], "realtime": [], "forward": []}
        forward: dict[str, dict[str, Any]] = {}
        for item, record in pairs:
            answers = {answer.question: answer.text for answer in record.answers}
            for event in item.questions:
                source = json.loads(event.tags["record"])
                reply = answers.get(event.id)
                if event.task in FORWARD:
                    whole = forward.setdefault(str(source["id"]), source)
                    whole["test_info"][int(event.tags["probe"])]["response"] = reply
                    continue
                group = "backward" if event.task in BACKWARD else "realtime"
                truth = LETTERS[int(source["gt"])] if "gt" in source else None
                entry = {"id": source["id"], "video": source["video"], "task": source["task"]}
                entry |= {"question": source["question"], "response": reply, "ground_truth": truth}
                lists[group].append(entry)
        lists["forward"] = list(forward.values())
        return {"ovobench.json": json.dumps(lists, indent=1) + "\n"}


def _probes(record: Any) -> list[Probe]:
    """All questions of a record; any error of Python's means that it is malformed."""
    if not isinstance(record, dict):
        raise ValueError("must be an object")
    task, name = str(record["task"]).upper(), str(record["id"])
    str(record["video"])
    kept = {key: value for key, value in record.items() if not key.startswith("response")}
    if task in FORWARD:
        found = []
        for index, info in enumerate(record["test_info"]):
            prompt, expected = _forward(task, record, info)
            at = parse_moment(info["realtime"])
            tags = {"record": json.dumps(kept), "probe": str(index)}
            probe = f"{name}_{index}"
            question = Question(probe, prompt, at, expected, task, tags=tags)
            found.append(Probe(probe, record, question))
        return found
    if task not in (*BACKWARD, *REAL_TIME):
        raise ValueError(f"task must be one of {', '.join((*BACKWARD, *REAL_TIME, *FORWARD))}, "
                         f"got {task!r}")  # fmt: skip
    if not isinstance(record["options"], list):
        raise ValueError(f"options must be a list, got {record['options']!r}")
    options = [str(option) for option in record["options"]]
    if not 2 <= len(options) <= len(LETTERS):
        raise ValueError(f"options must be 2 to {len(LETTERS)}, got {len(options)}")
    truth = record.get("gt")
    if truth is not None and not 0 <= int(truth) < len(options):
        raise ValueError(f"gt must name one of {len(options)} options, got {truth}")
    lines = [f"{letter}. {text}" for letter, text in zip(LETTERS, options, strict=False)]
    prompt = "\n".join(
        (
            f"Question: {_text(record, 'question')}",
            "Options:",
            *lines,
            "Reply with the letter of the right option alone. The best option is:",
        )
    )
    expected = None if truth is None else LETTERS[int(truth)]
    tags = {"record": json.dumps(kept), "options": json.dumps(options)}
    at = parse_moment(record["realtime"])
    return [Probe(name, record, Question(name, prompt, at, expected, task, tags=tags))]


def _text(holder: dict[str, Any], key: str) -> str:
    found = holder[key]
    if not isinstance(found, str) or not found.strip():
        raise ValueError(f"{key} must be text, got {found!r}")
    return found


def _forward(task: str, record: dict[str, Any], info: dict[str, Any]) -> tuple[str, str | None]:
    """Prompt and expected reply of a probe."""
    if task == "REC":
        count = info.get("count")
        return (
            f"You are watching a video. So far, how many times has someone done this: "
            f"{_text(record, 'activity')}? Reply with a number alone.",
            None if count is None else str(int(count)),
        )
    kind = info.get("type")
    expected = None if kind is None else "Yes" if int(kind) else "No"
    if task == "SSR":
        return (
            f"You are watching a tutorial: {record.get('tutorial', '')}. Is this step being done "
            f"right now: {_text(info, 'step')}? Reply with Yes or No alone.",
            expected,
        )
    return (
        "Does what you have seen so far suffice to answer this question: "
        f"{_text(record, 'question')} Reply with Yes or No alone.",
        expected,
    )


def _streams(probes: Sequence[Probe], sound: bool, out: Collector) -> list[Item]:
    films: dict[str, list[Probe]] = {}
    for probe in probes:
        films.setdefault(str(probe.record["video"]), []).append(probe)
    items = []
    for video, found in films.items():
        path = out.film(video, len(found), video)
        if path is not None:
            events = tuple(probe.question for probe in found)
            items.append(Item(video, video, Film(path, sound=sound), events))
    return items


def _clips(probes: Sequence[Probe], sound: bool, out: Collector) -> list[Item]:
    items = []
    for probe in probes:
        video, at = str(probe.record["video"]), probe.question.at or 0.0
        film = out.clips.find(video)
        path = str(film) if film else out.film(probe.id, 1, f"{probe.id}.mp4", video)
        if path is not None:
            stop = max(at, 1.0) if film else None  # a cut clip ends where it must
            items.append(Item(probe.id, video, Film(path, 0.0, stop, sound), (probe.question,)))
    return items


def _right(task: str, expected: str, reply: str, tags: dict[str, str]) -> tuple[bool, bool]:
    """Whether a reply is right by the authors' rule, and by a strict one."""
    if task == "REC":
        digits = "".join(re.findall(r"\d", reply))
        numbers = re.findall(r"\d+", reply)
        return digits == expected, len(set(numbers)) == 1 and numbers[0].lstrip("0") == (
            expected.lstrip("0")
        )
    if task in FORWARD:
        words = re.findall(r"[a-z]+", reply.lower())
        official = expected in reply or reply.strip() == expected[0]
        return official, bool(words) and words[0] in (expected.lower(), expected[0].lower())
    options = json.loads(tags["options"])
    return expected in reply, named_letter(reply, options) == expected
