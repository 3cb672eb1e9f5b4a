"""Which choice a reply names."""

from __future__ import annotations

import re
from collections.abc import Sequence

LETTERS = "ABCDEFGH"

_NOT_ARTICLE = r"(?!\s+(?!or\b|and\b)[a-z])"
"""No word follows, unless it joins two letters."""


def first_letter(reply: str) -> str:
    """The first character, whatever it is; empty for an empty reply. StreamingBench's rule."""
    return reply[:1]


def named_letter(reply: str, options: Sequence[str] = (), count: int = 4) -> str:
    """The letter that a reply names, or empty if it names none or several.

    In this order: a letter that begins the reply and stands alone or before a full stop, colon,
    comma or bracket; "answer is X" and the like; the only lone letter (an article "A" before a
    word is none); the only option whose text the reply is or ends with.

    Args:
        reply: What the model said.
        options: Texts of the choices, with or without their letters.
        count: Letters that are valid, from A on; the number of options if there are any.
    """
    text = reply.strip()
    valid = LETTERS[: len(options) or count]
    first = re.match(rf"[\W_]*([{valid}])(?=[.:,)\]*]|\s*$|\s*\n)", text)
    if first is not None:
        return first[1]
    stated = re.findall(
        rf"(?:answer|option|choice)\b(?:\s+is)?[\s:]*[(*\[]*([{valid}])(?![\w']){_NOT_ARTICLE}",
        text,
        re.IGNORECASE,
    )
    if stated and stated[-1] in valid:
        return str(stated[-1])
    lone = set(re.findall(rf"(?<![\w'])([{valid}])(?![\w']){_NOT_ARTICLE}", text))
    if len(lone) == 1:
        return str(lone.pop())
    said = text.rstrip(".").lower()
    matches = [
        letter
        for letter, option in zip(LETTERS, options, strict=False)
        if (words := without_letter(option).strip().rstrip(".").lower()) and said.endswith(words)
    ]
    return matches[0] if len(matches) == 1 and not lone else ""


def without_letter(option: str) -> str:
    """An option without its leading letter."""
    return re.sub(r"^\s*[A-H][.):]\s*", "", option)


def lettered(options: Sequence[str]) -> tuple[str, ...]:
    """Options with `A. ` and so on before them, unless the first one has its letter already."""
    if options and options[0].lstrip().startswith("A."):
        return tuple(options)
    return tuple(f"{letter}. {text}" for letter, text in zip(LETTERS, options, strict=False))
