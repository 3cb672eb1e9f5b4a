"""Progress while a stream is read: a line that renews itself on a screen, else lines now and then.

Words go to stdout meanwhile, so the renewed line is taken down (`pause`) before a reply begins.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from omnitide.response import Update

SECONDS_BETWEEN_LINES = 5.0


class Meter(Protocol):
    """Shows how far a stream has been read."""

    def show(self, update: Update) -> None:
        """A chunk was taken in."""
        ...

    def pause(self) -> None:
        """Leave the screen to others until the next `show`."""
        ...


def make_meter(console: Console, seconds: float | None, verbose: bool) -> Meter:
    """The meter for a console.

    Args:
        console: Where to show it.
        seconds: Length of the stream, None where it is not known.
        verbose: Whether to write lines where there is no screen.
    """
    if console.is_terminal:
        return ScreenMeter(console, seconds)
    return LineMeter(console if verbose else None, seconds)


class ScreenMeter:
    """One line with a bar, renewed in place."""

    def __init__(self, console: Console, seconds: float | None) -> None:
        self._seconds = seconds
        self._progress = Progress(
            BarColumn(bar_width=20),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task: TaskID = self._progress.add_task("", total=seconds)

    def show(self, update: Update) -> None:
        """Renew the line."""
        text = describe(update, self._seconds)
        self._progress.update(self._task, completed=update.time, description=text)
        self._progress.start()

    def pause(self) -> None:
        """Take the line down."""
        self._progress.stop()


class LineMeter:
    """A line at most every few seconds, on a console or on none."""

    def __init__(
        self,
        console: Console | None,
        seconds: float | None,
        now: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._console, self._seconds, self._now = console, seconds, now
        self._last: float | None = None

    def show(self, update: Update) -> None:
        """Write a line if the last one is old."""
        now = self._now()
        if self._console is None or (
            self._last is not None and now - self._last < SECONDS_BETWEEN_LINES
        ):
            return
        self._last = now
        self._console.print(describe(update, self._seconds), soft_wrap=True)

    def pause(self) -> None:
        """Nothing to take down."""


def describe(update: Update, seconds: float | None) -> str:
    """Time in the stream, tokens seen and kept, pages and seconds a chunk, on one line."""
    length = "" if seconds is None else f" / {minutes(seconds)}"
    return (
        f"{minutes(update.time)}{length}  {update.tokens_seen:,} tokens seen  "
        f"{update.tokens_kept:,} kept  {update.active_pages:,} pages  {update.seconds:.2f} s/chunk"
    )


def minutes(seconds: float) -> str:
    """Seconds as m:ss, or h:mm:ss from an hour on."""
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    tail = f"{rest // 60:02d}:{rest % 60:02d}"
    return f"{hours}:{tail}" if hours else f"{rest // 60}:{rest % 60:02d}"
