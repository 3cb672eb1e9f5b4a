"""What of a run was followed, answered and judged, and what was not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omnitide.evaluation.judging import hash_of
from omnitide.evaluation.mark import Mark
from omnitide.evaluation.results import Result


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was run and what was not, under a setting.

    Attributes:
        items, failed: Items followed, and those of them that failed.
        errors: Why, by item.
        answers, empty: Replies, and those without a word.
        past_end: Questions whose moment lay behind the end of their clip.
        damaged: Items whose clip was damaged in places.
        units, judged, unavailable: For a judge, and what came of it.
    """

    items: int
    failed: int
    errors: dict[str, str]
    answers: int
    empty: int
    past_end: int
    damaged: int
    units: int
    judged: int
    unavailable: int


def coverage_of(
    results: Sequence[Result], judged: Mapping[tuple[str, str], tuple[Mark, ...]] | None
) -> Coverage:
    """Count the results of a setting.

    Args:
        results: Its results.
        judged: Marks of its judgements by question and hash of the prompt; None without any.
    """
    records = [result.record for result in results]
    answers = [answer for record in records for answer in record.answers]
    units = [unit for result in results for unit in result.units]
    said = [(judged or {}).get((unit.question, hash_of(unit))) for unit in units]
    return Coverage(
        items=len(records),
        failed=sum(record.error is not None for record in records),
        errors={r.item: r.error for r in records if r.error is not None},
        answers=len(answers),
        empty=sum(not answer.text.strip() for answer in answers),
        past_end=sum(answer.past_end for answer in answers),
        damaged=sum(record.damage is not None for record in records),
        units=len(units),
        judged=sum(bool(marks) for marks in said),
        unavailable=sum(marks == () for marks in said),
    )
