"""The command line: `omnitide generate`, `convert`, `simulate`, `bench`, `eval`, `attention-map`,
`env`, `selftest` and `models`.

Replies and results go to stdout, everything else to stderr. What the user can cause ends in one
message and exit code 2, never in a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from omnitide.cli.interrupts import AfterImports
from omnitide.cli.terminal import abandon, say
from omnitide.errors import OmnitideError

FAILED = 2
"""Exit code after a message."""

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT, as shells report it."""

LESS = (
    "ask for less with --high-watermark, --max-pixels, --history or --memory-limit, whichever of "
    "them the command has"
)
"""What to do where memory does not suffice."""

GONE = "the reader of stdout has gone"
"""Message for a broken pipe."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        argv: Arguments without the program's name; those of the process if None.

    Returns:
        The exit code.
    """
    try:
        with AfterImports():
            code = _run(argv)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a reader that has gone can still be dealt with
        return code
    except KeyboardInterrupt:
        say("error", "interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        abandon(sys.stdout)
        say("error", GONE)
    except OmnitideError as error:
        say("error", str(error))
    except MemoryError as error:
        say("error", f"not enough memory ({error}); {LESS}")
    except OSError as error:
        abandon(sys.stdout)
        say("error", str(error))
    return FAILED


def _run(argv: Sequence[str] | None) -> int:
    # Imported here, so that Ctrl-C during the imports is met above.
    from omnitide.cli.parser import parse

    try:
        options = parse(sys.argv[1:] if argv is None else argv)
    except SystemExit as ended:  # --help and --version
        return int(ended.code or 0)
    command: int = options.command(options)
    return command
