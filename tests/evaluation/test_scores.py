"""Scores, intervals and differences against slow second computations, one draw at a time."""

from __future__ import annotations

import numpy as np
import pytest

from omnitide.errors import ConfigError
from omnitide.evaluation.bootstrap import differences, estimates
from omnitide.evaluation.mark import Mark
from omnitide.evaluation.score import Score, evaluate, tally

SCORES = (
    Score("x", "hit", ("x",)),
    Score("y", "hit", ("y",)),
    Score("pooled", "hit", ("x", "y")),
    Score("mean", of=("x", "y")),
    Score("seconds", "time", ("x",), scale=1),
)


def drawn_marks(seed: int, clips: int = 7) -> dict[str, list[Mark]]:
    random = np.random.default_rng(seed)
    marks: dict[str, list[Mark]] = {}
    for clip in range(clips):
        found = marks[f"clip{clip}"] = []
        for number in range(int(random.integers(1, 5))):
            task = "xy"[int(random.integers(2))]
            key = f"clip{clip}#{number}"
            found.append(Mark(key, task, "hit", float(random.integers(2))))
            found.append(Mark(key, "x", "time", float(random.random())))
    return marks


def slow_scores(marks: list[Mark]) -> dict[str, float | None]:
    """The scores of a list of marks, from their definitions."""

    def mean(metric: str, tasks: str, scale: float) -> float | None:
        values = [m.value for m in marks if m.metric == metric and m.task in tasks]
        return scale * sum(values) / len(values) if values else None

    x, y = mean("hit", "x", 100), mean("hit", "y", 100)
    return {
        "x": x,
        "y": y,
        "pooled": mean("hit", "xy", 100),
        "mean": None if x is None or y is None else (x + y) / 2,
        "seconds": mean("time", "x", 1),
    }


def slow_draws(clips: int, draws: int) -> list[list[int]]:
    """Clips of each draw, by their index, from the same generator."""
    random = np.random.default_rng(0)
    counts = random.multinomial(clips, np.full(clips, 1 / clips), size=draws)
    return [[i for i, count in enumerate(row) for _ in range(count)] for row in counts]


def slow_interval(values: list[float | None]) -> tuple[float, float]:
    defined = sorted(v for v in values if v is not None)
    low, high = np.percentile(defined, [2.5, 97.5])
    return float(low), float(high)


@pytest.mark.parametrize("seed", range(4))
def test_estimates_equal_draws_made_one_by_one(seed: int) -> None:
    marks = drawn_marks(seed)
    found = estimates(SCORES, marks, draws=200)
    names = sorted(marks)
    whole = slow_scores([m for name in names for m in marks[name]])
    spread = [
        slow_scores([m for i in draw for m in marks[names[i]]]) for draw in slow_draws(7, 200)
    ]
    for name, value in whole.items():
        assert found[name].value == (None if value is None else pytest.approx(value))
        if value is not None:
            low, high = slow_interval([scores[name] for scores in spread])
            assert found[name].low == pytest.approx(low)
            assert found[name].high == pytest.approx(high)


@pytest.mark.parametrize("seed", range(4))
def test_differences_are_paired(seed: int) -> None:
    first, second = drawn_marks(seed), drawn_marks(seed + 100)
    both = {
        (c, m.question, m.task, m.metric) for c in first for m in first[c]
    } & {(c, m.question, m.task, m.metric) for c in second for m in second[c]}  # fmt: skip

    def shared(marks: dict[str, list[Mark]], clip: str) -> list[Mark]:
        return [m for m in marks[clip] if (clip, m.question, m.task, m.metric) in both]

    clips = sorted({clip for clip, *_ in both})

    def difference(of: list[str]) -> dict[str, float | None]:
        a = slow_scores([m for c in of for m in shared(first, c)])
        b = slow_scores([m for c in of for m in shared(second, c)])
        return {
            name: None if x is None or (y := b[name]) is None else x - y for name, x in a.items()
        }

    found = differences(SCORES, first, second, draws=200)
    whole = difference(clips)
    spread = [difference([clips[i] for i in draw]) for draw in slow_draws(len(clips), 200)]
    for name, value in whole.items():
        assert found[name].value == (None if value is None else pytest.approx(value))
        if value is not None:
            low, high = slow_interval([scores[name] for scores in spread])
            assert (found[name].low, found[name].high) == (pytest.approx(low), pytest.approx(high))


def test_clips_are_drawn_and_not_questions() -> None:
    # 40 equal questions about one clip, 40 of the other value about another: a draw of clips gives
    # 0, 50 or 100; a draw of questions would never leave 30 to 70
    marks = {
        clip: [Mark(f"{clip}#{i}", "x", "hit", value) for i in range(40)]
        for clip, value in (("a", 0.0), ("b", 1.0))
    }
    found = estimates(SCORES[:1], marks)["x"]
    assert (found.value, found.low, found.high) == (50, 0, 100)
    assert (found.marks, found.clips) == (80, 2)


def test_a_difference_that_all_clips_agree_on_has_no_spread() -> None:
    def marks(more: float) -> dict[str, list[Mark]]:
        return {f"c{i}": [Mark(f"c{i}#0", "x", "hit", i / 8 + more)] for i in range(5)}

    found = differences(SCORES[:1], marks(0.25), marks(0.0))["x"]
    assert (found.value, found.low, found.high) == pytest.approx((25, 25, 25))


def test_one_clip_has_no_interval_and_none_has_no_value() -> None:
    one = estimates(SCORES[:1], {"a": [Mark("q", "x", "hit", 1.0)]})["x"]
    assert (one.value, one.low, one.high) == (100, None, None)
    none = estimates(SCORES, {})
    assert all(e.value is None and e.low is None for e in none.values())


def test_a_score_of_scores_counts_the_marks_of_its_members() -> None:
    marks = {"a": [Mark("1", "x", "hit", 1.0), Mark("2", "y", "hit", 0.0)],
             "b": [Mark("3", "x", "hit", 1.0)]}  # fmt: skip
    found = estimates(SCORES, marks, draws=20)["mean"]
    assert (found.value, found.marks, found.clips) == (50, 3, 2)


def test_a_score_must_come_after_its_members() -> None:
    table = tally(SCORES, {})
    with pytest.raises(ConfigError, match="late must come after"):
        evaluate((Score("late", of=("x",)), SCORES[0]), table.sums[:, :2], table.counts[:, :2])
