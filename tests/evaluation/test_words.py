"""Likeness of texts and reading of choices and moments, by hand and by slow second versions."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from omnitide.evaluation.choices import named_letter
from omnitide.evaluation.moment import clock, parse_moment
from omnitide.evaluation.words import chrf, repetition, rouge_l, token_f1, words_of


def slow_common(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    """Longest common subsequence by its recursion."""

    @cache
    def longest(i: int, j: int) -> int:
        if i == len(first) or j == len(second):
            return 0
        if first[i] == second[j]:
            return 1 + longest(i + 1, j + 1)
        return max(longest(i + 1, j), longest(i, j + 1))

    return longest(0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_rouge_l_equals_its_recursion(seed: int) -> None:
    random = np.random.default_rng(seed)
    first, second = (
        tuple("abcd"[i] for i in random.integers(0, 4, random.integers(1, 12))) for _ in range(2)
    )
    shared = slow_common(first, second)
    p, r = shared / len(first), shared / len(second)
    expected = 2 * p * r / (p + r) if shared else 0.0
    assert rouge_l(" ".join(first), " ".join(second)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "reference", "f1"),
    [
        ("a b c", "a b c", 1.0),
        ("A, b!", "b a", 1.0),
        ("a a b", "a b b", 2 / 3),
        ("a", "b", 0.0),
        ("", "b", 0.0),
        ("b", "", 0.0),
    ],
)
def test_token_f1(text: str, reference: str, f1: float) -> None:
    assert token_f1(text, reference) == pytest.approx(f1)


def test_characters_without_spaces_are_words() -> None:
    assert words_of("Das Auto, 红色的 x2") == ["das", "auto", "红", "色", "的", "x2"]


@pytest.mark.parametrize(
    ("text", "reference", "score"),
    [
        ("abc", "abc", 1.0),
        ("a b c", "abc", 1.0),
        ("abc", "xyz", 0.0),
        ("", "abc", 0.0),
        # runs of 1: a, b shared of 2 and of 3; of 2: ab shared of 1 and of 2
        ("ab", "abc", 5 * 1.0 * (2 / 3 + 1 / 2) / 2 / (4 * 1.0 + (2 / 3 + 1 / 2) / 2)),
    ],
)
def test_chrf(text: str, reference: str, score: float) -> None:
    assert chrf(text, reference) == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "share"),
    [("a b c d", 0.0), ("a b c d a b c d", 1 / 5), ("go go go go go go", 2 / 3), ("a", 0.0)],
)
def test_repetition(text: str, share: float) -> None:
    assert repetition(text) == pytest.approx(share)


OPTIONS = ("A. a red disc", "B. a bar", "C. nothing", "D. all of it")


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        ("C", "C"),
        ("C.", "C"),
        ("C) nothing", "C"),
        ("**D**", "D"),
        ("D\nbecause", "D"),
        ("The correct option is (B).", "B"),
        ("Answer: D", "D"),
        ("I would say D", "D"),
        ("It shows nothing", "C"),
        ("nothing.", "C"),
        ("A dog runs", ""),
        ("A man, so the answer is B", "B"),
        ("B or C", ""),
        ("E", ""),
        ("none", ""),
        ("", ""),
    ],
)
def test_the_letter_that_a_reply_names(reply: str, letter: str) -> None:
    assert named_letter(reply, OPTIONS) == letter


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("00:01:32", 92),
        ("1:00:00", 3600),
        ("00:24", 24),
        ("00:00:8", 8),
        ("00:12450", 12450),
        ("00:00:12.345", 12.345),
        ("7.25", 7.25),
        (7, 7),
        (7.5, 7.5),
    ],
)
def test_moments(value: object, seconds: float) -> None:
    assert parse_moment(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", ["", "noon", "1:b", "-3", "0:-3", "inf", "nan", None, True, [1], float("inf"), -1]
)
def test_what_is_no_moment_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="time stamp"):
        parse_moment(value)


def test_a_clock() -> None:
    assert [clock(s) for s in (0, 61, 3725.9)] == ["0:00:00", "0:01:01", "1:02:05"]
