"""A mark: the value of one metric for one question, the smallest thing that scores are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mark:
    """One value.

    Attributes:
        question: Item and question; a pair of settings is compared on the questions of both.
        task: Of the question.
        metric: Such as "official" or "rouge-l".
        value: Usually in [0, 1]; a score is a mean of values.
    """

    question: str
    task: str
    metric: str
    value: float

    def as_list(self) -> list[str | float]:
        """Plain data, ready for JSON."""
        return [self.question, self.task, self.metric, self.value]

    @classmethod
    def from_list(cls, data: Sequence[str | float]) -> Mark:
        """The mark that `as_list` made.

        Raises:
            TypeError, ValueError: It was made by something else.
        """
        question, task, metric, value = data
        return cls(str(question), str(task), str(metric), float(value))
