"""The options of `omnitide bench` and its benchmarks."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from omnitide.backends import BACKENDS
from omnitide.bench.settings import LIVE, PEERS
from omnitide.bench.shapes import LARGE, SHAPES, SMALL
from omnitide.cli.options import (
    choice,
    choices,
    count,
    number,
    number_or_none,
    stated,
    switch,
    text,
)
from omnitide.config import RetentionConfig
from omnitide.layouts import LAYOUTS
from omnitide.policies import POLICIES
from omnitide.session import Session
from omnitide.simulation.shapes import SHAPES as STREAMS

_KEPT = RetentionConfig()


def add_bench(commands: Any) -> None:
    """Add `bench` to the commands."""
    parser = commands.add_parser(
        "bench",
        help="measure attention, copies, tokens, updates and sessions on this machine",
        description="Measure on random data of a model's sizes, beside what the device could do at "
        "best. See docs/benchmarks.md.",
    )
    parser.set_defaults(program=parser.prog, command=lambda _: _print_help(parser))
    benches = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK")
    _add_attention(benches)
    _add_migrate(benches)
    _add_decode(benches)
    _add_update(benches)
    _add_session(benches)


def _add_attention(benches: Any) -> None:
    parser = _bench(benches, "attention", "one layer's attention over live cells")
    _add_heads(parser)
    numbers(parser, "new tokens of a call (default: 1)", "--queries")
    numbers(parser, "live cells before them (default: 2048 2816 8192)", "--history")
    choices(parser, LIVE, "scattered", "where the live cells lie", "--live")
    _add_kept(parser)
    _add_peers(parser)
    _add_runs(parser, 20)
    switch(parser, "read the same cells again and again", "--warm")


def _add_migrate(benches: Any) -> None:
    parser = _bench(benches, "migrate", "copies of rows in all layers")
    _add_heads(parser)
    numbers(parser, "rows of a migration (default: 500 2000)", "--rows")
    _add_layers(parser)
    _add_runs(parser, 20)
    switch(parser, "copy the same rows again and again", "--warm")


def _add_decode(benches: Any) -> None:
    parser = _bench(benches, "decode", "tokens of a reply, a whole decoder")
    numbers(parser, "live cells (default: 2048 2816 8192)", "--history")
    _add_layers(parser)
    _add_packing(parser)
    _add_kept(parser)
    _add_peers(parser)
    _add_runs(parser, 20)


def _add_update(benches: Any) -> None:
    parser = _bench(benches, "update", "units of a stream, a whole decoder, and what they evict")
    numbers(parser, "tokens of a unit (default: 512)", "--tokens")
    at = "tokens of the stream before it (default: 4096 8192 16384 32768, on a CPU 1024 to 4096)"
    numbers(parser, at, "--history")
    switch(parser, "say what attention, matrix products and migration take of it", "--split")
    _add_layers(parser)
    _add_packing(parser)
    _add_kept(parser, "full, then omnipick")
    _add_peers(parser)
    _add_runs(parser, 20)


def _add_session(benches: Any) -> None:
    parser = _bench(benches, "session", "a stream of minutes or hours: is its end as fast?")
    number(parser, 60, "minutes of the stream", "--minutes")
    _add_layers(parser)
    _add_kept(parser)
    _add_runs(parser, 1)


def _bench(benches: Any, name: str, help: str) -> Any:
    parser = benches.add_parser(name, help=help, description=f"Measure {help}.")
    parser.set_defaults(program=parser.prog, command=_run_bench, bench=name)
    shapes = f"sizes of the model: {', '.join(SHAPES)} (default: {LARGE}, on a CPU {SMALL})"
    parser.add_argument("--shape", metavar="NAME", choices=tuple(SHAPES), help=shapes)
    choice(parser, ("auto", *BACKENDS), "auto", "where it runs", "--backend")
    dtypes = "float32, float16, bfloat16 or float64 (default: the backend's)"
    text(parser, "TYPE", dtypes, "--dtype")
    switch(parser, "print one JSON object instead of a table", "--json")
    text(parser, "FILE", "draw it: a name that ends in .png or .svg (needs matplotlib)", "--plot")
    return parser


def _add_heads(parser: Any) -> None:
    number_or_none(parser, "query heads (default: the shape's)", "--heads")
    number_or_none(parser, "KV heads (default: the shape's)", "--kv-heads")
    number_or_none(parser, "size of a head (default: the shape's)", "--head-dim")


def _add_layers(parser: Any) -> None:
    number_or_none(parser, "layers to run (default: all that fit)", "--layers")


def _add_packing(parser: Any) -> None:
    number_or_none(parser, "bits of the matrices: 4 or 8 (default: not quantised)", "--q-bits")
    groups = "their elements that share a scale: 32, 64 or 128 (64)"
    number_or_none(parser, groups, "--q-group-size")
    bits = "bits of keys and values: 8 packs them (default: the backend's dtype)"
    number_or_none(parser, bits, "--kv-bits")


def _add_kept(parser: Any, policies: str | None = None) -> None:
    defaults = inspect.signature(Session).parameters
    policy = policies or defaults["policy"].default
    choices(parser, tuple(POLICIES), policy, "what is kept", "--policy")
    served = tuple(name for name, made in LAYOUTS.items() if not made.simulated)
    choices(parser, served, defaults["layout"].default, "where it lies", "--layout")
    parser.add_argument(
        "--stream",
        metavar="NAME",
        choices=tuple(STREAMS),
        help=f"kind of stream: {', '.join(STREAMS)} (default: the shape's)",
    )
    cut, aim = stated(_KEPT.high_watermark), stated(_KEPT.low_watermark)
    number_or_none(parser, f"tokens above which the history is cut ({cut})", "--high-watermark")
    number_or_none(parser, f"tokens that a cut aims at ({aim})", "--low-watermark")


def _add_peers(parser: Any) -> None:
    peers = f"programs to measure too, where installed, by commas: {', '.join(PEERS)}"
    text(parser, "NAMES", peers, "--peer")


def _add_runs(parser: Any, repeat: int) -> None:
    number(parser, repeat, "timed runs", "--repeat")
    number(parser, 0, "of the random numbers", "--seed")


def numbers(group: Any, help: str, *flags: str) -> None:
    """An option with one or more whole numbers; None where not given."""
    group.add_argument(*flags, metavar="N", type=count, nargs="+", help=help)


def _print_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 0


def _run_bench(options: argparse.Namespace) -> int:
    from omnitide.cli.bench import bench  # imports the model code, which parsing does not need

    return bench(options)
