"""Confidence intervals by drawing clips, and differences of settings on the questions of both.

Questions about one clip are no independent evidence, so whole clips are drawn, with replacement,
as often as there are; each draw gives all scores, and the middle of their spread is the interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from omnitide.evaluation.mark import Mark
from omnitide.evaluation.score import Score, Values, evaluate, tally

DRAWS = 2000
LEVEL = 0.95

Marks = Mapping[str, Sequence[Mark]]
"""Marks by clip."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A score with its interval.

    Attributes:
        value: Of all clips; None without marks.
        low, high: Ends of the interval; None where fewer than two clips have marks.
        marks, clips: That it is made of. A score of scores counts those of its members together.
    """

    value: float | None
    low: float | None
    high: float | None
    marks: int
    clips: int


def estimates(
    scores: Sequence[Score], marks: Marks, *, draws: int = DRAWS, seed: int = 0
) -> dict[str, Estimate]:
    """Every score with its interval, by name."""
    table = tally(scores, marks)
    whole = evaluate(scores, table.sums.sum(axis=0), table.counts.sum(axis=0))
    drawn = _weights(len(table.clips), draws, seed)
    spread = evaluate(scores, drawn @ table.sums, drawn @ table.counts)
    return _estimates(scores, whole, spread, table.counts)


def differences(
    scores: Sequence[Score], first: Marks, second: Marks, *, draws: int = DRAWS, seed: int = 0
) -> dict[str, Estimate]:
    """The scores of `first` less those of `second`, on the marks that both have, by name.

    Both are drawn with the same clips, so what makes a clip hard for both cancels.
    """
    ours, theirs = _shared(first, second)
    a, b = tally(scores, ours), tally(scores, theirs)
    whole = _difference(scores, (a.sums.sum(axis=0), a.counts.sum(axis=0)),
                        (b.sums.sum(axis=0), b.counts.sum(axis=0)))  # fmt: skip
    drawn = _weights(len(a.clips), draws, seed)
    spread = _difference(
        scores, (drawn @ a.sums, drawn @ a.counts), (drawn @ b.sums, drawn @ b.counts)
    )
    return _estimates(scores, whole, spread, a.counts)


def _difference(
    scores: Sequence[Score], first: tuple[Values, Values], second: tuple[Values, Values]
) -> Values:
    return np.asarray(evaluate(scores, *first) - evaluate(scores, *second))


def _weights(clips: int, draws: int, seed: int) -> Values:
    """How often each clip is drawn, shape (draws, clips)."""
    if clips == 0:
        return np.zeros((draws, 0))
    random = np.random.default_rng(seed)
    return random.multinomial(clips, np.full(clips, 1 / clips), size=draws).astype(np.float64)


def _shared(first: Marks, second: Marks) -> tuple[Marks, Marks]:
    """What of two has a mark of the same question and metric in the other, by the same clips."""

    def named(marks: Marks) -> set[tuple[str, str, str, str]]:
        return {(c, m.question, m.task, m.metric) for c, found in marks.items() for m in found}

    both = named(first) & named(second)
    clips = sorted({clip for clip, *_ in both})

    def kept(marks: Marks) -> Marks:
        return {
            clip: [m for m in marks[clip] if (clip, m.question, m.task, m.metric) in both]
            for clip in clips
        }

    return kept(first), kept(second)


def _estimates(
    scores: Sequence[Score], whole: Values, spread: Values, counts: Values
) -> dict[str, Estimate]:
    index = {score.name: i for i, score in enumerate(scores)}
    leaves: list[list[int]] = []
    for i, score in enumerate(scores):
        leaves.append(sorted({leaf for name in score.of for leaf in leaves[index[name]]}) or [i])
    found = {}
    for i, score in enumerate(scores):
        of = counts[:, leaves[i]]
        clips = int(np.count_nonzero(of.sum(axis=1)))
        value = None if np.isnan(whole[i]) else float(whole[i])
        low = high = None
        defined = spread[~np.isnan(spread[:, i]), i]
        if value is not None and clips > 1 and len(defined):
            edge = 50 * (1 - LEVEL)
            low, high = (float(x) for x in np.percentile(defined, [edge, 100 - edge]))
        found[score.name] = Estimate(value, low, high, int(of.sum()), clips)
    return found
