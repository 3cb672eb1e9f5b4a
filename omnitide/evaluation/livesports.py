"""LiveSports-3K-CC (CVPR 2025): live commentary of sports events.

A session is shown one event and comments second by second: the first turn after three seconds, with
the instructions, the title and what was said before; later turns name only their second. The
soundtrack holds the commentary that is the reference, so sound is off unless asked for; results
with sound are marked as leaky.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from omnitide.errors import ConfigError
from omnitide.evaluation.benchmark import question_key
from omnitide.evaluation.clips import Clips
from omnitide.evaluation.dataset import Collector, Dataset, Reading, find_files
from omnitide.evaluation.item import Item, Question
from omnitide.evaluation.judgement import JudgeUnit
from omnitide.evaluation.livesports_rows import (
    FILE,
    TASK,
    Spoken,
    event_item,
    event_rows,
    transcript,
)
from omnitide.evaluation.mark import Mark
from omnitide.evaluation.problem import COUNT, MALFORMED, NOTE, Problem
from omnitide.evaluation.record import Record
from omnitide.evaluation.rubrics import ALIGNMENT, WIN, alignment_prompt, pair_prompt
from omnitide.evaluation.score import Score
from omnitide.evaluation.words import chrf, repetition, rouge_l, words_of

EVENTS = 1702

PLAIN = {
    "rouge-l": ("ROUGE-L", 100.0),
    "chrf": ("chrF", 100.0),
    "speech-f1": ("speech F1, by second", 100.0),
    "words": ("words said of words due", 100.0),
    "repetition": ("repetition", 100.0),
}
"""Judge-free metrics with their names and scales."""


class LiveSports:
    """See `benchmark.Benchmark`. With a baseline, a judge compares instead of marking."""

    name = "livesports"

    def __init__(self, baseline: Path | None = None) -> None:
        """baseline: JSONL of commentaries (video_id, event_id, pred) to be compared with.

        Raises:
            ConfigError: It can't be read.
        """
        self.baseline = {} if baseline is None else _read_baseline(baseline)

    def read(self, reading: Reading) -> Dataset:
        """Read the JSON or CSV, or the folder that holds it. See `Benchmark.read`."""
        out = Collector(Clips(reading.videos))
        sound = reading.sound is True
        items: dict[str, Item] = {}
        for path in find_files(reading.data, (FILE,), f"LiveSports-3K's {FILE}"):
            rows = event_rows(path)
            if len(rows) != EVENTS and path.name == FILE:
                out.note(COUNT, path.name, f"{len(rows)} events, {EVENTS} were published")
            for index, row in enumerate(rows):
                where = f"{path.name} event {index}"
                item = out.row(where, lambda r=row, w=where: event_item(r, sound, w, out), row)  # type: ignore[misc]
                if item is not None and item.id in items:
                    what = f"{item.id} stands twice; the first is taken"
                    out.problems.append(Problem(MALFORMED, where, what, 1))
                elif item is not None:
                    items[item.id] = item
        if sound:
            what = "the sound holds the commentary that is the reference: scores are leaky"
            out.note(NOTE, self.name, what)
        return Dataset(tuple(items.values()), tuple(out.problems))

    def marks(self, item: Item, record: Record) -> list[Mark]:
        """Likeness to the human commentary, when it speaks, and how much."""
        said, spoken = commentary(record), _spoken(item)
        reference = item.tags["reference"]
        values = {
            "rouge-l": rouge_l(said, reference),
            "chrf": chrf(said, reference),
            "speech-f1": _speech_f1(item, record, spoken),
            "words": len(words_of(said)) / max(len(words_of(reference)), 1),
            "repetition": repetition(said),
        }
        task, key = item.questions[0].task, question_key(item, TASK)
        return [Mark(key, task, name, value) for name, value in values.items()]

    def units(self, item: Item, record: Record) -> list[JudgeUnit]:
        """Semantic alignment, 0 to 100; with a baseline two comparisons, in both orders."""
        said, reference = commentary(record), item.tags["reference"]
        task, key = item.questions[0].task, question_key(item, TASK)
        if not self.baseline:
            prompt = alignment_prompt(said, reference)
            return [JudgeUnit(key, task, prompt, marks=dict(ALIGNMENT))]
        other = self.baseline.get(item.id, "")
        metric = {WIN: (0, 1)}
        return [
            JudgeUnit(f"{key}/{order}", task, pair_prompt(*pair, reference), metric, choices)
            for order, pair, choices in (
                ("AB", (said, other), {"A": 1.0, "B": 0.0, "tie": 0.0}),
                ("BA", (other, said), {"A": 0.0, "B": 1.0, "tie": 0.0}),
            )
        ]

    def scores(self, tasks: Sequence[str]) -> tuple[Score, ...]:
        """Judge's alignment or win rate, then the judge-free ones."""
        found = []
        for task in tasks:
            found.append(Score(f"{task}, alignment (judge)", "alignment", (task,), head=True))
            found.append(Score(f"{task}, win rate (judge)", WIN, (task,), head=True))
            found += [
                Score(f"{task}, {name}", metric, (task,), scale=scale, head=True)
                for metric, (name, scale) in PLAIN.items()
            ]
        return tuple(found)

    def predictions(self, pairs: Sequence[tuple[Item, Record]]) -> Mapping[str, str]:
        """A JSON line for each event: video_id, event_id, begin, end, pred."""
        lines = []
        for item, record in pairs:
            tags = item.tags
            event = int(tags["event"]) if tags["event"].isdecimal() else tags["event"]
            row = {"video_id": tags["video"], "event_id": event, "begin": float(tags["begin"])}
            lines.append(json.dumps({**row, "end": float(tags["end"]), "pred": commentary(record)}))
        return {"livesports.jsonl": "".join(line + "\n" for line in lines)}


def commentary(record: Record) -> str:
    """All turns that say something, joined; a turn of dots keeps silent."""
    turns = (_words(answer.text) for answer in record.answers)
    return " ".join(turn for turn in turns if turn)


def _words(turn: str) -> str:
    """A turn without the dots that end it."""
    return re.sub(r"[\s.\u2026]*(\.\.\.|\u2026)[\s.\u2026]*$", "", turn.strip()).strip()


def _spoken(item: Item) -> Spoken:
    return transcript(item.tags["spoken"])


def _speech_f1(item: Item, record: Record, spoken: Spoken) -> float:
    """F1 of the seconds in which something is said, against those in which the human speaks.

    A turn stands for the second (the first turn: the seconds) before it.
    """
    begin = float(item.tags["begin"])
    human = {
        second
        for start, stop, _ in spoken
        for second in range(max(int(start - begin), 0), int(stop - begin) + 1)
        if stop > begin + second and begin + second < float(item.tags["end"])
    }
    model: set[int] = set()
    previous = begin
    moments = {q.id: q.at for q in item.questions if isinstance(q, Question)}
    for answer in record.answers:
        at = moments[answer.question] or previous
        if _words(answer.text):
            model |= set(range(round(previous - begin), max(round(at - begin), 1)))
        previous = at
    shared = len(human & model)
    return 2 * shared / (len(human) + len(model)) if human or model else 1.0


def _read_baseline(path: Path) -> dict[str, str]:
    found = {}
    for index, row in enumerate(event_rows(path)):
        try:
            found[f"{row['video_id']}_{row['event_id']}"] = str(row["pred"])
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"[eval] --baseline {path} line {index + 1} must hold video_id, event_id and pred"
            ) from error
    if not found:
        raise ConfigError(f"[eval] --baseline {path} holds no commentary")
    return found
