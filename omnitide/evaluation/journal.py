"""A file of JSON lines that only grows: what is in it is done, after a crash too.

A line is written whole and handed to the disk before it counts. One that a crash tore is cut off
when the file is opened again. A lock lets one process write at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from omnitide.errors import ConfigError, reason_of


class Journal:
    """A journal open for writing. A context manager."""

    def __init__(self, path: str | Path) -> None:
        """Open it, made if it is not there, and cut off a torn last line.

        Raises:
            ConfigError: It can't be opened, is no journal, or another process writes to it.
        """
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b")
        except OSError as error:
            raise ConfigError(f"[eval] can't write {path}: {reason_of(error)}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise ConfigError(
                f"[eval] another run writes to {path}; wait for it or take another --out"
            ) from error
        try:
            self._file.truncate(whole_length(self.path))
            self.lines: list[dict[str, Any]] = list(read_lines(self.path))
        except ConfigError:
            self._file.close()
            raise

    def add(self, line: dict[str, Any]) -> None:
        """Write a line, and wait until the disk has it.

        Raises:
            ConfigError: The disk is full, or the file is gone.
        """
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        end = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(data)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ConfigError(
                f"[eval] can't write {self.path}: {reason_of(error)}; what is in it stays, run the "
                "same command again to go on"
            ) from error
        except BaseException:  # Ctrl-C between the bytes: no half a line stays
            self._file.truncate(end)
            raise
        self.lines.append(line)

    def close(self) -> None:
        """Close the file, and let others write."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def whole_length(path: Path) -> int:
    """Bytes up to the end of the last whole line. A last line that is no JSON counts as torn."""
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    begin = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
    try:
        json.loads(data[begin:end] or b"{}")
    except ValueError:
        return begin
    return end


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a journal; none where there is no file.

    Raises:
        ConfigError: A line is no JSON object.
    """
    if not path.is_file():
        return
    for number, line in enumerate(path.read_bytes()[: whole_length(path)].splitlines(), 1):
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ConfigError(
                f"[eval] {path} line {number} is no line of results; move the file away, or take "
                "another --out"
            )
        yield found
