"""Traces: the units of a real stream in a file of JSON lines, without tokens.

Written line by line, each flushed, so an interrupted run leaves a trace of what it followed; one
that ended before its first unit leaves none. Read
unit by unit, so a trace may be longer than memory; a line is never read beyond its greatest length.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from omnitide.errors import TraceError, reason_of
from omnitide.session import Session
from omnitide.simulation.stream import Stream
from omnitide.simulation.trace_header import TraceHeader, read_header
from omnitide.simulation.trace_line import read_unit, write_unit
from omnitide.units import Unit, UnitKind
from omnitide.whole_file import WholeFile

MOST_BYTES = 4 << 20
"""Bytes of a line."""


class TraceWriter:
    """Writes the units of a session. Use it as a context manager."""

    def __init__(self, path: str | Path) -> None:
        """Open a file; what was there is replaced once a session is recorded.

        Raises:
            TraceError: It can't be written.
        """
        self._file = WholeFile(path, "trace", TraceError)

    def record(self, session: Session) -> None:
        """Write the header and what the session holds already, then every unit that follows.

        Raises:
            TraceError: The file can't be written.
        """
        self._write(TraceHeader.of(session).write())
        history = session.cache.history
        for record in history.units:
            cells = history.cells[history.cells["unit"] == record.id]
            self.add(Unit(record.kind, cells, record.time, record.seconds))
        self._file.appear()
        session.cache.observer = self.add

    def add(self, unit: Unit) -> None:
        """Write a unit.

        Raises:
            TraceError: The file can't be written.
        """
        if len(unit):
            self._write(write_unit(unit))

    def _write(self, line: dict[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n"
        if len(text) > MOST_BYTES:
            raise TraceError(f"[trace] a unit takes {len(text):,} bytes, at most {MOST_BYTES:,}")
        self._file.write(text.encode("ascii"))

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.__exit__(kind, error, traceback)


class Trace:
    """A recorded stream, its header checked.

    Attributes:
        path: The file.
        header: Its first line.
    """

    def __init__(self, path: str | Path) -> None:
        """Open a trace and read its header.

        Raises:
            TraceError: It can't be read, or is none.
        """
        self.path = Path(path)
        if not _is_file(self.path):
            # A pipe can't be gone through twice, and might never end.
            raise TraceError(f"[trace] {self.path} must be an existing file")
        lines = self._lines()
        number, first = next(lines, (1, None))
        try:
            self.header = read_header(first)
        except TraceError as error:
            self._refuse(number, error)
        finally:
            lines.close()

    def units(self) -> Iterator[Unit]:
        """The units, the system prefix first.

        Raises:
            TraceError: A line is no unit, or the file was cut off.
        """
        for number, line in self._lines():
            if number == 1:
                continue
            try:
                unit = read_unit(line)
                if (unit.kind == UnitKind.SYSTEM) != (number == 2):
                    raise TraceError("the first unit must be the system prefix, and no other")
            except TraceError as error:
                self._refuse(number, error)
            yield unit

    def stream(self) -> Stream:
        """The trace as a stream to simulate.

        Raises:
            TraceError: It holds no units.
        """
        prefix = next(self.units(), None)
        if prefix is None:
            raise TraceError(f"[trace] {self.path} holds no units")
        header = self.header
        return Stream(
            self.path.name, self.units, None, len(prefix), header.largest_unit, header.reply
        )

    def _lines(self) -> Generator[tuple[int, Any], None, None]:
        try:
            with self.path.open("rb") as file:
                number = 0
                while line := file.readline(MOST_BYTES + 1):
                    number += 1
                    yield number, self._parse(number, line)
        except OSError as error:
            raise TraceError(f"[trace] can't read {self.path}: {reason_of(error)}") from error

    def _parse(self, number: int, line: bytes) -> Any:
        if len(line) > MOST_BYTES:
            self._refuse(number, f"has more than {MOST_BYTES:,} bytes")
        if not line.endswith(b"\n"):
            self._refuse(number, "is cut off; delete it to use what is before it")
        try:
            return json.loads(line, parse_constant=_no_constant)
        except RecursionError:
            self._refuse(number, "is nested too deeply")
        except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
            self._refuse(number, f"is no JSON ({str(error)[:80]})")

    def _refuse(self, number: int, reason: object) -> NoReturn:
        raise TraceError(f"[trace] {self.path}, line {number}: {reason}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, or with a NUL
        return False
