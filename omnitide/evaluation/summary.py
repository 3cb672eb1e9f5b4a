"""The summary of a folder of results: scores with intervals, paired differences, coverage.

It is made of the folder alone, in an order that does not depend on which worker was faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from omnitide.errors import ConfigError
from omnitide.evaluation.bootstrap import DRAWS, Estimate, differences, estimates
from omnitide.evaluation.coverage import Coverage, coverage_of
from omnitide.evaluation.judging import hash_of
from omnitide.evaluation.mark import Mark
from omnitide.evaluation.problem import LEFT_OUT
from omnitide.evaluation.results import Result, Results
from omnitide.evaluation.score import Score
from omnitide.evaluation.setting import FULL
from omnitide.evaluation.words import rouge_l
from omnitide.policies import POLICIES

SESSION, AGREEMENT = "(session)", "(agreement)"
"""Tasks of marks that every benchmark has: figures of a session, likeness to the reference."""

SESSION_SCORES = (
    Score("session, s", "loop_seconds", (SESSION,), scale=1, head=True, lower_is_better=True),
    Score("update, ms", "update_ms", (SESSION,), scale=1, lower_is_better=True),
    Score("tokens seen", "tokens_seen", (SESSION,), scale=1),
    Score("tokens kept", "tokens_kept", (SESSION,), scale=1, lower_is_better=True),
    Score("peak span", "peak_span", (SESSION,), scale=1, lower_is_better=True),
)

AGREEMENT_SCORES = (
    Score("agreement with reference (ROUGE-L)", "rouge-l", (AGREEMENT,)),
    Score("equal replies", "equal", (AGREEMENT,)),
)


@dataclass(frozen=True, slots=True)
class Summary:
    """What the tables, pictures and cards are made of.

    Attributes:
        benchmark, model: Names.
        trained: Whether the weights are trained.
        reading: How the data were read: protocol, context and so on.
        reference: Setting that differences are taken against; None with a single setting.
        scores: In the order of the table; those without a mark are left out.
        settings: By the order of policies, then watermarks.
        facts: Policy and watermarks of each setting.
        estimates: By setting and score.
        differences: By pair (setting, other) and score: setting less other.
        coverage: By setting.
        judges: Models that judged.
        flips: Share of pairs of comparisons whose winner changed with the order; None without any.
    """

    benchmark: str
    model: str
    trained: bool
    reading: dict[str, Any]
    reference: str | None
    scores: tuple[Score, ...]
    settings: tuple[str, ...]
    facts: dict[str, dict[str, Any]]
    estimates: dict[str, dict[str, Estimate]]
    differences: dict[tuple[str, str], dict[str, Estimate]]
    coverage: dict[str, Coverage]
    judges: tuple[str, ...]
    flips: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "benchmark": self.benchmark,
            "model": self.model,
            "trained": self.trained,
            "reading": self.reading,
            "reference": self.reference,
            "interval": "95 % by bootstrap over clips",
            "judges": list(self.judges),
            "flips": self.flips,
            "settings": [
                {
                    "setting": name,
                    **self.facts[name],
                    "coverage": asdict(self.coverage[name]),
                    "scores": {k: asdict(e) for k, e in self.estimates[name].items()},
                }
                for name in self.settings
            ],
            "differences": [
                {"setting": a, "less": b, "scores": {k: asdict(e) for k, e in found.items()}}
                for (a, b), found in self.differences.items()
            ],
        }


def summarise(
    results: Results,
    scores_of: Any,
    against: str | None = None,
    draws: int = DRAWS,
) -> Summary:
    """Make the summary.

    Args:
        results: A folder.
        scores_of: `Benchmark.scores` of its benchmark.
        against: Setting to compare with; `full` if it is there, else the first, if None.
        draws: Of the bootstrap.

    Raises:
        ConfigError: There are no results, or no such setting.
    """
    if not results.results:
        raise ConfigError(f"[eval] {results.folder} holds no finished item yet")
    facts = {name: _facts(results.of(name)) for name in results.settings}
    settings = tuple(sorted(facts, key=lambda name: _place(name, facts[name])))
    reference = _reference(settings, against)
    judged = _judged(results)
    marks = {
        name: _marks(results.of(name), results.of(reference), judged.get(name, {}))
        for name in settings
    }
    tasks = {m.task for clips in marks.values() for ms in clips.values() for m in ms}
    benchmark = scores_of(tuple(sorted(tasks - {SESSION, AGREEMENT})))
    scores = (*benchmark, *SESSION_SCORES)
    if len(settings) > 1:
        scores += AGREEMENT_SCORES
    found = {name: estimates(scores, marks[name], draws=draws) for name in settings}
    kept = tuple(s for s in scores if any(e[s.name].value is not None for e in found.values()))
    names = {score.name for score in kept}
    heads = tuple(score.name for score in kept if score.head)
    pairs = {
        (a, b): {k: e for k, e in differences(scores, marks[a], marks[b], draws=draws).items()
                 if k in heads or (b == reference and k in names)}
        for a in settings for b in settings
        if a != b and (b == reference or settings.index(b) < settings.index(a))
    }  # fmt: skip
    return Summary(
        benchmark=results.manifest.benchmark,
        model=results.manifest.model,
        trained=results.manifest.trained,
        reading=results.manifest.reading,
        reference=reference if len(settings) > 1 else None,
        scores=kept,
        settings=settings,
        facts=facts,
        estimates={n: {k: e for k, e in of.items() if k in names} for n, of in found.items()},
        differences=pairs,
        coverage={name: coverage_of(results.of(name), judged.get(name)) for name in settings},
        judges=tuple(sorted({j.judge for j in results.judgements})),
        flips=_flips(marks),
    )


def left_out(problems: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Problems of a manifest for which something was left out."""
    return [problem for problem in problems if problem["kind"] in LEFT_OUT]


def _reference(settings: Sequence[str], against: str | None) -> str:
    if against is None:
        return FULL if FULL in settings else settings[0]
    if against not in settings:
        raise ConfigError(f"[eval] --against must be one of {'; '.join(settings)}; got {against!r}")
    return against


def _facts(results: Sequence[Result]) -> dict[str, Any]:
    """Policy and watermarks, by its name where every item failed."""
    name = results[0].record.setting
    policy, _, rest = name.partition(" ")
    high, slash, low = rest.partition(" ")[0].partition("/")
    marks = (int(high), int(low)) if slash and high.isdecimal() and low.isdecimal() else None
    return {
        "policy": policy,
        "high_watermark": marks[0] if marks else None,
        "low_watermark": marks[1] if marks else None,
    }


def _place(name: str, facts: Mapping[str, Any]) -> tuple[int, int, int, str]:
    known = [FULL, *(policy for policy in POLICIES if policy != FULL)]
    policy = facts["policy"]
    place = known.index(policy) if policy in known else len(known)
    return place, facts["high_watermark"] or 0, facts["low_watermark"] or 0, name


def _judged(results: Results) -> dict[str, dict[tuple[str, str], tuple[Mark, ...]]]:
    """Marks of judgements by setting, question and hash of the prompt."""
    found: dict[str, dict[tuple[str, str], tuple[Mark, ...]]] = {}
    for judgement in results.judgements:
        key = (judgement.question, judgement.prompt_hash)
        found.setdefault(judgement.setting, {})[key] = judgement.marks
    return found


def _marks(
    results: Sequence[Result],
    reference: Sequence[Result],
    judged: Mapping[tuple[str, str], tuple[Mark, ...]],
) -> dict[str, list[Mark]]:
    """All marks of a setting by clip."""
    others = {result.record.item: result for result in reference}
    found: dict[str, list[Mark]] = {}
    for result in results:
        record = result.record
        if record.error is not None:
            continue
        marks = found.setdefault(record.clip, [])
        marks += result.marks
        for unit in result.units:
            marks += judged.get((unit.question, hash_of(unit)), ())
        marks += _session_marks(result)
        other = others.get(record.item)
        if other is not None and other.record.error is None:
            marks += _agreement(result, other)
    return found


def _session_marks(result: Result) -> list[Mark]:
    record = result.record
    values = {
        "loop_seconds": record.loop_seconds,
        "update_ms": record.update_ms,
        "peak_span": float(record.peak_span),
        "tokens_seen": record.stats.get("tokens_seen"),
        "tokens_kept": record.stats.get("tokens_kept"),
    }
    return [Mark(record.item, SESSION, k, float(v)) for k, v in values.items() if v is not None]


def _agreement(result: Result, other: Result) -> list[Mark]:
    theirs = {answer.question: answer.text for answer in other.record.answers}
    marks = []
    for answer in result.record.answers:
        if answer.question in theirs:
            key, said = f"{result.record.item}#{answer.question}", theirs[answer.question]
            alike = 1.0 if answer.text == said else rouge_l(answer.text, said)
            marks.append(Mark(key, AGREEMENT, "rouge-l", alike))
            marks.append(Mark(key, AGREEMENT, "equal", float(answer.text == said)))
    return marks


def _flips(marks: Mapping[str, Mapping[str, Sequence[Mark]]]) -> float | None:
    """Of comparisons asked in both orders: how many named a winner by its place, not by itself."""
    pairs: dict[tuple[str, str], dict[str, float]] = {}
    for setting, clips in marks.items():
        for mark in (m for found in clips.values() for m in found):
            question, slash, order = mark.question.rpartition("/")
            if slash and order in ("AB", "BA") and mark.metric == "win":
                pairs.setdefault((setting, question), {})[order] = mark.value
    both = [pair for pair in pairs.values() if len(pair) == 2]
    return sum(p["AB"] != p["BA"] for p in both) / len(both) if both else None
