"""How alike two texts are, without a judge: overlap of words and of characters.

Words are runs of letters and digits in lower case; a Chinese, Japanese or Korean character is a
word of its own.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
)

CHARACTERS = 6
"""Longest run of characters that chrF counts."""

BETA = 2.0
"""How many times recall outweighs precision in chrF."""

RUN = 4
"""Words of a run whose return counts as repetition."""


def words_of(text: str) -> list[str]:
    """The words of a text."""
    return _WORD.findall(text.lower())


def token_f1(text: str, reference: str) -> float:
    """Harmonic mean of precision and recall of words, each counted as often as it occurs."""
    ours, theirs = words_of(text), words_of(reference)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return _f(shared / max(len(ours), 1), shared / max(len(theirs), 1))


def rouge_l(text: str, reference: str) -> float:
    """F1 of the longest common subsequence of words (Lin 2004, ROUGE-L with equal weights)."""
    ours, theirs = words_of(text), words_of(reference)
    shared = _common(ours, theirs)
    return _f(shared / max(len(ours), 1), shared / max(len(theirs), 1))


def chrf(text: str, reference: str) -> float:
    """Popovic 2015: F2 of the mean precision and recall of runs of 1 to 6 characters, no spaces.

    Runs longer than one of the two texts are left out of the means.
    """
    ours, theirs = "".join(text.split()), "".join(reference.split())
    precisions, recalls = [], []
    for length in range(1, CHARACTERS + 1):
        a, b = _runs(ours, length), _runs(theirs, length)
        if not a or not b:
            break
        shared = sum((a & b).values())
        precisions.append(shared / a.total())
        recalls.append(shared / b.total())
    if not precisions:
        return 0.0
    return _f(sum(precisions) / len(precisions), sum(recalls) / len(recalls), BETA)


def repetition(text: str) -> float:
    """Share of runs of 4 words that have occurred before in the text; 0 for a shorter text."""
    words = words_of(text)
    runs = [tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def _f(precision: float, recall: float, beta: float = 1.0) -> float:
    weighted = beta**2 * precision + recall
    return (1 + beta**2) * precision * recall / weighted if weighted else 0.0


def _runs(text: str, length: int) -> Counter[str]:
    return Counter(text[i : i + length] for i in range(len(text) - length + 1))


def _common(first: list[str], second: list[str]) -> int:
    """Length of the longest common subsequence, a row of the table at a time."""
    ids: dict[str, int] = {}
    theirs = np.array([ids.setdefault(word, len(ids)) for word in second], np.int64)
    row = np.zeros(len(second) + 1, np.int64)
    for word in first:
        # The best of a cell is that above, or one more than that above and left where words meet;
        # the running maximum then carries it to the right.
        best = np.where(theirs == ids.get(word, -1), row[:-1] + 1, row[1:])
        row[1:] = np.maximum.accumulate(best)
    return int(row[-1])
