"""A run: every item under every setting, each exactly once, into a folder of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from omnitide.evaluation.benchmark import Benchmark
from omnitide.evaluation.dataset import Dataset
from omnitide.evaluation.item import Item
from omnitide.evaluation.journal import Journal
from omnitide.evaluation.pool import Job, Pool, follow_all
from omnitide.evaluation.record import Record
from omnitide.evaluation.results import ITEMS, Result
from omnitide.evaluation.setting import Setting


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: jobs done (those of earlier runs included), of all, and the newest."""

    done: int
    total: int
    record: Record | None = None


def run_all(
    benchmark: Benchmark,
    dataset: Dataset,
    settings: Sequence[Setting],
    folder: Path,
    make_pool: Callable[[], Pool],
    *,
    retry_failed: bool = False,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Follow what is not in the folder yet.

    Args:
        benchmark: Gives marks.
        dataset: Its items.
        settings: Each item is followed under each.
        folder: Where `items.jsonl` is or will be.
        make_pool: Makes the workers; called only if there is work, and closed at the end.
        retry_failed: Follow again what failed before.
        tell: Called before the first and after each.

    Raises:
        ConfigError: The journal can't be written, or holds something else.
        OmnitideError: A worker met what ends the run. Finished items stay.
    """
    items = {item.id: (index, item) for index, item in enumerate(dataset.items)}
    with Journal(folder / ITEMS) as journal:
        before = [Result.from_dict(line, journal.path).record for line in journal.lines]
        done = {r.key for r in before if r.error is None or not retry_failed}
        # Settings lie inside clips, so that a run that is stopped early has all of some clips.
        jobs = [
            Job(item, setting)
            for item in dataset.items
            for setting in settings
            if (setting.name, item.id) not in done
        ]
        total = len(dataset.items) * len(settings)
        finished = total - len(jobs)
        tell(Progress(finished, total))
        if not jobs:
            return
        pool = make_pool()
        try:
            for record in follow_all(pool, jobs):
                index, item = items[record.item]
                journal.add(make_result(benchmark, item, record, index).as_dict())
                finished += 1
                tell(Progress(finished, total, record))
        finally:
            pool.close()


def make_result(benchmark: Benchmark, item: Item, record: Record, order: int = 0) -> Result:
    """A record with its marks; one that failed has none."""
    if record.error is not None:
        return Result(record, order=order)
    marks = tuple(benchmark.marks(item, record))
    return Result(record, marks, tuple(benchmark.units(item, record)), order)
