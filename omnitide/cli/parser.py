"""The options of every command. Defaults are read from where they stand, never written again."""

from __future__ import annotations

import argparse
import inspect
import shutil
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from omnitide import __version__
from omnitide.backends import BACKENDS
from omnitide.config import MediaOptions, RetentionConfig, SamplingConfig
from omnitide.errors import ConfigError
from omnitide.layouts import LAYOUTS
from omnitide.policies import POLICIES
from omnitide.session import Session

DEFAULT_PROMPT = "Describe what you see and hear."
"""Asked when no prompt is given."""

MOST = 2**31 - 1
"""Greatest count that an option takes: slots and positions are 32-bit integers."""

_SESSION = {p.name: p.default for p in inspect.signature(Session).parameters.values()}
_MEDIA, _SAMPLING, _RETENTION = MediaOptions(), SamplingConfig(), RetentionConfig()


class Parser(argparse.ArgumentParser):
    """A parser that raises our errors instead of printing its usage and leaving."""

    def __init__(self, **kwargs: Any) -> None:
        width = min(shutil.get_terminal_size((100, 24)).columns, 100)
        super().__init__(
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.HelpFormatter(
                prog, max_help_position=30, width=width
            ),
            **kwargs,
        )

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(f"{message}; see {self.prog} --help")


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
    parser.set_defaults(command=lambda _: _print_help(parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_generate(commands)
    _add_env(commands)
    _add_models(commands)
    return parser.parse_args(argv)


def _add_generate(commands: Any) -> None:
    parser = commands.add_parser(
        "generate",
        help="follow a stream and answer questions about it",
        description="Let a model watch and hear a stream, in bounded memory, and answer questions "
        "about it. With neither a model nor media, a tiny untrained model watches a synthetic "
        "clip. Replies go to stdout, everything else to stderr.",
    )
    parser.set_defaults(command=_run_generate)
    add = parser.add_argument
    add("--model", metavar="NAME", help="folder, or repository such as Qwen/Qwen2.5-Omni-3B")
    add("--video", metavar="FILE", help="film to follow: a file or a URL")
    add("--audio", metavar="FILE", help="sound to follow; beside --video, instead of the film's")
    _repeat(parser, "--image", metavar="FILE", help="still picture before the stream")
    add("--json", action="store_true", help="print one JSON object instead of words and table")
    add("--verbose", action="store_true", help="say more: each question, progress without a screen")

    group = parser.add_argument_group("questions")
    add = group.add_argument
    _repeat(group, "--prompt", "-p", metavar="TEXT", help=f"question; - reads stdin ({_is(DEFAULT_PROMPT)})")  # fmt: skip
    _repeat(group, "--ask-at", metavar="SECONDS", type=float, help="when to ask, in the order of the prompts; a single prompt is asked each time (default: at the end)")  # fmt: skip
    add("--system-prompt", metavar="TEXT", help="system message (default: the model's)")
    _value(group, "--max-tokens", "-m", default=_SESSION["max_tokens"], help="longest reply")

    group = parser.add_argument_group("sampling")
    _value(group, "--temp", "--temperature", dest="temperature", type=float, default=_SAMPLING.temperature, help="0 takes the likeliest token")  # fmt: skip
    _value(group, "--top-p", type=float, default=_SAMPLING.top_p, help="share of probability drawn from; 1 is off")  # fmt: skip
    _value(group, "--top-k", default=_SAMPLING.top_k, help="likeliest tokens drawn from; 0 is off")
    _value(group, "--min-p", type=float, default=_SAMPLING.min_p, help="least probability, as a share of the greatest; 0 is off")  # fmt: skip
    group.add_argument("--seed", metavar="N", type=int, help="of the random numbers")

    group = parser.add_argument_group("history")
    _choice(group, "--policy", tuple(POLICIES), _SESSION["policy"], "what is kept")
    _choice(group, "--layout", tuple(LAYOUTS), _SESSION["layout"], "where it lies")
    _kept(group, "--high-watermark", "tokens above which the history is cut")
    _kept(group, "--low-watermark", "tokens that a cut aims at")
    _kept(group, "--recent-units", "newest units kept whole", "as many as fit")
    _kept(group, "--image-sink", "tokens kept of an older picture")
    _kept(group, "--audio-sink", "tokens kept of an older piece of sound")
    _kept(group, "--text-budget", "tokens kept of older text and replies")
    group.add_argument("--max-kv-size", metavar="N", type=_count, help="most tokens in memory; lowers the watermarks to fit")  # fmt: skip

    group = parser.add_argument_group("stream")
    _add_media(group)

    group = parser.add_argument_group("machine")
    _choice(group, "--backend", ("auto", *BACKENDS), "auto", "where it runs")
    group.add_argument("--dtype", metavar="TYPE", help="float32, float16, bfloat16 or float64 (default: the backend's)")  # fmt: skip


def _add_env(commands: Any) -> None:
    parser = commands.add_parser(
        "env",
        help="show versions, backends and devices",
        description="Show versions and devices, and of each backend whether it can be used.",
    )
    parser.set_defaults(command=_run_env)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_models(commands: Any) -> None:
    parser = commands.add_parser(
        "models",
        help="show supported models and what a stream costs them",
        description="Show the supported model families and checkpoints, and for a picture size, "
        "frame rate and sound the tokens of a unit and a minute and the memory they take.",
    )
    parser.set_defaults(command=_run_models)
    _value(parser, "--width", default=1920, help="pixels of the film")
    _value(parser, "--height", default=1080, help="pixels of the film")
    parser.add_argument("--no-audio", action="store_true", help="a film without sound")
    _add_media(parser)
    _value(parser, "--high-watermark", default=_RETENTION.high_watermark, help="tokens above which the history is cut")  # fmt: skip
    _value(parser, "--max-tokens", "-m", default=_SESSION["max_tokens"], help="longest reply")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _add_media(group: Any) -> None:
    _value(group, "--fps", type=float, default=_MEDIA.fps, help="frames taken a second")
    _value(group, "--chunk-seconds", type=float, default=_MEDIA.chunk_seconds, help="seconds of a unit")  # fmt: skip
    _value(group, "--max-pixels", default=_MEDIA.max_pixels, help="most pixels of a frame, larger ones are scaled down")  # fmt: skip


def _value(group: Any, *flags: str, default: Any, help: str, **kwargs: Any) -> None:
    """An option with a number."""
    kwargs = {"type": _count, "metavar": "N", **kwargs}
    group.add_argument(*flags, default=default, help=f"{help} ({_is(default)})", **kwargs)


def _kept(group: Any, flag: str, help: str, unset: str | None = None) -> None:
    """An option of the retention configuration; None where not given, for the family decides."""
    default = unset or getattr(_RETENTION, flag.removeprefix("--").replace("-", "_"))
    group.add_argument(flag, metavar="N", type=_count, help=f"{help} ({_is(default)})")


def _choice(group: Any, flag: str, names: tuple[str, ...], default: str, help: str) -> None:
    help = f"{help}: {', '.join(names)} ({_is(default)})"
    group.add_argument(flag, choices=names, default=default, metavar="NAME", help=help)


def _repeat(group: Any, *flags: str, help: str, **kwargs: Any) -> None:
    help = help + "; may be repeated"
    group.add_argument(*flags, action="append", default=[], help=help, **kwargs)


def _is(default: object) -> str:
    return f"default: {default}".replace("%", "%%")


def _count(text: str) -> int:
    """A whole number that fits 32 bits."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None
    if not -MOST <= value <= MOST:
        raise argparse.ArgumentTypeError(f"expected a number of at most {MOST:,}, got {text}")
    return value


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


def _run_models(options: argparse.Namespace) -> int:
    from omnitide.cli.models import models

    return models(options)
