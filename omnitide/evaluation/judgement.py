"""What a judge is asked about a reply, and what it said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from omnitide.evaluation.mark import Mark


@dataclass(frozen=True, slots=True)
class JudgeUnit:
    """One request to a judge.

    Attributes:
        question: As in a `Mark`.
        task: As in a `Mark`.
        prompt: What the judge reads.
        marks: Metrics that it must give, with the least and greatest whole number of each. Its
            value is the number over the greatest; a negative number says "does not apply", and
            makes no mark.
        choices: Words of which it must say one, with their values, in place of numbers; `marks`
            then holds only the name of the metric.
    """

    question: str
    task: str
    prompt: str
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    choices: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> JudgeUnit:
        """The unit that `as_dict` made.

        Raises:
            KeyError, TypeError: It was made by something else.
        """
        ranges = {name: (int(low), int(high)) for name, (low, high) in data["marks"].items()}
        return cls(**{**data, "marks": ranges})


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of one request.

    Attributes:
        setting: Name of the setting whose reply was judged.
        question: Of the unit.
        prompt_hash: SHA-256 of the prompt, so that a changed reply or rubric is judged anew.
        judge: Model that answered, by its own account.
        raw: Its words.
        marks: What was read from them; empty if they could not be read, and the unit is then
            unavailable, never 0.
        usage: Tokens, as the server counts them.
    """

    setting: str
    question: str
    prompt_hash: str
    judge: str
    raw: str
    marks: tuple[Mark, ...]
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        """What a journal of judgements holds once."""
        return self.setting, self.question, self.prompt_hash

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {**asdict(self), "marks": [mark.as_list() for mark in self.marks]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Judgement:
        """The judgement that `as_dict` made.

        Raises:
            KeyError, TypeError, ValueError: It was made by something else.
        """
        return cls(**{**data, "marks": tuple(Mark.from_list(m) for m in data["marks"])})
