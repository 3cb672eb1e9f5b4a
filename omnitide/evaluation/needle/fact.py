"""What is put into a stream, how it is asked for, and when a reply counts as knowing it.

A reply knows a fact if it names it and no other fact of the kind: one that lists everything knows
nothing. So guessing is right at most once in as many times as there are facts of the kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 30, 30),
    "green": (20, 150, 40),
    "blue": (30, 60, 220),
    "yellow": (240, 210, 20),
    "white": (250, 250, 250),
    "black": (10, 10, 10),
}
"""Colours of shapes, RGB."""

SHAPES: dict[str, tuple[str, ...]] = {
    "circle": ("circle", "disc", "disk", "dot"),
    "square": ("square",),
    "triangle": ("triangle",),
    "cross": ("cross", "plus"),
}
"""Shapes, each with the words that name it."""

WORDS = (
    "anchor", "bridge", "candle", "desert", "engine", "forest", "garden", "hammer",
    "island", "jacket", "kettle", "ladder", "market", "needle", "orange", "pencil",
    "rabbit", "saddle", "tunnel", "violin", "window", "yellow", "zipper", "bottle",
)  # fmt: skip
"""Words that are shown, said or typed; of six letters each."""

DIGITS = 5
"""Digits of a number that is shown."""

BEEPS = ("one", "two", "three", "four", "five", "six")
"""How often a tone may sound, in words."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A way in which a fact comes into a stream.

    Attributes:
        draw: Makes the answer of a fact.
        prompt: How it is asked for.
        named: All facts of the kind that a reply names.
    """

    draw: Callable[[np.random.Generator], str]
    prompt: str
    named: Callable[[str], set[str]]


def _draw_word(random: np.random.Generator) -> str:
    return WORDS[int(random.integers(len(WORDS)))]


def _draw_number(random: np.random.Generator) -> str:
    return str(int(random.integers(10 ** (DIGITS - 1), 10**DIGITS)))


def _draw_shape(random: np.random.Generator) -> str:
    colour = list(COLOURS)[int(random.integers(len(COLOURS)))]
    return f"{colour} {list(SHAPES)[int(random.integers(len(SHAPES)))]}"


def _draw_count(random: np.random.Generator) -> str:
    return str(int(random.integers(1, len(BEEPS) + 1)))


def _words(reply: str) -> list[str]:
    return re.findall(r"[a-z]+", reply.lower())


def _named_words(reply: str) -> set[str]:
    return set(_words(reply)) & set(WORDS)


def _named_numbers(reply: str) -> set[str]:
    """Runs of so many digits; blanks, commas and dashes between single digits are passed over."""
    joined = re.sub(r"(?<=\d)[\s,.\-]+(?=\d)", "", reply)
    return {run for run in re.findall(r"\d+", joined) if len(run) == DIGITS}


def _named_shapes(reply: str) -> set[str]:
    words = set(_words(reply))
    colours = words & set(COLOURS)
    shapes = {shape for shape, names in SHAPES.items() if words & set(names)}
    return {f"{colour} {shape}" for colour in colours for shape in shapes}


def _named_counts(reply: str) -> set[str]:
    numbers = {str(int(run)) for run in re.findall(r"\d+", reply)}
    return numbers | {str(BEEPS.index(word) + 1) for word in _words(reply) if word in BEEPS}


KINDS: dict[str, Kind] = {
    "text": Kind(
        _draw_word,
        "Earlier a word was shown in large letters. Which word was it? Answer with that word.",
        _named_words,
    ),
    "shape": Kind(
        _draw_shape,
        "Earlier a coloured shape was shown. Which colour and which shape was it? Answer with the "
        "two words.",
        _named_shapes,
    ),
    "digits": Kind(
        _draw_number,
        f"Earlier a number of {DIGITS} digits was shown. Which number was it? Answer with its "
        "digits.",
        _named_numbers,
    ),
    "tone": Kind(
        _draw_count,
        "Earlier a tone beeped a few times. How often did it beep? Answer with the number.",
        _named_counts,
    ),
    "speech": Kind(
        _draw_word,
        "Earlier somebody said a code word. Which word was it? Answer with that word.",
        _named_words,
    ),
    "typed": Kind(
        _draw_number,
        "Earlier I typed a pass code. Which one was it? Answer with its digits.",
        _named_numbers,
    ),
}
"""Modalities of facts: three that are seen, two that are heard, one that the user types."""

SEEN = ("text", "shape", "digits")
HEARD = ("tone", "speech")


def recalled(kind: str, answer: str, reply: str) -> bool:
    """Whether a reply names the fact and no other one."""
    return KINDS[kind].named(reply) == {answer}
