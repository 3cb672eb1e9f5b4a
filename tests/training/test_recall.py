"""The benchmark of held-out scripts: what is asked when, what counts as right, what is added up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omnitide.config import MediaOptions
from omnitide.errors import ConfigError
from omnitide.evaluation.item import Item, Note
from omnitide.evaluation.mark import Mark
from omnitide.evaluation.record import Answer, Record
from omnitide.evaluation.score import evaluate, tally


@pytest.fixture
def script() -> Any:
    """Three units, with everything at once after the second one."""
    from training.world.script import Picture, Question, Script, Sound, Typed

    return Script(
        tuple(Picture(-1, None, "", None, 1, look) for look in range(3)),
        tuple(Sound(None, "", 0, look) for look in range(3)),
        (Typed(1, "The code of anchor is 482."),),
        (
            Question(0, "see", "Which shape?", "red circle", 0, True),
            Question(1, "last_text", "Which word?", "anchor", 1, True),
            Question(1, "typed_fact", "Which code?", "482", 0, False),
            Question(2, "count_shape", "How many?", "0", -1, False),
            Question(2, "caption", "Describe.", "a red circle before a grey ground", 0, False),
        ),
    )


@pytest.mark.parametrize("inline", [False, True])
def test_events_come_in_the_order_of_training(script: Any, inline: bool) -> None:
    from training.measure.recall import events_of

    events = list(events_of(script, inline))
    said = [e.text if isinstance(e, Note) else e.prompt for e in events]
    code = "The code of anchor is 482."
    word = ["Which code?", "Which word?"] if inline else ["Which word?", "Which code?"]
    assert said == ["Which shape?", code, *word, "How many?", "Describe."]
    assert [e.at for e in events] == [2.0, 4.0, 4.0, 4.0, 6.0, 6.0]
    asides = {e.prompt: e.aside for e in events if not isinstance(e, Note)}
    assert [prompt for prompt, aside in asides.items() if not aside] == (
        ["Which shape?", "Which word?"] if inline else []
    )
    watched = {e.prompt: e.watched for e in events if not isinstance(e, Note)}
    assert watched["Which shape?"] == ((0.0, 2.0),)
    assert watched["Which word?"] == ((0.0, 2.0),)
    assert watched["Which code?"] == watched["How many?"] == ()
    longest = {e.prompt: e.max_tokens for e in events if not isinstance(e, Note)}
    assert longest["Describe."] > longest["How many?"] == 12
    assert len({e.id for e in events if not isinstance(e, Note)}) == 5


@pytest.mark.parametrize(
    ("task", "answer", "reply", "right"),
    [
        ("see", "red circle", "red circle", True),
        ("see", "red circle", " Red  circle.\n", True),
        ("see", "red circle", "circle", False),
        ("see", "red circle", "red circle and blue square", False),
        ("see", "red circle", "", False),
        ("count_shape", "2", "12", False),
        ("needle_text", "anchor", "The word was ANCHOR.", True),
        ("needle_text", "anchor", "anchor or bridge", False),
        ("needle_tone", "3", "three", True),
        ("needle_typed", "48213", "48213", True),
    ],
)
def test_right_answers(task: str, answer: str, reply: str, right: bool) -> None:
    from training.measure.recall import is_right

    assert is_right(task, answer, reply) is right


@pytest.mark.parametrize(
    ("distance", "band"),
    [(-1, "none"), (0, "0"), (1, "1-3"), (3, "1-3"), (4, "4-6"), (9, "7-9"), (10, "10-14"),
     (24, "15-24"), (25, "25-"), (45, "25-")],
)  # fmt: skip
def test_bands_of_distances(script: Any, distance: int, band: str) -> None:
    from omnitide.evaluation.item import Question
    from training.measure.recall import cell_name

    question = Question("0", "What?", 2.0, task="see", tags={"distance": str(distance)})
    assert cell_name(question) == f"see|{band}"


def test_marks_of_a_record(script: Any) -> None:
    from training.measure.recall import Recall, events_of
    from training.render.stream import MadeStream

    item = Item("x", "x", MadeStream(script, "bank"), tuple(events_of(script, False)))
    answers = (
        Answer("0", "red circle", kept=((86, 86),)),
        Answer("1", "bridge", kept=((20, 80),)),
        Answer("2", "482"),
        Answer("3", "1"),
    )
    assert Recall().marks(item, Record("x", "x", "full", answers)) == [
        Mark("x#0", "see|0", "correct", 1.0),
        Mark("x#0", "see|0", "kept", 1.0),
        Mark("x#1", "last_text|1-3", "correct", 0.0),
        Mark("x#1", "last_text|1-3", "kept", 0.25),
        Mark("x#2", "typed_fact|0", "correct", 1.0),
        Mark("x#3", "count_shape|none", "correct", 0.0),
    ]


def test_scores_pool_what_counts() -> None:
    """Two tasks of which one counts: sums by hand."""
    from training.measure.recall import Recall

    marks = [
        *(Mark("q", "see|0", "correct", v) for v in (1, 1, 0, 1)),
        *(Mark("q", "see|15-24", "correct", v) for v in (0, 1)),
        *(Mark("q", "hear|25-", "correct", v) for v in (0, 0, 0, 1)),
        *(Mark("q", "see|15-24", "kept", v) for v in (0.5, 0.25)),
    ]
    cells = sorted({mark.task for mark in marks})

    def values(counted: frozenset[str] | None) -> dict[str, float]:
        scores = Recall(counted).scores(cells)
        table = tally(scores, {"clip": marks})
        found = evaluate(scores, table.sums.sum(axis=0), table.counts.sum(axis=0))
        return {s.name: round(float(v), 6) for s, v in zip(scores, found, strict=True)}

    some = values(frozenset({"see"}))
    assert some["all"] == 50.0
    assert some["counted"] == round(400 / 6, 6)
    assert some["counted, 10 units and more"] == 50.0
    assert some["kept of counted, 10 units and more"] == 37.5
    assert (some["at 0"], some["at 15-24"]) == (75.0, 50.0)
    assert np.isnan(some["at 25-"])
    assert (some["task see"], some["task hear"]) == (round(400 / 6, 6), 25.0)
    every = values(None)
    assert every["counted"] == every["all"] == 50.0
    assert every["at 25-"] == 25.0


def test_streams_don_t_depend_on_how_many_there_are() -> None:
    from training.measure.recall import Recall, RecallOptions

    options = RecallOptions(units=6, questions=5)
    few, many = Recall().read(options, 2, "bank"), Recall().read(options, 4, "bank")
    assert few.items == many.items[:2]
    assert len({item.source for item in many.items}) == 4
    other = Recall().read(RecallOptions(units=6, questions=5, seed=1), 2, "bank")
    test = Recall().read(RecallOptions("test", units=6, questions=5), 2, "bank")
    assert not {item.source for item in few.items} & {
        item.source for found in (other, test) for item in found.items
    }


def test_only_the_wanted_tasks_are_asked() -> None:
    from training.measure.recall import Recall, RecallOptions

    items = Recall().read(RecallOptions(units=8, tasks=("see", "hear")), 3, "bank").items
    assert {q.task for item in items for q in item.questions} == {"see", "hear"}


@pytest.mark.parametrize(
    ("options", "streams", "message"),
    [
        ({"split": "exam"}, 1, "--split must be one of train, tune, test"),
        ({"units": 0}, 1, "--units must be at least 1, got 0"),
        ({"questions": 0}, 1, "--questions must be at least 1, got 0"),
        ({"seed": -1}, 1, "--seed must be at least 0, got -1"),
        ({"tasks": ("fly",)}, 1, "fly"),
        ({}, 0, "--streams must be at least 1, got 0"),
    ],
)
def test_what_makes_no_sense_is_refused(options: Any, streams: int, message: str) -> None:
    from training.measure.recall import Recall, RecallOptions

    with pytest.raises(ConfigError, match=message):
        Recall().read(RecallOptions(**{"units": 3, "questions": 2} | options), streams, "bank")


def test_chunks_are_the_units_of_the_script(script: Any, made_media: Any) -> None:
    from training.render.stream import MadeStream

    with MadeStream(script, "bank").open(MediaOptions(2.0, 2.0, 112 * 112)) as clip:
        chunks = list(clip)
    assert [(c.start, c.stop) for c in chunks] == [(0.0, 2.0), (2.0, 4.0), (4.0, 6.0)]
    assert chunks[1].frame_times == (2.0, 2.5, 3.0, 3.5)
    frames, samples = made_media(script.pictures), made_media(script.sounds)
    for unit, chunk in enumerate(chunks):
        np.testing.assert_array_equal(np.stack(chunk.frames), frames[unit])
        np.testing.assert_array_equal(chunk.samples, samples[unit])
    again = list(MadeStream(script, "bank").open(MediaOptions(2.0, 2.0, 112 * 112)))
    assert all(a is b for a, b in zip(chunks, again, strict=True))


@pytest.mark.parametrize("options", [MediaOptions(1.0, 2.0), MediaOptions(2.0, 1.0)])
def test_other_units_are_refused(script: Any, options: MediaOptions) -> None:
    from training.render.stream import MadeStream

    with pytest.raises(ConfigError, match="a unit has 2 s and 2 frames a second"):
        MadeStream(script, "bank").open(options)
