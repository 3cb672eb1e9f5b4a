"""A folder of results: `run.json`, `items.jsonl`, `judge.jsonl`, and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnitide.errors import ConfigError
from omnitide.evaluation.journal import read_lines
from omnitide.evaluation.judgement import Judgement, JudgeUnit
from omnitide.evaluation.manifest import Manifest
from omnitide.evaluation.mark import Mark
from omnitide.evaluation.record import Record

ITEMS, JUDGE = "items.jsonl", "judge.jsonl"


@dataclass(frozen=True, slots=True)
class Result:
    """A line of `items.jsonl`: a record with its judge-free marks and what a judge may mark."""

    record: Record
    marks: tuple[Mark, ...] = ()
    units: tuple[JudgeUnit, ...] = ()
    order: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "record": self.record.as_dict(),
            "marks": [mark.as_list() for mark in self.marks],
            "units": [unit.as_dict() for unit in self.units],
            "order": self.order,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], path: Path) -> Result:
        """The result that `as_dict` made.

        Raises:
            ConfigError: It was made by something else.
        """
        try:
            return cls(
                Record.from_dict(data["record"]),
                tuple(Mark.from_list(mark) for mark in data["marks"]),
                tuple(JudgeUnit.from_dict(unit) for unit in data["units"]),
                int(data["order"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"[eval] {path} holds a line that is no result ({error}); take another --out"
            ) from error


@dataclass(frozen=True, slots=True)
class Results:
    """All of a folder.

    Attributes:
        folder: The folder.
        manifest: What it belongs to.
        results: By the order of the data, whatever order they came in.
        judgements: Of these results.
    """

    folder: Path
    manifest: Manifest
    results: tuple[Result, ...]
    judgements: tuple[Judgement, ...] = field(default=())

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings, in the order in which they first came in the file."""
        return tuple(dict.fromkeys(result.record.setting for result in self.results))

    def of(self, setting: str) -> list[Result]:
        """The results of a setting."""
        return [result for result in self.results if result.record.setting == setting]


def read_results(folder: Path) -> Results:
    """Read a folder.

    Raises:
        ConfigError: It holds no results, or damaged ones.
    """
    manifest = Manifest.load(folder)
    found = latest([Result.from_dict(d, folder / ITEMS) for d in read_lines(folder / ITEMS)])
    settings = {name: i for i, name in enumerate(dict.fromkeys(r.record.setting for r in found))}
    found.sort(key=lambda result: (settings[result.record.setting], result.order))
    return Results(folder, manifest, tuple(found), tuple(read_judgements(folder)))


def read_judgements(folder: Path) -> list[Judgement]:
    """Judgements of a folder.

    Raises:
        ConfigError: A line is none.
    """
    path, found = folder / JUDGE, []
    for line in read_lines(path):
        try:
            found.append(Judgement.from_dict(line))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"[eval] {path} holds a line that is no judgement") from error
    return found


def latest(results: Sequence[Result]) -> list[Result]:
    """The last result of each setting and item: a failed item may have been tried again."""
    return list({result.record.key: result for result in results}.values())
