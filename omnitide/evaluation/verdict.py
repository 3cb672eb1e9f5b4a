"""Reading numbers or a choice from a judge's words. What can't be read is None, never 0."""

from __future__ import annotations

import json
import re
from typing import Any

from omnitide.evaluation.judgement import JudgeUnit
from omnitide.evaluation.mark import Mark

_OBJECT = re.compile(r"\{[^{}]*\}")


def read_verdict(unit: JudgeUnit, text: str) -> tuple[Mark, ...] | None:
    """Marks of a judge's words; None if the last JSON object in them is not what was asked for."""
    found = _last_object(text)
    if found is None:
        return None
    if unit.choices:
        return _choice(unit, found)
    marks = []
    for name, (low, high) in unit.marks.items():
        number = _whole(found.get(name))
        if number is None or not low <= number <= high:
            return None
        if number >= 0:
            marks.append(Mark(unit.question, unit.task, name, number / high))
    return tuple(marks)


def _choice(unit: JudgeUnit, found: dict[str, Any]) -> tuple[Mark, ...] | None:
    (metric,) = unit.marks
    said = str(found.get("winner", "")).strip().casefold()
    for word, value in unit.choices.items():
        if said == word.casefold():
            return (Mark(unit.question, unit.task, metric, value),)
    return None


def _last_object(text: str) -> dict[str, Any] | None:
    for piece in reversed(_OBJECT.findall(text)):
        try:
            found = json.loads(piece)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return None


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None
