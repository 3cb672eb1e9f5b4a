"""A run of `recall`: streams under settings, in this process or in several, and its manifest."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omnitide.embedded import default_checkpoint
from omnitide.evaluation.checksum import checkpoint_hash, file_hash
from omnitide.evaluation.dataset import Dataset
from omnitide.evaluation.machine import backend_name, machine_facts
from omnitide.evaluation.manifest import Manifest, options_dict
from omnitide.evaluation.pool import InlinePool, LoadPlan, Pool
from omnitide.evaluation.processes import ProcessPool
from omnitide.evaluation.run import Progress, run_all
from omnitide.evaluation.setting import Setting
from omnitide.models.checkpoint import read_config
from omnitide.models.hub import resolve
from training.measure.recall import Recall, RecallOptions


@dataclass(frozen=True, slots=True)
class OutOfTime(Exception):
    """The minutes of a run are over."""


def follow(
    recall: Recall,
    dataset: Dataset,
    settings: Sequence[Setting],
    folder: Path,
    plan: LoadPlan,
    workers: int,
    minutes: float | None,
) -> int:
    """Do what is still to be done, and tell of it on standard error.

    Args:
        recall, dataset, settings: What is asked, of which streams, under which settings.
        folder: Of the results; what is there already is not done again.
        plan: How a model is loaded.
        workers: Processes; 1: this one.
        minutes: Stop after so many, None: never.

    Returns:
        The exit code: 130 if interrupted, else 0.
    """
    started = time.monotonic()

    def tell(progress: Progress) -> None:
        seconds = time.monotonic() - started
        record = progress.record
        what = "" if record is None else f" {record.item} {record.setting}"
        failed = "" if record is None or record.error is None else f" failed: {record.error}"
        print(f"{progress.done}/{progress.total} {seconds:.0f} s{what}{failed}", file=sys.stderr)
        if minutes is not None and seconds > 60 * minutes and progress.done < progress.total:
            raise OutOfTime

    # Read by BLAS when the workers start; each has a core of its own.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    def make_pool() -> Pool:
        if workers > 1:
            return ProcessPool(plan, workers)
        return InlinePool(plan.load(), plan.options)

    try:
        run_all(recall, dataset, settings, folder, make_pool, tell=tell)
    except (KeyboardInterrupt, OutOfTime) as stopped:
        why = "interrupted" if isinstance(stopped, KeyboardInterrupt) else "out of time"
        print(f"{why}; run the same command again to go on", file=sys.stderr)
        return 130 if isinstance(stopped, KeyboardInterrupt) else 0
    return 0


def describe_run(plan: LoadPlan, made: RecallOptions, dataset: Dataset, bank: Path) -> Manifest:
    """What a folder's results depend on; results of another manifest are not added to it."""
    folder = default_checkpoint() if plan.model is None else resolve(plan.model)
    machine = machine_facts(plan.backend, plan.dtype)
    first = Dataset(dataset.items[:1])  # so that streams may be added
    return Manifest(
        benchmark="recall",
        reading={**made.as_dict(), "tasks": ",".join(made.tasks), "bank": file_hash(bank)[:12]},
        data=first.digest,
        model=plan.model or "embedded default",
        checkpoint=checkpoint_hash(folder),
        backend=backend_name(plan.backend),
        dtype=machine["dtype"],
        trained=bool(read_config(folder).get("trained", True)),
        options=options_dict(plan.options),
        machine=machine,
        selection={
            "items": len(dataset.items),
            "questions": sum(len(item.questions) for item in dataset.items),
        },
    )
