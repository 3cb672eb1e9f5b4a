"""Writing to stdout and stderr, which may be terminals, pipes, full disks or closed.

Words come from models and names from files, so nothing that steers a terminal reaches one. What is
imported here is imported before anything else of the program: only what is there in no time.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import TextIO

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """The text with every control character but newline and tab spelled out, such as `\\x1b`."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def write_words(text: str) -> None:
    """Write a piece of a reply to stdout at once; spelled out (`printable`) on a terminal only.

    Raises:
        BrokenPipeError: The reader has gone.
        OSError: stdout can't be written.
    """
    stream = sys.stdout
    if stream is None or not text:  # stdout is None where it was closed before the start
        return
    if stream.isatty():
        text = printable(text)
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def say(kind: str, message: str) -> None:
    """Write `omnitide: kind: message` to stderr, if anybody listens."""
    if sys.stderr is None:  # closed before the start; print would take stdout
        return
    with contextlib.suppress(OSError):
        print(f"omnitide: {kind}: {printable(message)}", file=sys.stderr, flush=True)


def abandon(stream: TextIO | None) -> None:
    """Let a stream that can't be written swallow what it still holds.

    Otherwise the interpreter would try once more when it ends, and complain.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, stream.fileno())  # type: ignore[union-attr]
        os.close(sink)
