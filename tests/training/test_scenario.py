"""Drawn scripts: their form, their splits, and what is asked how often."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from training.bank.bank import FIRST_SENTENCE, NUM_COLUMNS, column
from training.world.grounds import CROPS, FIRST_PLAIN, NUM_GROUNDS, PHOTOGRAPHS, WAVE_PHASES
from training.world.questions.wordings import TASKS
from training.world.scenario import draw_script
from training.world.script import Script
from training.world.vocabulary import HELD_SHAPES, SHAPE_NAMES, held_pair
from training.world.voices import VOICES

SPOKEN = ("speech", "sentence", "repeat")


def scripts(split: str, count: int = 60, units: int = 30, **options: Any) -> list[Script]:
    return [
        draw_script(np.random.default_rng(s), units, split, 60, **options) for s in range(count)
    ]


def test_a_seed_gives_the_same_script_and_takes_one_number() -> None:
    one, other = np.random.default_rng(7), np.random.default_rng(7)
    assert draw_script(one, 12, "train", 20) == draw_script(other, 12, "train", 20)
    expected = np.random.default_rng(7)
    expected.integers(2**62)
    assert one.integers(1000) == expected.integers(1000)


@pytest.mark.parametrize("units", [1, 2, 5, 46])
def test_a_script_has_a_picture_and_a_sound_a_unit_and_all_else_in_order(units: int) -> None:
    for seed in range(20):
        script = draw_script(np.random.default_rng(seed), units, "train", 2 * units)
        assert len(script.pictures) == len(script.sounds) == units
        asked = [question.after for question in script.questions]
        typed = [text.after for text in script.typed]
        assert asked == sorted(asked)
        assert typed == sorted(set(typed))
        assert len(asked) <= 2 * units
        assert all(0 <= after < units for after in asked)
        assert all(0 <= after < units - 1 for after in typed)
        inline = [question.after for question in script.questions if question.inline]
        assert len(inline) == len(set(inline))
        assert not set(inline) & set(typed)


def test_long_streams_have_as_many_questions_as_wanted_and_none_twice() -> None:
    for script in scripts("train"):
        assert len(script.questions) == 60
        assert len({(q.after, q.prompt) for q in script.questions}) == 60


def test_training_never_shows_what_is_held_out() -> None:
    pairs = [
        (picture.text, sound.text)
        for script in scripts("train", 150)
        for picture, sound in zip(script.pictures, script.sounds, strict=True)
        if picture.kind == "shape"
    ]
    assert {shape for shape, _ in pairs} == set(SHAPE_NAMES) - HELD_SHAPES
    assert not any(held_pair(shape, word) for shape, word in pairs)
    words = " ".join(q.prompt + q.answer for s in scripts("train") for q in s.questions)
    assert not any(shape in words for shape in HELD_SHAPES)


def test_the_test_split_shows_what_training_never_does() -> None:
    pairs = [
        (picture.text, sound.text)
        for script in scripts("test", 150)
        for picture, sound in zip(script.pictures, script.sounds, strict=True)
        if picture.kind == "shape"
    ]
    assert {shape for shape, _ in pairs} >= HELD_SHAPES
    assert any(held_pair(shape, word) for shape, word in pairs)


@pytest.mark.parametrize("split", ["train", "tune", "test"])
def test_voices_and_photographs_are_those_of_the_split(split: str) -> None:
    drawn = scripts(split)
    sounds = [sound for script in drawn for sound in script.sounds if sound.kind in SPOKEN]
    expected = {row for row, voice in enumerate(VOICES) if voice.split == split}
    assert {sound.voice for sound in sounds} == expected
    assert all(VOICES[sound.voice].sentences for sound in sounds if sound.kind != "speech")
    grounds = {picture.ground for script in drawn for picture in script.pictures}
    assert min(grounds) >= -WAVE_PHASES
    assert max(grounds) < NUM_GROUNDS
    photographs = {ground // CROPS for ground in grounds if 0 <= ground < FIRST_PLAIN}
    assert photographs == {i for i, p in enumerate(PHOTOGRAPHS) if p.split == split}
    assert any(ground < 0 for ground in grounds)
    assert any(ground >= FIRST_PLAIN for ground in grounds)


def test_a_sentence_takes_two_units_of_one_voice() -> None:
    halves = 0
    for script in scripts("train", 150):
        for now, after in zip(script.sounds, script.sounds[1:], strict=False):
            assert (now.kind == "sentence") == (after.kind == "repeat")
            if now.kind == "sentence":
                halves += 1
                assert (now.text, now.voice) == (after.text, after.voice)
    assert halves > 10


@pytest.mark.parametrize("split", ["train", "tune", "test"])
def test_the_bank_has_a_column_for_all_that_is_said(split: str) -> None:
    said = {
        column(sound.kind or "", sound.text)
        for script in scripts(split, 300, 12)
        for sound in script.sounds
        if sound.kind in SPOKEN
    }
    assert said > set(range(FIRST_SENTENCE))
    assert max(said) < NUM_COLUMNS


def test_only_single_shapes_move() -> None:
    moving = Counter(
        (picture.kind, picture.count)
        for script in scripts("train")
        for picture in script.pictures
        if picture.motion is not None
    )
    assert set(moving) == {("shape", 1)}
    counts = {p.count for s in scripts("train") for p in s.pictures if p.kind == "shape"}
    assert counts == {1, 2, 3, 4, 5}


def test_yes_and_no_are_about_as_frequent() -> None:
    answers = Counter(
        question.answer
        for script in scripts("train", 150, tasks=("was_seen", "was_heard"))
        for question in script.questions
    )
    assert set(answers) == {"yes", "no"}
    assert 0.4 < answers["yes"] / answers.total() < 0.6


def test_letters_of_choices_are_about_as_frequent() -> None:
    answers = Counter(q.answer for s in scripts("train", tasks=("choice",)) for q in s.questions)
    assert set(answers) == set("ABCD")
    assert all(0.2 < count / answers.total() < 0.3 for count in answers.values())


def test_questions_reach_all_distances() -> None:
    bound = [
        question.distance
        for script in scripts("train", 80, 46, tasks=("bind_heard_seen",))
        for question in script.questions
    ]
    counts = np.histogram(bound, [0, 1, 5, 10, 20, 30, 46])[0]
    assert (counts > 30).all()


@pytest.mark.parametrize("task", TASKS)
def test_a_single_task_may_be_asked_alone(task: str) -> None:
    questions = [q for script in scripts("tune", 12, 20, tasks=(task,)) for q in script.questions]
    assert {question.task for question in questions} == {task}


def test_once_leaves_no_answer_in_the_history() -> None:
    told = 0
    for script in scripts("test", 60, 46, once=True):
        plain = [q for q in script.questions if q.distance >= 0 and q.answer.isdigit()]
        numbers = [q.answer for q in plain if len(q.answer) == 5]
        told += len(numbers)
        # Numbers of five digits hardly ever come twice, so each is one fact.
        assert len(numbers) == len(set(numbers))
    assert told > 30


def test_easy_questions_lead_in_short_streams_and_recall_in_long_ones() -> None:
    def share(units: int) -> float:
        drawn = [draw_script(np.random.default_rng(s), units, "train", 20) for s in range(60)]
        asked = [question for script in drawn for question in script.questions]
        return sum(question.distance > 0 for question in asked) / len(asked)

    assert share(2) < 0.2 < 0.5 < share(46)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((0, "train", 1), "units >= 1"),
        ((1, "train", -1), "questions >= 0"),
        ((1, "dev", 1), "split must be one of train, tune, test"),
        ((1, "train", 1, ("sing",)), "tasks must be of wordings.TASKS; got sing"),
    ],
)
def test_bad_arguments_are_refused(arguments: tuple[Any, ...], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        draw_script(np.random.default_rng(0), *arguments)
