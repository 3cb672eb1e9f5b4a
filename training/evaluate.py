"""`python -m training.evaluate`: what policies remember of held-out streams, with tables.

A run that was stopped goes on in the same folder; more streams and settings may be added to it.
The tables are of the streams that all settings have followed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from omnitide.config import MediaOptions
from omnitide.errors import ConfigError, OmnitideError
from omnitide.evaluation.report import write_summary, write_text
from omnitide.evaluation.results import Results, read_results
from omnitide.evaluation.runner import RunOptions
from omnitide.evaluation.setting import FULL, parse_policies, parse_watermarks
from omnitide.evaluation.summary import summarise
from omnitide.policies import POLICIES
from training.measure.models import RememberingPlan
from training.measure.recall import Recall, RecallOptions
from training.measure.run import describe_run, follow
from training.measure.tables import on_same_streams, solved_tasks, tables
from training.measure.variants import make_settings, parse_variant
from training.world.unit import FRAMES, SECONDS, SIZE

TABLES = "recall.md"

MEDIA = MediaOptions(FRAMES / SECONDS, float(SECONDS), SIZE * SIZE)
"""Units of scripts: what the model was trained on."""


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
    judged = None if options.counted_from is None else _judged(options.counted_from)
    describe_run(plan, made, dataset, bank).save(folder)
    code = follow(recall, dataset, settings, folder, plan, options.workers, options.minutes)
    results = read_results(folder)
    if not results.results:
        return code or 1
    counted = solved_tasks(summarise(judged or results, recall.scores))
    recall = Recall(counted)
    write_summary(folder, recall)
    same = on_same_streams(results)
    if not same.results:
        print("no stream was followed under every setting; no tables", file=sys.stderr)
        return code or 1
    text = tables(summarise(same, recall.scores), counted, same.results)
    write_text(folder / TABLES, text)
    print(text)
    return code


def _judged(name: str) -> Results:
    """Results by which tasks count: any with the full history.

    The checkpoint may have got another hash since: what is chosen there is written into it.

    Raises:
        ConfigError: They are others.
    """
    found = read_results(Path(name))
    if found.manifest.benchmark != Recall.name:
        raise ConfigError(
            f"[recall] --counted-from must hold results of {Recall.name}, {name} has those of "
            f"{found.manifest.benchmark}; give the folder of this model's run"
        )
    if FULL not in found.settings:
        raise ConfigError(
            f"[recall] --counted-from must hold results of the policy {FULL}, {name} has none; "
            f"run it there with --policy {FULL}"
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
