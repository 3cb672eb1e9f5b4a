"""Having a judge mark the replies of a folder of results, each once; resumable."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from omnitide.errors import ConfigError
from omnitide.evaluation.journal import Journal
from omnitide.evaluation.judge import Judge
from omnitide.evaluation.judgement import Judgement, JudgeUnit
from omnitide.evaluation.results import JUDGE, Results, read_judgements, read_results
from omnitide.evaluation.verdict import read_verdict

ATTEMPTS = 3
"""Answers that may be unreadable before a unit counts as unavailable."""


@dataclass(frozen=True, slots=True)
class Judged:
    """How far judging is: units done, of all, and unavailable among them."""

    done: int
    total: int
    unavailable: int


def judge_all(
    folder: Path,
    judge: Judge,
    *,
    retry_failed: bool = False,
    tell: Callable[[Judged], None] = lambda judged: None,
) -> None:
    """Judge what is not judged yet. Equal replies to a question are judged once for all settings.

    Raises:
        ConfigError: There are no results, nothing in them is for a judge, or earlier judgements
            are of another model.
        JudgeError: The judge is down. What it has said is kept.
    """
    results = read_results(folder)
    units = list(all_units(results))
    if not units:
        raise ConfigError(
            f"[judge] nothing in {folder} is for a judge: {results.manifest.benchmark} needs none, "
            "or its answers are absent"
        )
    with Journal(folder / JUDGE) as journal:
        known = {j.key: j for j in read_judgements(folder) if j.marks or not retry_failed}
        model = next((j.judge for j in known.values()), None)
        shared = {(j.question, j.prompt_hash): j for j in known.values() if j.marks}
        done = sum((setting, u.question, hash_of(u)) in known for setting, u in units)
        lost = sum(not known[key].marks for key in _keys(units) if key in known)
        tell(Judged(done, len(units), lost))
        for setting, unit in units:
            key = (setting, unit.question, hash_of(unit))
            if key in known:
                continue
            found = shared.get(key[1:])
            found = replace(found, setting=setting) if found else _asked(judge, setting, unit)
            if model is not None and found.judge != model:
                raise ConfigError(
                    f"[judge] earlier judgements are by {model}, this one by {found.judge}; judges "
                    f"are never mixed: move {journal.path} away to judge all anew"
                )
            model = found.judge
            journal.add(found.as_dict())
            known[key] = found
            if found.marks:
                shared[key[1:]] = found
            done, lost = done + 1, lost + (not found.marks)
            tell(Judged(done, len(units), lost))


def all_units(results: Results) -> Iterator[tuple[str, JudgeUnit]]:
    """Every unit with its setting."""
    for result in results.results:
        for unit in result.units:
            yield result.record.setting, unit


def hash_of(unit: JudgeUnit) -> str:
    """SHA-256 of a unit's prompt."""
    return hashlib.sha256(unit.prompt.encode()).hexdigest()


def _keys(units: list[tuple[str, JudgeUnit]]) -> list[tuple[str, str, str]]:
    return [(setting, unit.question, hash_of(unit)) for setting, unit in units]


def _asked(judge: Judge, setting: str, unit: JudgeUnit) -> Judgement:
    for _ in range(ATTEMPTS):
        reply = judge.ask(unit.prompt)
        marks = read_verdict(unit, reply.text)
        if marks is not None:
            break
    return Judgement(
        setting, unit.question, hash_of(unit), reply.model, reply.text, marks or (), reply.usage
    )
