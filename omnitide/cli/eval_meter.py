"""Progress of an evaluation on stderr: a line that renews itself, or lines where asked for."""

from __future__ import annotations

import time as clock
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

from omnitide.cli.progress import minutes
from omnitide.cli.terminal import printable
from omnitide.evaluation.judging import Judged
from omnitide.evaluation.run import Progress


class EvalMeter:
    """Shows how far a run is. A context manager; `so_far` says it once more at the end."""

    def __init__(self, console: Console, verbose: bool) -> None:
        self._console, self._verbose = console, verbose
        self._status: Status | None = None
        self._started = clock.monotonic()
        self._first: int | None = None
        self._text = ""

    @property
    def so_far(self) -> str:
        """What was reached, to end a sentence with."""
        return f" ({self._text})" if self._text else ""

    def show(self, progress: Progress) -> None:
        """An item is done, or the run begins."""
        if self._first is None:
            self._first, self._started = progress.done, clock.monotonic()
        self._text = f"{progress.done:,} of {progress.total:,} items"
        line = self._text
        newly, spent = progress.done - self._first, clock.monotonic() - self._started
        if newly and progress.done < progress.total:
            line += f", {minutes(spent / newly * (progress.total - progress.done))} to go"
        record = progress.record
        if record is not None:
            state = f"failed: {record.error}" if record.error else f"{record.loop_seconds:.1f} s"
            line += f"; {record.item}, {record.setting}: {state}"
        self._renew(line)

    def judged(self, judged: Judged) -> None:
        """A unit is judged, or judging begins."""
        self._text = f"{judged.done:,} of {judged.total:,} judged"
        lost = f", {judged.unavailable:,} unreadable" if judged.unavailable else ""
        self._renew(self._text + lost)

    def _renew(self, line: str) -> None:
        line = printable(line)
        if self._status is not None:
            self._status.update(line)
        elif self._verbose:
            self._console.print(line, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()
