"""The benchmark: what it asks, how it marks, and what policies keep of facts in real sessions."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from omnitide.errors import ConfigError
from omnitide.evaluation.bootstrap import estimates
from omnitide.evaluation.item import Note, Question
from omnitide.evaluation.needle.benchmark import Needle, task_name
from omnitide.evaluation.needle.fact import KINDS
from omnitide.evaluation.needle.options import NeedleOptions
from omnitide.evaluation.needle.stream import NeedleStream
from omnitide.evaluation.record import Answer, Record
from omnitide.evaluation.runner import Runner, RunOptions
from omnitide.evaluation.setting import Setting

SMALL = NeedleOptions(("shape", "tone"), (0.0, 6.0), samples=2, lead=1.0, size=56)


def test_items_ask_for_the_same_facts_sooner_and_later() -> None:
    options = NeedleOptions(("text", "typed"), (2.0, 8.5, 2.0), samples=3, lead=1.0)
    dataset = Needle(options).read()
    assert dataset.problems == ()
    assert [item.id for item in dataset.items] == [
        f"{modality}-{distance}-{sample}"
        for modality in ("text", "typed")
        for distance in ("2", "8.5")
        for sample in range(3)
    ]
    assert len({item.clip for item in dataset.items}) == 12
    by_sample: dict[str, set[str]] = {}
    for item in dataset.items:
        (question,) = item.questions
        assert isinstance(question, Question)
        source = item.source
        assert isinstance(source, NeedleStream)
        assert question.expected == item.tags["answer"] == source.answer
        assert question.task == task_name(item.tags["modality"], float(item.tags["distance"]))
        assert question.at is None
        assert (source.start, source.stop) == (1.0, 4.0)
        assert source.seconds == 4.0 + float(item.tags["distance"])
        assert pickle.loads(pickle.dumps(item)) == item
        key = item.id.replace("-8.5-", "-2-")
        by_sample.setdefault(key, set()).add(source.answer)
    assert len(by_sample) == 6
    assert all(len(answers) == 1 for answers in by_sample.values())
    assert len(set.union(*by_sample.values())) > 3
    typed = dataset.items[-1]
    assert typed.events[0] == Note(f"The pass code is {typed.tags['answer']}.", 1.0)


def test_more_samples_and_distances_leave_the_others_as_they_are() -> None:
    few = {item.id: item for item in Needle(SMALL).read().items}
    more = Needle(replace(SMALL, distances=(3.0, 6.0, 0.0), samples=4)).read().items
    assert {item.id: item for item in more if item.id in few} == few
    other = Needle(replace(SMALL, seed=1, samples=8)).read().items
    assert any(item != few[item.id] for item in other if item.id in few)


def test_speech_is_taken_where_there_is_a_tool_and_missed_aloud(
    speech: Callable[[str | None], None],
) -> None:
    speech('cp tone.wav "$4"')
    options = NeedleOptions(distances=(1.0, 2.0), samples=3)
    dataset = Needle(options).read()
    assert {item.tags["modality"] for item in dataset.items} == set(KINDS)
    assert dataset.problems == ()
    said = next(item for item in dataset.items if item.tags["modality"] == "speech")
    assert isinstance(said.source, NeedleStream)
    assert said.source.stop - said.source.start == 6.0
    speech(None)
    dataset = Needle(options).read()
    assert {item.tags["modality"] for item in dataset.items} == set(KINDS) - {"speech"}
    (problem,) = dataset.problems
    assert problem.what == "speech is left out: it needs one of espeak-ng, espeak"
    assert problem.questions == 6
    with pytest.raises(ConfigError, match="--modality speech needs one of espeak-ng, espeak"):
        NeedleOptions(("speech",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modalities": ("smell",)}, "--modality must be one of text, shape, .*got 'smell'"),
        ({"distances": ()}, "--distance must be at least 0 seconds, got none"),
        ({"distances": (1.0, -2.0)}, "--distance must be at least 0 seconds, got 1, -2"),
        ({"distances": (float("nan"),)}, "--distance must be at least 0 seconds, got nan"),
        ({"samples": 0}, "--samples must be at least 1, got 0"),
        ({"lead": -1.0}, "--lead must be at least 0 seconds, got -1"),
        ({"size": 27}, "--size must be from 28 to 1024 pixels, got 27"),
        ({"size": 1025}, "--size must be from 28 to 1024 pixels, got 1025"),
        ({"seed": -1}, "--seed must be at least 0, got -1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NeedleOptions(**options)


def test_marks_and_scores_by_hand() -> None:
    """Four shapes and a typed code; 2 of 4 shapes recalled, kept 1, 1/4, 0 and 0 of 8 tokens."""
    needle = Needle(replace(SMALL, modalities=("shape", "typed"), distances=(0.0, 6.0)))
    items = {item.id: item for item in needle.read().items}
    marks: dict[str, list[Any]] = {}
    for name, right, kept in (
        ("shape-0-0", True, ((8, 8),)),
        ("shape-0-1", True, ((2, 8),)),
        ("shape-6-0", False, ((0, 8),)),
        ("shape-6-1", False, ((0, 0),)),
        ("typed-6-0", True, ()),
    ):
        item = items[name]
        reply = f"I think {item.tags['answer']}." if right else "I can't tell."
        record = Record(name, name, "full", (Answer("fact", reply, kept=kept),))
        marks[name] = needle.marks(item, record)
        assert needle.units(item, record) == []
    tasks = sorted({mark.task for found in marks.values() for mark in found})
    scores = needle.scores(tasks)
    assert len({score.name for score in scores}) == len(scores)
    found = {name: e.value for name, e in estimates(scores, marks, draws=10).items()}
    assert found["recall"] == pytest.approx(60.0)
    assert found["recall at 0 s"] == 100.0
    assert found["recall at 6 s"] == pytest.approx(100 / 3)
    assert found["recall of shape"] == 50.0
    assert found["recall of shape at 6 s"] == 0.0
    assert found["recall of typed"] == 100.0
    assert found["kept"] == pytest.approx(100 * (1 + 0.25) / 4)
    assert found["kept at 0 s"] == pytest.approx(62.5)
    assert found["kept whole at 0 s"] == 50.0
    assert found["kept of typed"] is None
    assert needle.predictions([]) == {}


@pytest.fixture(scope="module")
def records(model: Any) -> dict[tuple[str, str], list[Record]]:
    """All items of `SMALL` under three settings: by policy and distance."""
    runner = Runner(model, RunOptions())
    settings = [
        Setting("full"),
        Setting("fifo", 260, 180),
        Setting("omnipick", 260, 180, kept={"recent_units": 1, "image_sink": 2, "audio_sink": 4}),
    ]
    found: dict[tuple[str, str], list[Record]] = {}
    for item in Needle(SMALL).read().items:
        for setting in settings:
            record = runner.run(item, setting)
            found.setdefault((setting.policy, item.tags["distance"]), []).append(record)
    return found


def test_the_full_history_keeps_every_fact(
    records: dict[tuple[str, str], list[Record]],
) -> None:
    for distance in ("0", "6"):
        for record in records["full", distance]:
            assert record.error is None
            (answer,) = record.answers
            # Three seconds of 4 tokens of picture, 25 of sound and 4 markers.
            assert answer.kept == ((99, 99),)
            assert answer.asked == 4.0 + float(distance)


def test_policies_keep_of_a_fact_what_they_should(
    records: dict[tuple[str, str], list[Record]],
) -> None:
    for record in records["fifo", "0"] + records["omnipick", "0"]:
        assert record.answers[0].kept == ((99, 99),)  # 44 of prefix and 132 of stream: never cut
    for record in records["fifo", "6"]:
        assert record.answers[0].kept == ((0, 99),)
    for record in records["omnipick", "6"]:
        # Of each second the markers, two tokens of the picture and four of the sound.
        assert record.answers[0].kept == ((3 * (4 + 2 + 4), 99),)


def test_the_replies_of_a_random_model_recall_nothing(
    records: dict[tuple[str, str], list[Record]],
) -> None:
    needle = Needle(SMALL)
    items = {item.id: item for item in needle.read().items}
    for found in records.values():
        for record in found:
            assert needle.marks(items[record.item], record)[0].value == 0.0
