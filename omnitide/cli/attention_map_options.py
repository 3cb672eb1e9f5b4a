"""The options of `omnitide attention-map`."""

from __future__ import annotations

import argparse
import re
from typing import Any

from omnitide.backends import BACKENDS
from omnitide.cli.options import (
    choice,
    count,
    number,
    number_or_none,
    switch,
    text,
    texts,
)
from omnitide.config import MediaOptions
from omnitide.policies import POLICIES

QUERIES = 64
"""Queries looked at of a pass."""

MAX_TOKENS = 32
"""Longest reply to a question on the way."""

_MEDIA = MediaOptions()


def add_attention_map(commands: Any) -> None:
    """Add `attention-map` to the commands."""
    parser = commands.add_parser(
        "attention-map",
        help="show where a model's attention goes over a stream",
        description="Let a model follow a stream and show what it attends to: by modality, place "
        "in the unit and distance, head by head, with sink lengths and budgets that this speaks "
        "for. With neither a model nor media, a small trained model follows the clip that ships "
        "with it. See docs/evaluation.md.",
    )
    parser.set_defaults(program=parser.prog, command=_run_attention_map)
    text(parser, "NAME", "folder, or repository such as Qwen/Qwen2.5-Omni-3B", "--model")
    text(parser, "FILE", "film to follow: a file or a URL", "--video")
    text(parser, "FILE", "sound to follow; beside --video, instead of the film's", "--audio")
    texts(parser, "FILE", "still picture before the stream", "--image")
    texts(parser, "TEXT", "question on the way (default: none)", "--prompt", "-p")
    texts(parser, "SECONDS", "when to ask (default: at the end)", "--ask-at", type=float)
    text(parser, "TEXT", "system message (default: the model's)", "--system-prompt")
    number(parser, MAX_TOKENS, "longest reply", "--max-tokens", "-m")
    looked = parser.add_argument_group("attention")
    texts(looked, "N", "layer to look at (default: all)", "--layer", type=count)
    draw = "layer and head to draw besides, such as 3:5, or a layer's mean, such as 3"
    texts(looked, "L:H", draw, "--draw", type=layer_and_head)
    number(looked, QUERIES, "most tokens of a pass whose attention is looked at", "--queries")
    history = parser.add_argument_group("history")
    choice(history, tuple(POLICIES), "full", "what is kept", "--policy")
    number_or_none(history, "tokens above which the history is cut", "--high-watermark")
    number_or_none(history, "tokens that a cut aims at", "--low-watermark")
    for flag, of in (("--image-sink", "a picture"), ("--audio-sink", "a piece of sound")):
        number_or_none(history, f"first tokens of {of} that the tables tell apart", flag)
    stream = parser.add_argument_group("stream")
    number(stream, _MEDIA.fps, "frames taken a second", "--fps")
    number(stream, _MEDIA.chunk_seconds, "seconds of a unit", "--chunk-seconds")
    pixels = "most pixels of a frame; larger ones are scaled down (default: the model's)"
    number_or_none(stream, pixels, "--max-pixels")
    machine = parser.add_argument_group("machine")
    choice(machine, ("auto", *BACKENDS), "auto", "where it runs", "--backend")
    dtypes = "float32, float16, bfloat16 or float64 (default: the backend's)"
    text(machine, "TYPE", dtypes, "--dtype")
    text(parser, "FILE", "draw it: a name that ends in .png or .svg (needs matplotlib)", "--plot")
    switch(parser, "print one JSON object instead of tables", "--json")


def layer_and_head(value: str) -> tuple[int, int | None]:
    """`3:5` or `3`, for argparse.

    Raises:
        ArgumentTypeError: It is neither.
    """
    match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", value)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected LAYER or LAYER:HEAD, got {value!r}")
    layer, head = match.groups()
    return int(layer), None if head is None else int(head)


def _run_attention_map(options: argparse.Namespace) -> int:
    from omnitide.cli.attention_map import attention_map  # imports the model code

    return attention_map(options)
