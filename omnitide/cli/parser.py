"""The commands and their options. Defaults are read from where they stand, never written again."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from typing import Any

from omnitide import __version__
from omnitide.backends import BACKENDS
from omnitide.cli.attention_map_options import add_attention_map
from omnitide.cli.bench_options import add_bench
from omnitide.cli.convert_options import add_convert
from omnitide.cli.eval_options import add_eval
from omnitide.cli.migration import add_migration
from omnitide.cli.options import (
    Parser,
    choice,
    choices,
    number,
    number_or_none,
    stated,
    switch,
    text,
    texts,
)
from omnitide.config import DuplexConfig, MediaOptions, RetentionConfig, SamplingConfig
from omnitide.costs import NOMINAL
from omnitide.errors import ConfigError
from omnitide.following import DEFAULT_PROMPT
from omnitide.layouts import LAYOUTS
from omnitide.loading import load
from omnitide.policies import POLICIES
from omnitide.session import Session
from omnitide.simulation.shapes import DEFAULT_SHAPE, SHAPES
from omnitide.simulation.stream import MOST_UNITS

_MEDIA, _SAMPLING, _DUPLEX = MediaOptions(), SamplingConfig(), DuplexConfig()
_KEPT = RetentionConfig()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse arguments; `command` of the result is the function that runs them.

    Raises:
        ConfigError: An unknown option, a missing value, or one of the wrong kind.
        SystemExit: After --help and --version, which have been printed.
    """
    parser = Parser(
        prog="omnitide",
        description="Run omni-modal models on a stream of video and sound, in flat memory.",
    )
    parser.add_argument("--version", action="version", version=f"omnitide {__version__}")
    parser.set_defaults(command=lambda _: _print_help(parser), program=parser.prog)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_generate(commands)
    add_convert(commands)
    _add_env(commands)
    _add_selftest(commands)
    _add_models(commands)
    _add_simulate(commands)
    add_bench(commands)
    add_eval(commands)
    add_attention_map(commands)
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        names = " ".join(unknown)
        raise ConfigError(f"unknown arguments: {names}; see {options.program} --help")
    return options


def _add_generate(commands: Any) -> None:
    parser = commands.add_parser(
        "generate",
        help="follow a stream and answer questions about it",
        description="Let a model watch and hear a stream, in bounded memory, and answer questions "
        "about it. With neither a model nor media, a small trained model follows the clip that "
        "ships with it. Replies go to stdout, everything else to stderr.",
    )
    parser.set_defaults(program=parser.prog, command=_run_generate)
    text(parser, "NAME", "folder, or repository such as Qwen/Qwen2.5-Omni-3B", "--model")
    text(parser, "FILE", "film to follow: a file or a URL", "--video")
    text(parser, "FILE", "sound to follow; beside --video, instead of the film's", "--audio")
    texts(parser, "FILE", "still picture before the stream", "--image")
    text(parser, "FILE", "record the stream's units for omnitide simulate", "--trace")
    switch(parser, "print the memory that this needs, and load no weights", "--dry-run")
    switch(parser, "print one JSON object instead of words and table", "--json")
    switch(
        parser,
        "say more: each question, and progress also where stderr is no terminal",
        "--verbose",
    )
    _add_questions(parser.add_argument_group("questions"))
    _add_sampling(parser.add_argument_group("sampling"))
    _add_history(parser.add_argument_group("history"))
    stream = parser.add_argument_group("stream")
    _add_media(stream)
    memory = (
        "MiniCPM-o: seconds of sound heard again when its encoder begins anew, after 30 s; 0 is "
        f"the published way ({stated(_MEDIA.sound_memory)})"
    )
    number_or_none(stream, memory, "--sound-memory", type=float)
    _add_duplex(parser.add_argument_group("duplex"))
    _add_machine(parser.add_argument_group("machine"))


def _add_questions(group: Any) -> None:
    asked = f"question; - reads stdin ({stated(DEFAULT_PROMPT)})"
    texts(group, "TEXT", asked, "--prompt", "-p")
    when = (
        "when to ask, once the model has seen that far: prompt by prompt, or one prompt each "
        "time (default: at the end)"
    )
    texts(group, "SECONDS", when, "--ask-at", type=float)
    text(group, "TEXT", "system message (default: the model's)", "--system-prompt")
    _add_max_tokens(group)


def _add_sampling(group: Any) -> None:
    temperature = ("--temp", "--temperature")
    number(group, _SAMPLING.temperature, "0 is greedy", *temperature, dest="temperature")
    number(group, _SAMPLING.top_p, "share of probability drawn from; 1 is off", "--top-p")
    number(group, _SAMPLING.top_k, "likeliest tokens drawn from; 0 is off", "--top-k")
    number(group, _SAMPLING.min_p, "least share of the greatest probability; 0 is off", "--min-p")
    group.add_argument(
        "--seed", metavar="N", type=int, help="of the random numbers, to get the same reply again"
    )


def _add_history(group: Any) -> None:
    policy, layout = _default(Session, "policy"), _default(Session, "layout")
    choice(group, tuple(POLICIES), policy, "what is kept", "--policy")
    served = tuple(name for name, made in LAYOUTS.items() if not made.simulated)
    choice(group, served, layout, "where it lies", "--layout")
    add_migration(group, "measured", "measured")
    _add_kept(group)
    _add_kv_bits(group)


def _add_kept(group: Any) -> None:
    # None where not given: what the family of the model says then holds.
    cut, aim = stated(_KEPT.high_watermark), stated(_KEPT.low_watermark)
    number_or_none(group, f"tokens above which the history is cut ({cut})", "--high-watermark")
    number_or_none(group, f"tokens that a cut aims at ({aim})", "--low-watermark")
    number_or_none(group, "newest units kept whole (default: as many as fit)", "--recent-units")
    for flag, of, default in (
        ("--image-sink", "an older picture", _KEPT.image_sink),
        ("--audio-sink", "an older piece of sound", _KEPT.audio_sink),
        ("--text-budget", "older text and replies", _KEPT.text_budget),
    ):
        number_or_none(group, f"tokens kept of {of} ({stated(default)})", flag)
    sinks = f"streaming-llm: first tokens kept ({stated(_KEPT.sink_tokens)})"
    number_or_none(group, sinks, "--sink-tokens")
    share = f"h2o: share kept of the most attended tokens ({stated(_KEPT.heavy_share)})"
    number_or_none(group, share, "--heavy-share", type=float)
    first = f"streaming-vlm: first tokens of text kept ({stated(_KEPT.text_sink)})"
    number_or_none(group, first, "--text-sink")
    newest = f"streaming-vlm: newest tokens of text kept ({stated(_KEPT.text_window)})"
    number_or_none(group, newest, "--text-window")
    seen = f"streaming-vlm: seconds of picture and sound kept ({stated(_KEPT.vision_window)})"
    number_or_none(group, seen, "--vision-window", type=float)
    number_or_none(
        group,
        "most tokens in memory; lowers the watermarks to fit (default: none)",
        "--max-kv-size",
    )


def _add_kv_bits(group: Any) -> None:
    bits = "bits of keys and values: 8 packs them, where the backend can (default: its dtype)"
    number_or_none(group, bits, "--kv-bits")


def _add_media(group: Any) -> None:
    # None where not given: what the family of the model says then holds.
    frames = f"frames taken a second; of MiniCPM-o 1.0 ({stated(_MEDIA.fps)})"
    number_or_none(group, frames, "--fps", type=float)
    seconds = f"seconds of a unit; of MiniCPM-o 1.0 ({stated(_MEDIA.chunk_seconds)})"
    number_or_none(group, seconds, "--chunk-seconds", type=float)
    pixels = (
        "most pixels of a frame; larger ones are scaled down; MiniCPM-o scales each to about "
        "448x448 and adds a slice for each 200,704, if two or more; fewer where the checkpoint was "
        "made for fewer"
    )
    number_or_none(group, f"{pixels} ({stated(_MEDIA.max_pixels)})", "--max-pixels")


def _add_duplex(group: Any) -> None:
    switch(
        group,
        "let the model speak when it decides to, and take no questions: MiniCPM-o 4.5",
        "--duplex",
    )
    text(group, "FILE", "clip of the voice to speak with, 0.1 s to 30 s", "--voice")
    listen = f"first units in which it listens ({stated(_DUPLEX.force_listen)})"
    number_or_none(group, listen, "--force-listen")
    most = f"most tokens that it says in a unit ({stated(_DUPLEX.unit_tokens)})"
    number_or_none(group, most, "--unit-tokens")
    recall = f"tokens of dropped speech kept in the system message ({stated(_DUPLEX.recall)})"
    number_or_none(group, recall, "--recall")


def _add_machine(group: Any) -> None:
    names = ("auto", *BACKENDS)
    choice(group, names, _default(load, "backend"), "where it runs", "--backend")
    dtypes = "float32, float16, bfloat16 or float64 (default: the backend's)"
    text(group, "TYPE", dtypes, "--dtype")


def _add_max_tokens(group: Any) -> None:
    number(group, _default(Session, "max_tokens"), "longest reply", "--max-tokens", "-m")


def _add_env(commands: Any) -> None:
    parser = commands.add_parser(
        "env",
        help="show versions, backends and devices",
        description="Show versions and devices, and of each backend whether it can be used.",
    )
    parser.set_defaults(program=parser.prog, command=_run_env)
    switch(parser, "print one JSON object", "--json")


def _add_selftest(commands: Any) -> None:
    parser = commands.add_parser(
        "selftest",
        help="try the MLX backend and its Metal shaders on this machine",
        description="Compare what the MLX backend gives, on a Mac through its Metal shaders, with "
        "the reference, and time attention. The report is meant to be put into an issue.",
    )
    parser.set_defaults(program=parser.prog, command=_run_selftest)
    parser.add_argument(
        "--dtype",
        metavar="TYPE",
        choices=("float32", "float16", "bfloat16"),
        help="only this one: float32, float16 or bfloat16 (default: all)",
    )
    switch(parser, "compare only, without times", "--quick")


def _add_models(commands: Any) -> None:
    parser = commands.add_parser(
        "models",
        help="show supported models and what a stream costs them",
        description="Show the supported model families and checkpoints, and for a picture size, "
        "frame rate and sound the tokens of a unit and a minute and the memory they take.",
    )
    parser.set_defaults(program=parser.prog, command=_run_models)
    number(parser, 1920, "pixels of the film", "--width")
    number(parser, 1080, "pixels of the film", "--height")
    switch(parser, "a film without sound", "--no-audio")
    _add_media(parser)
    cut = "tokens above which the history is cut"
    number(parser, _KEPT.high_watermark, cut, "--high-watermark")
    _add_max_tokens(parser)
    switch(parser, "print one JSON object", "--json")


def _add_simulate(commands: Any) -> None:
    parser = commands.add_parser(
        "simulate",
        help="show what policies and layouts keep, move and cost, without a model",
        description="Let a policy and a layout follow a stream of units, without a model, and show "
        "what they keep, where it lies, what is moved and what that costs.",
    )
    policy, layout = _default(Session, "policy"), _default(Session, "layout")
    parser.set_defaults(program=parser.prog, command=_run_simulate)
    parser.set_defaults(default_policy=policy, default_layout=layout)
    shapes = f"kind of stream: {', '.join(SHAPES)} ({stated(DEFAULT_SHAPE)})"
    parser.add_argument("--shape", metavar="NAME", choices=tuple(SHAPES), help=shapes)
    text(
        parser,
        "FILE",
        "follow a stream that omnitide generate --trace recorded, under its policy and layout",
        "--trace",
    )
    units = (
        f"units of the stream, of a shape at most {MOST_UNITS:,} (default: 400, or all of a trace)"
    )
    number_or_none(parser, units, "--units")
    number_or_none(parser, "of the shape's random numbers (default: 0)", "--seed")
    choices(parser, tuple(POLICIES), policy, "what is kept", "--policy")
    choices(parser, tuple(LAYOUTS), layout, "where it lies", "--layout")
    switch(
        parser,
        "every layout side by side; with --layout and no --policy, every policy",
        "--compare",
    )
    text(parser, "FILE", "draw it: a name that ends in .png or .svg (needs matplotlib)", "--plot")
    switch(parser, "print a JSON list with an object for each row", "--json")
    _add_kept(parser.add_argument_group("history"))
    moves = parser.add_argument_group("migration")
    tile, row = (f"{cost:g}, or a trace's" for cost in (NOMINAL.tile_us, NOMINAL.row_us))
    add_migration(moves, tile, row)


def _default(function: Any, name: str) -> Any:
    """The default of a parameter."""
    return inspect.signature(function).parameters[name].default


def _print_help(parser: Parser) -> int:
    parser.print_help()
    return 0


# The commands import the model and media code, which parsing does not need.


def _run_generate(options: argparse.Namespace) -> int:
    from omnitide.cli.generate import generate

    return generate(options)


def _run_env(options: argparse.Namespace) -> int:
    from omnitide.cli.env import env

    return env(options)


def _run_selftest(options: argparse.Namespace) -> int:
    from omnitide.cli.selftest import selftest

    return selftest(options)


def _run_models(options: argparse.Namespace) -> int:
    from omnitide.cli.models import models

    return models(options)


def _run_simulate(options: argparse.Namespace) -> int:
    from omnitide.cli.simulate import run_simulate

    return run_simulate(options)
