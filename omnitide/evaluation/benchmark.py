"""What the command asks of a benchmark. To add one: write it, name it in `registry.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from omnitide.evaluation.dataset import Dataset, Reading
from omnitide.evaluation.item import Item
from omnitide.evaluation.judgement import JudgeUnit
from omnitide.evaluation.mark import Mark
from omnitide.evaluation.record import Record
from omnitide.evaluation.score import Score


class Benchmark(Protocol):
    """A benchmark: from files to items, from records to marks, from marks to scores."""

    name: str

    def read(self, reading: Reading) -> Dataset:
        """Read the files.

        Raises:
            ConfigError: A file is missing or is no such file. Single rows are problems instead.
        """
        ...

    def marks(self, item: Item, record: Record) -> list[Mark]:
        """Judge-free marks of a record that did not fail."""
        ...

    def units(self, item: Item, record: Record) -> list[JudgeUnit]:
        """What of a record a judge may mark; empty where the benchmark needs no judge."""
        ...

    def scores(self, tasks: Sequence[str]) -> tuple[Score, ...]:
        """The authors' scores. `tasks`: those that have marks, sorted."""
        ...

    def predictions(self, pairs: Sequence[tuple[Item, Record]]) -> Mapping[str, str]:
        """Replies in the authors' own format, by file name, so that their scorers run on them."""
        ...


def question_key(item: Item, question: str) -> str:
    """The name of a question in marks."""
    return f"{item.id}#{question}"
