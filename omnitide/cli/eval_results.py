"""`omnitide eval judge | summary | figure | card`: what is made of results that are there."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omnitide.cli import FAILED, INTERRUPTED
from omnitide.cli.console import PlainConsole
from omnitide.cli.eval_meter import EvalMeter
from omnitide.cli.plot import open_picture
from omnitide.cli.terminal import printable, say, write_words
from omnitide.errors import ConfigError, JudgeError
from omnitide.evaluation.card import write_card
from omnitide.evaluation.judge import Judge
from omnitide.evaluation.judging import judge_all
from omnitide.evaluation.registry import make_benchmark
from omnitide.evaluation.report import write_summary, write_text
from omnitide.evaluation.results import read_results
from omnitide.evaluation.summary import Summary, summarise
from omnitide.evaluation.tables import markdown


def judge(options: argparse.Namespace) -> int:
    """Let a judge mark what is not marked yet. Returns the exit code.

    Raises:
        ConfigError: No judge is named, or nothing is for one.
    """
    asked = make_judge(options)
    if asked is None:
        raise ConfigError("[judge] name a judge with --judge-url and --judge-model")
    folder, code = Path(options.folder), 0
    with EvalMeter(PlainConsole(stderr=True), verbose=False) as meter:
        try:
            judge_all(folder, asked, retry_failed=options.retry_failed, tell=meter.judged)
        except KeyboardInterrupt:
            say("error", f"interrupted; run the same command again to go on{meter.so_far}")
            code = INTERRUPTED
        except JudgeError as error:
            say("error", str(error))
            code = FAILED
    _summarised(folder, options.against, options.json, all_scores=False)
    return code


def summary(options: argparse.Namespace) -> int:
    """Write and show the summary. Returns the exit code."""
    _summarised(Path(options.folder), options.against, options.json, options.all)
    return 0


def figure(options: argparse.Namespace) -> int:
    """Draw a figure. Returns the exit code.

    Raises:
        ConfigError: No file is named, the folders hold no results, or have no such score.
    """
    if options.plot is None:
        raise ConfigError("[eval] name the file to draw with --plot")
    with open_picture(options.plot) as picture:
        from omnitide.evaluation.picture import draw_time, draw_watermarks

        found = [_read(Path(folder)) for folder in options.folders]
        draw = draw_time if options.number == "13" else draw_watermarks
        picture.write(lambda: draw(found, options.score))
    return 0


def card(options: argparse.Namespace) -> int:
    """Write a model card. Returns the exit code.

    Raises:
        ConfigError: The folders hold no results, or those of several checkpoints.
    """
    folders = [Path(folder) for folder in options.folders]
    results = [read_results(folder) for folder in folders]
    text = write_card([(found, _read(found.folder)) for found in results])
    if options.output is None:
        write_words(text)
    else:
        write_text(Path(options.output), text)
    return 0


def make_judge(options: argparse.Namespace) -> Judge | None:
    """The judge that the options name; None if they name none.

    Raises:
        ConfigError: A judge without a model or without an address.
    """
    url, model = options.judge_url, options.judge_model
    if url is None and model is None:
        return None
    if url is None or model is None:
        raise ConfigError("[judge] --judge-url and --judge-model go together; give both")
    return Judge(url, model, os.environ.get(options.judge_key_env) or None)


def show_summary(
    summary: Summary, problems: Sequence[dict[str, Any]], as_json: bool, all_scores: bool
) -> None:
    """Print a summary to stdout."""
    if as_json:
        found = {**summary.as_dict(), "problems": list(problems)}
        write_words(json.dumps(found, indent=2, allow_nan=False) + "\n")
    else:
        write_words(printable(markdown(summary, problems, short=not all_scores)))


def _summarised(folder: Path, against: str | None, as_json: bool, all_scores: bool) -> None:
    results = read_results(folder)
    benchmark = make_benchmark(results.manifest.benchmark)
    found = write_summary(folder, benchmark, against)
    show_summary(found, results.manifest.problems, as_json, all_scores)


def _read(folder: Path) -> Summary:
    results = read_results(folder)
    return summarise(results, make_benchmark(results.manifest.benchmark).scores)
