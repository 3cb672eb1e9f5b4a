"""SVBench (arXiv 2502.10810): dialogues in chains of questions, and paths from chain to chain.

Track "dialogue": a session follows a film and is asked each chain at its end. Track "streaming": a
session follows one path of a film. History holds the model's own answers. Answers of the test set
may be absent; replies are then recorded for the authors' form and only agreement between settings
is scored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omnitide.errors import ConfigError
from omnitide.evaluation.benchmark import question_key
from omnitide.evaluation.clips import SUFFIXES, Clips
from omnitide.evaluation.dataset import Collector, Dataset, Reading, read_csv_file, read_json_file
from omnitide.evaluation.film import Film
from omnitide.evaluation.item import Item, Question
from omnitide.evaluation.judgement import JudgeUnit
from omnitide.evaluation.mark import Mark
from omnitide.evaluation.moment import parse_moment
from omnitide.evaluation.problem import COUNT, MALFORMED, NOTE, Problem
from omnitide.evaluation.record import Record
from omnitide.evaluation.rubrics import SVBENCH_MARKS, svbench_prompt
from omnitide.evaluation.score import Score
from omnitide.evaluation.words import rouge_l, token_f1

TRACKS = ("dialogue", "streaming")
LANGUAGES = ("EN", "ZH")
MAX_TOKENS = 128
TEST_VIDEOS = 200

TOKEN_F1, ROUGE_L = "token-f1", "rouge-l"


class SVBench:
    """See `benchmark.Benchmark`. `Reading.track`: "dialogue" or "streaming", with "-zh" or not."""

    name = "svbench"

    def read(self, reading: Reading) -> Dataset:
        """Read the data set's folder. See `Benchmark.read`."""
        track, _, language = (reading.track or TRACKS[0]).partition("-")
        language = (language or LANGUAGES[0]).upper()
        if track not in TRACKS or language not in LANGUAGES:
            raise ConfigError(
                f"[eval] --track must be {' or '.join(TRACKS)}, with -zh for Chinese; got "
                f"{reading.track!r}"
            )
        root = _root(reading.data)
        out = Collector(Clips(reading.videos))
        folder = _folder(root, "Dialogue" if track == "dialogue" else "Streaming", language)
        items: list[Item] = []
        for name, film in _videos(root, folder, language, out):
            file = folder / f"{name}.json"
            if not file.is_file():
                out.problems.append(Problem(MALFORMED, name, f"no {file.name} in {folder}"))
                continue
            chains = _chains(file, track, out)
            count = sum(len(chain) for chain in chains)
            path = out.film(name, count, film or f"{name}.mp4", name) if count else None
            if path is None:
                continue
            source = Film(path, sound=reading.sound is True)
            if track == "dialogue":
                questions = tuple(question for chain in chains for question in chain)
                items.append(Item(name, name, source, questions))
            else:
                items += [
                    Item(f"{name}/path{index}", name, source, tuple(path_questions))
                    for index, path_questions in enumerate(chains)
                    if path_questions
                ]
        return Dataset(tuple(items), tuple(out.problems))

    def marks(self, item: Item, record: Record) -> list[Mark]:
        """Overlap of words with the reference, where there is one."""
        answers = {answer.question: answer.text for answer in record.answers}
        found = []
        for event in item.questions:
            if event.expected is not None:
                key, reply = question_key(item, event.id), answers[event.id]
                found.append(Mark(key, event.task, TOKEN_F1, token_f1(reply, event.expected)))
                found.append(Mark(key, event.task, ROUGE_L, rouge_l(reply, event.expected)))
        return found

    def units(self, item: Item, record: Record) -> list[JudgeUnit]:
        """One a chain of a dialogue, one a path."""
        answers = {answer.question: answer.text for answer in record.answers}
        chains: dict[str, list[Question]] = {}
        for event in item.questions:
            if isinstance(event, Question) and event.expected is not None:
                chains.setdefault(event.tags["chain"], []).append(event)
        return [
            JudgeUnit(
                question_key(item, chain),
                questions[0].task,
                svbench_prompt(
                    [(q.tags["words"], q.expected or "", answers[q.id]) for q in questions]
                ),
                marks=dict(SVBENCH_MARKS),
            )
            for chain, questions in chains.items()
        ]

    def scores(self, tasks: Sequence[str]) -> tuple[Score, ...]:
        """Judge's marks, 0 to 100, and overlap of words."""
        found = []
        for task in tasks:
            found += [Score(f"{task}, {m} (judge)", m, (task,), head=True) for m in SVBENCH_MARKS]
            found.append(Score(f"{task}, token F1", TOKEN_F1, (task,), head=True))
            found.append(Score(f"{task}, ROUGE-L", ROUGE_L, (task,), head=True))
        return tuple(found)

    def predictions(self, pairs: Sequence[tuple[Item, Record]]) -> Mapping[str, str]:
        """A file for each video: a list of chains with questions, gt_answers and answers."""
        films: dict[str, list[dict[str, Any]]] = {}
        for item, record in pairs:
            answers = {answer.question: answer.text for answer in record.answers}
            chains: dict[str, dict[str, Any]] = {}
            for event in item.questions:
                empty: dict[str, Any] = {"questions": [], "gt_answers": [], "answers": []}
                chain = chains.setdefault(event.tags["chain"], empty)
                chain["questions"].append(event.tags["words"])
                chain["gt_answers"].append(event.expected or "")
                chain["answers"].append(answers.get(event.id, ""))
            films.setdefault(item.clip, []).extend(chains.values())
        return {f"svbench/{name}.json": json.dumps(c, indent=1) + "\n" for name, c in films.items()}


def _root(given: Sequence[Path]) -> Path:
    if len(given) != 1 or not given[0].is_dir():
        raise ConfigError(
            "[eval] --data of svbench must be one folder, that with Dialogue, Streaming and Meta; "
            f"got {', '.join(map(str, given))}"
        )
    nested = given[0] / "SVBench"
    return nested if nested.is_dir() else given[0]


def _folder(root: Path, kind: str, language: str) -> Path:
    folder = root / kind / f"{kind}_{language}"
    if not folder.is_dir():
        raise ConfigError(f"[eval] {root} must hold {kind}/{kind}_{language}; it does not")
    return folder


def _videos(
    root: Path, folder: Path, language: str, out: Collector
) -> Iterator[tuple[str, str | None]]:
    """Names of the test videos with the paths of their films; all of the folder without a list.

    The columns of the list that name question files are mislabelled, so only names are taken.
    """
    meta = root / "Meta" / f"Meta_{language}" / "meta_test.csv"
    if not meta.is_file():
        out.note(NOTE, str(folder), f"there is no {meta.name}; every file of the folder is read")
        yield from ((path.stem, None) for path in sorted(folder.glob("*.json")))
        return
    _, rows = read_csv_file(meta)
    if len(rows) != TEST_VIDEOS:
        out.note(COUNT, meta.name, f"{len(rows)} videos, {TEST_VIDEOS} were published")
    for index, row in enumerate(rows):
        name = (row.get("Video_Name") or "").strip()
        if not name:
            problem = Problem(MALFORMED, f"{meta.name} row {index}", "has no Video_Name; left out")
            out.problems.append(problem)
            continue
        film = (row.get("Path_of_Video") or "").strip().removeprefix("./").removeprefix("SVBench/")
        stem = Path(name).stem if Path(name).suffix.lower() in SUFFIXES else name
        yield stem, film or None


def _chains(file: Path, track: str, out: Collector) -> list[list[Question]]:
    """The questions of a file, by chain or by path; what is malformed is left out."""
    content = read_json_file(file)
    if not isinstance(content, list):
        out.problems.append(Problem(MALFORMED, file.name, "must hold a list; left out"))
        return []
    read = _dialogue if track == "dialogue" else _path
    found: list[list[Question]] = []
    for index, entry in enumerate(content):
        if entry == {} or (isinstance(entry, dict) and entry.get("chain") == {}):
            out.note(NOTE, f"{file.name} entry {index}", "is empty, as some are published")
            found.append([])
            continue
        where = f"{file.name} entry {index}"
        chain: list[Question] = (
            out.row(where, lambda i=index, e=entry: read(i, e), entry) or []  # type: ignore[misc]
        )
        moments = [question.at or 0.0 for question in chain]
        if moments != sorted(moments):
            out.note(NOTE, where, "goes back in time; asked in the order of moments")
        found.append(chain)
    return found


def _dialogue(index: int, entry: Any) -> list[Question]:
    chain = _object(_object(entry)["chain"])
    at = parse_moment(entry["qac_timestamps_end"])
    answers = _answers(chain)
    return [
        _question(f"{index}.{k}", "dialogue", str(index), words, answer, at)
        for k, (words, answer) in enumerate(zip(_texts(chain["questions"]), answers, strict=True))
    ]


def _path(index: int, entry: Any) -> list[Question]:
    _object(entry)
    moments = [parse_moment(stop) for _, stop in entry["timestamps"]]
    words, answers = _texts(entry["questions"]), _answers(entry)
    return [
        _question(f"{index}.{k}", "streaming", str(index), text, answer, at)
        for k, (text, answer, at) in enumerate(zip(words, answers, moments, strict=True))
    ]


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"must be an object, got {value!r:.80}")
    return value


def _texts(values: Any) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(v, str) and v.strip() for v in values):
        raise ValueError(f"questions must be texts, got {values!r:.80}")
    return values


def _answers(holder: Any) -> list[str | None]:
    """The answers, or as many times None where there are none."""
    answers = holder.get("answers")
    if not answers:
        return [None] * len(holder["questions"])
    if len(answers) != len(holder["questions"]):
        raise ValueError(f"{len(holder['questions'])} questions have {len(answers)} answers")
    return [str(a) if a is not None and str(a).strip() else None for a in answers]


def _question(
    name: str, task: str, chain: str, words: str, answer: str | None, at: float
) -> Question:
    tags = {"chain": chain, "words": words}
    prompt = f"{words} Answer in one or two sentences."
    return Question(name, prompt, at, answer, task, MAX_TOKENS, tags=tags)
