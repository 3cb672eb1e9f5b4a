"""The words of the made world, its splits, and what training never shows together."""

from __future__ import annotations

from omnitide.evaluation.needle.fact import COLOURS, SHAPES, WORDS

SPLITS = ("train", "tune", "test")
"""Scripts to learn from, to choose settings by, and to report."""

SHAPE_NAMES = tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)
"""All shapes in all colours."""

DIGIT_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""Digits as they are said."""

SPOKEN = WORDS + DIGIT_WORDS
"""All that is said as a single word, in the order of the speech bank."""

MOTIONS = ("left", "right", "up", "down")
"""Ways in which a shape moves."""

MOST_COPIES = 5
"""A shape is shown at most so often in one picture."""

HELD_SHAPES = frozenset({"green triangle", "yellow cross"})
"""Shapes that training never shows."""

HELD_PAIRS_EVERY = 12


def held_pair(shape: str, word: str) -> bool:
    """Whether training never shows the shape while the word is said; one pair in twelve.

    Words outside `WORDS` belong to no such pair.
    """
    if shape not in SHAPE_NAMES or word not in WORDS:
        return False
    return (SHAPE_NAMES.index(shape) + WORDS.index(word)) % HELD_PAIRS_EVERY == 0
