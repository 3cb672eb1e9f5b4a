"""A score: how a benchmark's authors make one number of marks.

Either the mean of all marks of some tasks in one metric (tasks pooled, so each question counts
alike), or the mean of other scores (so each of those counts alike).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnitide.errors import ConfigError
from omnitide.evaluation.mark import Mark

PERCENT = 100.0

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """A number of a table.

    Attributes:
        name: Its name in the table, unlike all others of its benchmark.
        metric: Whose marks it is made of.
        tasks: Tasks whose marks are pooled.
        of: Names of earlier scores whose mean it is, in place of marks.
        scale: What the mean is multiplied by.
        head: Whether it stands in the short table.
        lower_is_better: Whether less is better, as for times.
    """

    name: str
    metric: str = ""
    tasks: tuple[str, ...] = ()
    of: tuple[str, ...] = ()
    scale: float = PERCENT
    head: bool = False
    lower_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums and counts of marks, by clip and by score; scores of scores have none.

    Attributes:
        clips: Names of the clips.
        sums, counts: Shape (num_clips, num_scores).
    """

    clips: tuple[str, ...]
    sums: Values
    counts: Values


def tally(scores: Sequence[Score], marks: Mapping[str, Sequence[Mark]]) -> Tally:
    """Add up marks. `marks`: by clip."""
    places: dict[tuple[str, str], list[int]] = {}
    for index, score in enumerate(scores):
        for task in score.tasks:
            places.setdefault((score.metric, task), []).append(index)
    clips = tuple(sorted(marks))
    sums = np.zeros((len(clips), len(scores)))
    counts = np.zeros((len(clips), len(scores)))
    for row, clip in enumerate(clips):
        for mark in marks[clip]:
            for index in places.get((mark.metric, mark.task), ()):
                sums[row, index] += mark.value
                counts[row, index] += 1
    return Tally(clips, sums, counts)


def evaluate(scores: Sequence[Score], sums: Values, counts: Values) -> Values:
    """Scores of sums and counts of shape (..., num_scores); NaN where there are no marks.

    Raises:
        ConfigError: A score is the mean of one that does not come before it.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        values: Values = np.where(counts > 0, sums / counts, np.nan)
    values = values * np.array([score.scale for score in scores])
    index = {score.name: i for i, score in enumerate(scores)}
    for i, score in enumerate(scores):
        if not score.of:
            continue
        members = [index.get(name, len(scores)) for name in score.of]
        if any(member >= i for member in members):
            raise ConfigError(f"[score] {score.name} must come after all that it is the mean of")
        values[..., i] = values[..., members].mean(axis=-1)
    return values
