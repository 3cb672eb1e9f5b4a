"""When a reply counts as knowing a fact, case by case, and what facts are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from omnitide.evaluation.needle.fact import (
    BEEPS,
    COLOURS,
    DIGITS,
    HEARD,
    KINDS,
    SEEN,
    SHAPES,
    WORDS,
    recalled,
)

CASES = [
    ("text", "anchor", "anchor", True),
    ("text", "anchor", "The word was ANCHOR.", True),
    ("text", "anchor", "anchors", False),
    ("text", "anchor", "anchor or bridge", False),
    ("text", "anchor", "bridge", False),
    ("text", "anchor", "I have seen no word", False),
    ("speech", "needle", "The code word is needle, needle.", True),
    ("digits", "48213", "48213", True),
    ("digits", "48213", "It was 48 213.", True),
    ("digits", "48213", "4-8-2-1-3", True),
    ("digits", "48213", "48213 or 48214", False),
    ("digits", "48213", "148213", False),
    ("digits", "48213", "4821", False),
    ("digits", "48213", "Of 1234567 I am not sure, but 48213 was it.", True),
    ("digits", "48213", "at 3 o'clock I saw 48213", True),
    ("typed", "48213", "Your pass code is 48,213.", True),
    ("shape", "red circle", "A red circle.", True),
    ("shape", "red circle", "circle, red", True),
    ("shape", "red circle", "a red disc", True),
    ("shape", "red circle", "a blue circle", False),
    ("shape", "red circle", "a red square", False),
    ("shape", "red circle", "a red or blue circle", False),
    ("shape", "red circle", "red", False),
    ("shape", "white cross", "a white plus sign", True),
    ("tone", "4", "4", True),
    ("tone", "4", "It beeped four times.", True),
    ("tone", "4", "four (4)", True),
    ("tone", "4", "3 or 4", False),
    ("tone", "4", "one two three four", False),
    ("tone", "4", "14", False),
    ("tone", "4", "", False),
]


@pytest.mark.parametrize(("kind", "answer", "reply", "known"), CASES)
def test_a_reply_knows_a_fact(kind: str, answer: str, reply: str, known: bool) -> None:
    assert recalled(kind, answer, reply) is known


@pytest.mark.parametrize("kind", KINDS)
def test_facts_are_drawn_from_all_there_are_and_name_themselves(kind: str) -> None:
    random = np.random.default_rng(3)
    drawn = [KINDS[kind].draw(random) for _ in range(600)]
    assert all(recalled(kind, fact, fact) for fact in drawn)
    every = {
        "text": set(WORDS),
        "speech": set(WORDS),
        "shape": {f"{colour} {shape}" for colour in COLOURS for shape in SHAPES},
        "tone": {str(count) for count in range(1, len(BEEPS) + 1)},
    }
    if kind in every:
        assert set(drawn) == every[kind]
    else:
        assert {len(fact) for fact in drawn} == {DIGITS}
        assert len(set(drawn)) > 590


def test_words_are_unlike_and_every_kind_has_its_way_in() -> None:
    assert len(set(WORDS)) == len(WORDS) == 24
    assert {len(word) for word in WORDS} == {6}
    assert {*SEEN, *HEARD, "typed"} == set(KINDS)
