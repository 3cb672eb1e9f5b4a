"""What is wrong with a data set: listed and counted, never passed over in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

MISSING = "missing clip"
MALFORMED = "malformed row"
FIXED = "fixed"
DOUBLED = "doubled row"
COUNT = "unexpected count"
NOTE = "note"

LEFT_OUT = (MISSING, MALFORMED)
"""Kinds for which something was left out of the run."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that a reader met.

    Attributes:
        kind: One of the names of this module.
        where: File and row, or clip.
        what: What came, and what was done.
        questions: Questions that are left out by it.
    """

    kind: str
    where: str
    what: str
    questions: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)


def counted(problems: Iterable[Problem]) -> dict[str, int]:
    """How many there are of each kind, most first."""
    return dict(Counter(problem.kind for problem in problems).most_common())
