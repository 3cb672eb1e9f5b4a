"""The options of `omnitide eval` and its commands."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from omnitide.backends import BACKENDS
from omnitide.cli.eval_defaults import CHUNK_SECONDS, FPS, KEPT, WATERMARKS
from omnitide.cli.options import choice, number, number_or_none, stated, switch, text, texts
from omnitide.config import SamplingConfig
from omnitide.evaluation.needle.fact import KINDS
from omnitide.evaluation.needle.options import NeedleOptions
from omnitide.layouts import LAYOUTS
from omnitide.policies import POLICIES
from omnitide.session import Session

_SAMPLING = SamplingConfig()


def add_eval(commands: Any) -> None:
    """Add `eval` to the commands."""
    parser = commands.add_parser(
        "eval",
        help="run benchmarks of streaming understanding on your data",
        description="Run benchmarks with the files as their authors lay them out, under several "
        "policies and watermarks in one run. See docs/evaluation.md.",
    )
    parser.set_defaults(program=parser.prog, command=lambda _: _print_help(parser))
    evals = parser.add_subparsers(title="evaluations", metavar="EVALUATION")
    _add_streamingbench(evals)
    _add_svbench(evals)
    _add_livesports(evals)
    _add_ovobench(evals)
    _add_needle(evals)
    _add_judge(evals)
    _add_summary(evals)
    _add_figure(evals)
    _add_card(evals)


def _add_streamingbench(evals: Any) -> None:
    files = "StreamingBench's src/data, or its questions_*.json or CSV files"
    parser = _benchmark(evals, "streamingbench", "timed multiple choice, and proactive", files)
    _add_protocol(parser)
    context = "official protocol: seconds shown before a question, or all (default: 60)"
    text(parser, "SECONDS", context, "--context")
    switch(parser, "leave known faults of the files as they are", "--as-published")


def _add_svbench(evals: Any) -> None:
    folder = "folder with Dialogue, Streaming and Meta"
    parser = _benchmark(evals, "svbench", "dialogues about a film", folder)
    tracks = ("dialogue", "streaming", "dialogue-zh", "streaming-zh")
    choice(parser, tracks, tracks[0], "which questions", "--track")


def _add_livesports(evals: Any) -> None:
    file = "LiveSports-3K-CC.json, or a folder that holds it"
    parser = _benchmark(evals, "livesports", "live commentary of sports", file)
    baseline = "JSON lines of another commentator; a judge then compares instead of marking"
    text(parser, "FILE", baseline, "--baseline")


def _add_ovobench(evals: Any) -> None:
    file = "ovo_bench_new.json, or a folder that holds it"
    parser = _benchmark(evals, "ovobench", "choices about past and present, probes to come", file)
    _add_protocol(parser)


def _add_needle(evals: Any) -> None:
    options = NeedleOptions()
    parser = evals.add_parser(
        "needle",
        help="facts in made-up streams, asked for later; needs no data",
        description="Make streams, put a fact into each, ask for it later, and show what was "
        "recalled and what the history still held of it, by modality, distance and policy.",
    )
    parser.set_defaults(program=parser.prog, command=_run_needle, evaluation="needle")
    kinds = f"how facts come in: {', '.join(KINDS)} (default: all; speech needs espeak-ng)"
    parser.add_argument(
        "--modality", metavar="NAME", choices=tuple(KINDS), action="append", help=kinds
    )
    places = " ".join(f"{distance:g}" for distance in options.distances)
    parser.add_argument(
        "--distance",
        metavar="SECONDS",
        type=float,
        nargs="+",
        default=options.distances,
        help=f"seconds between the end of a fact and the question ({stated(places)})",
    )
    number(parser, options.samples, "streams of each modality and distance", "--samples")
    number(parser, options.lead, "seconds before a fact", "--lead")
    number(parser, options.size, "pixels of the picture's sides", "--size")
    text(parser, "FILE", "draw recall and what is kept over distance (needs matplotlib)", "--plot")
    add_run(parser, "needle", own_units=True)


def _add_protocol(parser: Any) -> None:
    names = "one session a film, or as the authors' code does it"
    choice(parser, ("stream", "official"), "stream", names, "--protocol")


def _benchmark(evals: Any, name: str, what: str, files: str) -> Any:
    parser = evals.add_parser(name, help=what, description=f"{name}: {what}.")
    parser.set_defaults(program=parser.prog, command=_run_benchmark, evaluation=name)
    texts(parser, "PATH", files, "--data")
    text(parser, "FOLDER", "where the films are, however deep", "--videos")
    parser.add_argument(
        "--audio",
        metavar="WHEN",
        choices=("auto", "on", "off"),
        default="auto",
        help="whether sound is heard: on, off, or auto: as the benchmark says (default: auto)",
    )
    texts(parser, "NAME", "only questions of this task", "--task")
    number_or_none(parser, "only the first clips (default: all)", "--limit")
    add_run(parser, name)
    return parser


def add_run(parser: Any, name: str, own_units: bool = False) -> None:
    """What every evaluation that follows items takes: model, sweep, stream, workers, output.

    `own_units`: units as the model's family cuts them by default, not as the paper does.
    """
    text(parser, "NAME", "folder, or repository such as Qwen/Qwen2.5-Omni-3B", "--model")
    out = f"folder of the results; a run that was stopped goes on there (omnitide-{name})"
    text(parser, "FOLDER", out, "--out")
    switch(parser, "follow again what failed, judge again what was unreadable", "--retry-failed")
    switch(parser, "print the summary as one JSON object", "--json")
    switch(parser, "say each item also where stderr is no terminal", "--verbose")
    _add_against(parser)
    group = parser.add_argument_group("history")
    policies = f"policies by commas: {', '.join(POLICIES)} (default: omnipick)"
    text(group, "NAMES", policies, "--policy")
    marks = f"pairs high/low by commas; each policy runs under each ({stated(WATERMARKS)})"
    text(group, "PAIRS", marks, "--watermarks")
    served = tuple(key for key, made in LAYOUTS.items() if not made.simulated)
    layout = inspect.signature(Session).parameters["layout"].default
    choice(group, served, layout, "where it lies", "--layout")
    for flag, help, kind in KEPT:
        number_or_none(group, help, flag, type=kind)
    stream = parser.add_argument_group("stream")
    if own_units:
        number_or_none(stream, "frames taken a second (default: the model's)", "--fps", type=float)
        seconds = "seconds of a unit (default: the model's)"
        number_or_none(stream, seconds, "--chunk-seconds", type=float)
    else:
        number(stream, FPS, "frames taken a second", "--fps")
        number(stream, CHUNK_SECONDS, "seconds of a unit", "--chunk-seconds")
    number_or_none(stream, "most pixels of a frame (default: the model's)", "--max-pixels")
    text(stream, "TEXT", "system message (default: the model's)", "--system-prompt")
    temperature = ("--temp", "--temperature")
    number(stream, _SAMPLING.temperature, "0 is greedy", *temperature, dest="temperature")
    number(stream, 0, "of the random numbers", "--seed")
    machine = parser.add_argument_group("machine")
    choice(machine, ("auto", *BACKENDS), "auto", "where it runs", "--backend")
    dtypes = "float32, float16, bfloat16 or float64 (default: the backend's)"
    text(machine, "TYPE", dtypes, "--dtype")
    number(machine, 1, "processes, each with a model of its own", "--workers")
    ray = "workers on a Ray cluster: its address, auto, or local to start one here"
    text(machine, "ADDRESS", ray, "--ray")
    number(machine, 0.0, "GPUs that a Ray worker asks for", "--ray-gpus")
    _add_judge_options(parser.add_argument_group("judge"))


def _add_judge_options(group: Any) -> None:
    url = "base of an OpenAI-compatible endpoint, such as http://localhost:8000/v1 (default: none)"
    text(group, "URL", url, "--judge-url")
    text(group, "NAME", "model that judges", "--judge-model")
    group.add_argument(
        "--judge-key-env",
        metavar="NAME",
        default="OPENAI_API_KEY",
        help="environment variable with the key (default: OPENAI_API_KEY)",
    )


def _add_against(parser: Any) -> None:
    text(parser, "SETTING", "setting that others are compared with (default: full)", "--against")


def _add_judge(evals: Any) -> None:
    parser = _on_results(evals, "judge", "let a judge mark replies that are there", _run_judge)
    switch(parser, "judge again what was unreadable", "--retry-failed")
    switch(parser, "print the summary as one JSON object", "--json")
    _add_against(parser)
    _add_judge_options(parser)


def _add_summary(evals: Any) -> None:
    parser = _on_results(evals, "summary", "the tables of results that are there", _run_summary)
    switch(parser, "print one JSON object", "--json")
    switch(parser, "every score and every pair of settings", "--all")
    _add_against(parser)


def _add_figure(evals: Any) -> None:
    parser = evals.add_parser(
        "figure",
        help="draw the paper's figure 13 or 14 from results",
        description="Draw quality against session time (13) or watermark sensitivity (14); a panel "
        "for each folder of results.",
    )
    parser.set_defaults(program=parser.prog, command=_run_figure)
    parser.add_argument("number", metavar="NUMBER", choices=("13", "14"), help="13 or 14")
    parser.add_argument("folders", metavar="FOLDER", nargs="+", help="folders of results")
    text(parser, "FILE", "file to draw: a name that ends in .png or .svg", "--plot")
    text(parser, "NAME", "score to draw (default: the benchmark's main one)", "--score")


def _add_card(evals: Any) -> None:
    parser = evals.add_parser(
        "card",
        help="write a model card from results",
        description="Write checkpoint hash, settings, machine, versions and results of one model "
        "into one Markdown file.",
    )
    parser.set_defaults(program=parser.prog, command=_run_card)
    parser.add_argument("folders", metavar="FOLDER", nargs="+", help="folders of results")
    text(parser, "FILE", "file to write (default: stdout)", "--output")


def _on_results(evals: Any, name: str, help: str, command: Any) -> Any:
    parser = evals.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
    parser.set_defaults(program=parser.prog, command=command)
    parser.add_argument("folder", metavar="FOLDER", help="folder of results")
    return parser


def _print_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 0


# The commands import the evaluation code, which parsing does not need.


def _run_benchmark(options: argparse.Namespace) -> int:
    from omnitide.cli.eval import run_benchmark

    return run_benchmark(options)


def _run_needle(options: argparse.Namespace) -> int:
    from omnitide.cli.needle import run_needle

    return run_needle(options)


def _run_judge(options: argparse.Namespace) -> int:
    from omnitide.cli.eval_results import judge

    return judge(options)


def _run_summary(options: argparse.Namespace) -> int:
    from omnitide.cli.eval_results import summary

    return summary(options)


def _run_figure(options: argparse.Namespace) -> int:
    from omnitide.cli.eval_results import figure

    return figure(options)


def _run_card(options: argparse.Namespace) -> int:
    from omnitide.cli.eval_results import card

    return card(options)
