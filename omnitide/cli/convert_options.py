"""The options of `omnitide convert`, named as those of `mlx_lm.convert` where it has them."""

from __future__ import annotations

import argparse
from typing import Any

from omnitide.cli.options import number, switch, text, texts
from omnitide.convert.conversion import MEMORY_LIMIT
from omnitide.convert.recipe import KEPT


def add_convert(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "convert",
        help="make a checkpoint of four or eight bits",
        description="Quantise the language model of a checkpoint to 4 or 8 bits, in the layout of "
        "MLX. Encoders, norms and biases stay in 16 bits. The result appears once it is whole; "
        "after an interruption the same command goes on where it stopped.",
    )
    parser.set_defaults(program=parser.prog, command=_run_convert)
    where = "checkpoint to convert: folder, or repository such as Qwen/Qwen2.5-Omni-7B"
    text(parser, "NAME", where, "--hf-path", "--model")
    text(parser, "FOLDER", "where the result goes; must not be there yet", "--mlx-path")
    what = parser.add_argument_group("quantisation")
    number(what, 4, "bits of a weight: 4 or 8", "--q-bits")
    number(what, 64, "weights that share a scale: 32, 64 or 128", "--q-group-size")
    rule = (
        f"rule for the matrices whose name fits a pattern, such as 'model.layers.0.*=8', "
        f"'model.*.v_proj=8:32' or 'lm_head={KEPT}'; {KEPT} leaves them as they are; the last one "
        "counts"
    )
    texts(what, "PATTERN=BITS[:GROUP]", rule, "--module")
    kind = "of what is not quantised: float16, bfloat16 or float32 (default: as stored, 16 bits)"
    text(what, "TYPE", kind, "--dtype")
    unused = "leave out the weights that are not read here (speech output), instead of copying them"
    switch(what, unused, "--drop-unused")
    machine = parser.add_argument_group("machine")
    limit = MEMORY_LIMIT / 2**30
    number(machine, limit, "GiB that weights may take while converted", "--memory-limit")
    switch(parser, "print one JSON object with the error of each matrix", "--json")
    switch(
        parser,
        "show each matrix, and progress also where stderr is no terminal",
        "--verbose",
    )


def _run_convert(options: argparse.Namespace) -> int:
    # It imports the models' code, which parsing does not need.
    from omnitide.cli.convert import run_convert

    return run_convert(options)
