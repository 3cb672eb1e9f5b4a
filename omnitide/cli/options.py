"""Building blocks of the command line: how an option, its default and its help are written."""

from __future__ import annotations

import argparse
import shutil
from typing import Any, NoReturn

from omnitide.errors import ConfigError

MOST = 2**31 - 1
"""Greatest count that an option takes: slots and positions are 32-bit integers."""


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


def text(group: Any, metavar: str, help: str, *flags: str) -> None:
    """An option with a name or words; None where not given."""
    group.add_argument(*flags, metavar=metavar, help=help)


def texts(group: Any, metavar: str, help: str, *flags: str, type: Any = str) -> None:
    """An option that may be repeated."""
    help = f"{help}; may be repeated"
    group.add_argument(*flags, metavar=metavar, help=help, action="append", default=[], type=type)


def number(group: Any, default: int | float, help: str, *flags: str, **kwargs: Any) -> None:
    """An option with a number of the kind of its default."""
    kind = float if isinstance(default, float) else count
    help = f"{help} ({stated(default)})"
    group.add_argument(*flags, metavar="N", type=kind, default=default, help=help, **kwargs)


def number_or_none(group: Any, help: str, *flags: str, type: Any = None) -> None:
    """An option with a number; None where not given, and the help says what that means.

    The number is whole unless `type` says otherwise.
    """
    group.add_argument(*flags, metavar="N", type=type or count, help=help)


def choice(group: Any, names: tuple[str, ...], default: str, help: str, *flags: str) -> None:
    """An option with one of several names."""
    help = f"{help}: {', '.join(names)} ({stated(default)})"
    group.add_argument(*flags, metavar="NAME", choices=names, default=default, help=help)


def choices(group: Any, names: tuple[str, ...], default: str, help: str, *flags: str) -> None:
    """An option with one of several names that may be repeated; empty where not given."""
    help = f"{help}: {', '.join(names)} ({stated(default)}); may be repeated"
    group.add_argument(
        *flags, metavar="NAME", choices=names, action="append", default=[], help=help
    )


def switch(group: Any, help: str, *flags: str) -> None:
    """An option without a value."""
    group.add_argument(*flags, action="store_true", help=help)


def stated(default: object) -> str:
    """A default as help texts state it."""
    return f"default: {default}".replace("%", "%%")


def count(value: str) -> int:
    """A whole number that fits 32 bits, for argparse.

    Raises:
        ArgumentTypeError: It is none.
    """
    try:
        number = int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {value!r}") from None
    if not -MOST <= number <= MOST:
        raise argparse.ArgumentTypeError(f"expected at most {MOST:,}, got {value}")
    return number
