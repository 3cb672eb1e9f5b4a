"""A file that appears under its name only once it is worth having.

It is written beside its place, under a name of its own, and renamed. A run that fails before leaves
what was there before, and nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from omnitide.errors import reason_of

_FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system says where a disk, or the user's share of it, has no room."""


class WholeFile:
    """A file being written. Use it as a context manager."""

    def __init__(self, path: str | Path, op: str, error: type[Exception]) -> None:
        """Open it beside its place, so that a name that can't be written is refused at once.

        Args:
            path: Its place. What is no regular file (a device, a pipe) is written to directly.
            op: What messages begin with.
            error: What is raised where the file can't be written.

        Raises:
            error: It can't be written.
        """
        self.path = Path(path)
        self._op, self._error = op, error
        self._part: Path | None = None
        with self._refusing():
            if self.path.exists() and not self.path.is_file():
                self._file: BinaryIO = self.path.open("ab")
            else:
                place = Path(os.path.realpath(self.path))  # a link stays one
                self._part = place.with_name(f".{place.name}.{os.getpid()}.part")
                self._file = self._part.open("wb")

    def write(self, data: bytes) -> None:
        """Write, and hand it to the system.

        Raises:
            error: It can't be written.
        """
        with self._refusing():
            self._file.write(data)
            self._file.flush()

    def sync(self) -> None:
        """Wait until the disk has what was written.

        Raises:
            error: It can't be written.
        """
        with self._refusing():
            os.fsync(self._file.fileno())

    def appear(self) -> None:
        """Take the place under the name, instead of what is there. What follows is added to it.

        Raises:
            error: It can't be renamed.
        """
        if self._part is not None:
            with self._refusing():
                self._part.replace(os.path.realpath(self.path))
            self._part = None

    def __enter__(self) -> WholeFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # what could not be flushed has been reported
            self._file.close()
        if self._part is not None:
            self._part.unlink(missing_ok=True)
            self._part = None

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            full = getattr(error, "errno", None) in _FULL
            advice = "; make room on the disk, then give the same command again" if full else ""
            raise self._error(
                f"[{self._op}] can't write {self.path}: {reason_of(error)}{advice}"
            ) from error
