"""`python -m training.evaluate`: what policies remember of held-out streams, with tables.

A run that was stopped goes on in the same folder; more streams and settings may be added to it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omnitide.config import MediaOptions
from omnitide.embedded import default_checkpoint
from omnitide.errors import ConfigError, OmnitideError
from omnitide.evaluation.checksum import checkpoint_hash, file_hash
from omnitide.evaluation.dataset import Dataset
from omnitide.evaluation.machine import backend_name, machine_facts
from omnitide.evaluation.manifest import Manifest, options_dict
from omnitide.evaluation.pool import InlinePool, LoadPlan, Pool
from omnitide.evaluation.processes import ProcessPool
from omnitide.evaluation.report import write_summary, write_text
from omnitide.evaluation.results import read_results
from omnitide.evaluation.run import Progress, run_all
from omnitide.evaluation.runner import RunOptions
from omnitide.evaluation.setting import Setting, parse_policies, parse_watermarks
from omnitide.evaluation.summary import summarise
from omnitide.models.checkpoint import read_config
from omnitide.models.hub import resolve
from omnitide.policies import POLICIES
from training.recall import Recall, RecallOptions
from training.recall_tables import solved_tasks, tables
from training.remember import RememberingPlan
from training.settings_of_runs import make_settings, parse_variant
from training.size import FRAMES, SECONDS, SIZE

TABLES = "recall.md"

MEDIA = MediaOptions(FRAMES / SECONDS, float(SECONDS), SIZE * SIZE)
"""Units of scripts: what the model was trained on."""


@dataclass(frozen=True, slots=True)
class OutOfTime(Exception):
    """The minutes of a run are over."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except OmnitideError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m training.evaluate", description=__doc__)
    add = parser.add_argument
    add("--model", metavar="NAME", help="folder of the model (default: the embedded one)")
    add("--speech", metavar="FILE", required=True, help="bank that training.speech wrote")
    add("--out", metavar="FOLDER", required=True, help="folder of the results")
    add("--split", default="tune", help="tune or test (default: tune)")
    add("--streams", type=int, default=60, help="streams (default: 60)")
    add("--units", type=int, default=46, help="units of a stream (default: 46)")
    add("--questions", type=int, default=30, help="questions of a stream (default: 30)")
    add("--tasks", default="", help="tasks by commas (default: all)")
    add("--inline", action="store_true", help="leave questions of the script in the stream")
    add("--policy", default=",".join(POLICIES), help="policies by commas (default: all)")
    add("--watermarks", default="860/600", help="pairs high/low by commas (default: 860/600)")
    add(
        "--vary",
        metavar="POLICY:NAME=NUMBER,...",
        action="append",
        default=[],
        help="besides, a policy with other budgets; may be repeated",
    )
    add("--layouts", default="predictive", help="layouts by commas (default: predictive)")
    add("--seed", type=int, default=0, help="of the scripts (default: 0)")
    add("--workers", type=int, default=1, help="processes (default: 1)")
    add("--backend", default="auto", help="where it runs (default: auto)")
    add("--dtype", help="of the computation (default: the backend's)")
    counted = "results on another split by which tasks count (default: these)"
    add("--counted-from", metavar="FOLDER", help=counted)
    add("--minutes", type=float, help="stop after so many, with tables of what is there")
    return parser


def _run(options: argparse.Namespace) -> int:
    made = RecallOptions(
        options.split,
        options.units,
        options.questions,
        tuple(name for name in options.tasks.split(",") if name),
        options.inline,
        options.seed,
    )
    settings = make_settings(
        parse_policies(options.policy),
        parse_watermarks(options.watermarks),
        [parse_variant(text) for text in options.vary],
        tuple(options.layouts.split(",")),
    )
    recall, folder, bank = Recall(), Path(options.out), Path(options.speech).absolute()
    if not bank.is_file():
        raise ConfigError(f"[recall] --speech must be a bank, there is none at {bank}; make it")
    dataset = recall.read(made, options.streams, str(bank))
    plan = RememberingPlan(options.model, options.backend, options.dtype, RunOptions(media=MEDIA))
    _manifest(plan, made, dataset, bank).save(folder)
    code = _follow(recall, dataset, settings, folder, plan, options.workers, options.minutes)
    results = read_results(folder)
    if not results.results:
        return code or 1
    judged = results if options.counted_from is None else read_results(Path(options.counted_from))
    counted = solved_tasks(summarise(judged, recall.scores))
    recall = Recall(counted)
    summary = write_summary(folder, recall)
    text = tables(summary, counted, results.results)
    write_text(folder / TABLES, text)
    print(text)
    return code


def _follow(
    recall: Recall,
    dataset: Dataset,
    settings: Sequence[Setting],
    folder: Path,
    plan: LoadPlan,
    workers: int,
    minutes: float | None,
) -> int:
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


def _manifest(plan: LoadPlan, made: RecallOptions, dataset: Dataset, bank: Path) -> Manifest:
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


if __name__ == "__main__":
    sys.exit(main())
