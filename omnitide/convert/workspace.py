"""The folder in which a checkpoint grows, beside its place, until it is whole.

`<name>.unfinished` holds finished files and a record of them. It takes its place under the name in
one step, once everything is in it. The record stays with the checkpoint, as a report; as long as
it says that the conversion is not finished, the folder is refused as a model. A lock on the folder
lets one process work in it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from omnitide.convert.shard import ModuleError
from omnitide.errors import CheckpointError, ConfigError, reason_of
from omnitide.models.headers import CONVERSION_FILE, read_json
from omnitide.whole_file import WholeFile

SUFFIX = ".unfinished"


def unfinished(target: Path) -> Path:
    """The folder beside the place of a result.

    Raises:
        ConfigError: The place has no name of its own, as `.` and `/`.
    """
    if target.name in ("", ".."):
        raise ConfigError(
            f"[convert] the result must be a folder with a name, got {target}; give one that is "
            "not there yet as --mlx-path"
        )
    return target.with_name(target.name + SUFFIX)


class Workspace:
    """A conversion's folder, new or taken up again. Use it as a context manager.

    Attributes:
        target: Where the checkpoint is to be.
        folder: Where it grows.
        taken_up: Whether an equal conversion had begun there.
    """

    def __init__(self, target: Path, digest: str) -> None:
        """Make the folder, or take up the one that an equal conversion left.

        Args:
            target: Where the checkpoint is to be. Changed by `finish` only.
            digest: Of the plan.

        Raises:
            ConfigError: The place is taken or has no name, or the folder beside it belongs to
                another conversion or to a process that still runs.
            CheckpointError: It can't be made or read.
        """
        self.target = target
        self.folder = unfinished(target)
        self.taken_up = False
        self._record: dict[str, Any] = {"finished": False, "digest": digest, "files": {}}
        try:
            self._refuse_taken()
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise self._not_made(error) from error
        try:
            self._take_lock()
            self._refuse_taken()  # another process may have finished meanwhile
            parts = set(self.folder.glob(".*.part"))  # of a run that was killed
            if set(self.folder.iterdir()) - parts:
                self._take_up(digest)
            for part in parts:
                part.unlink()
            self._save()
        except OSError as error:
            os.close(self._lock)
            raise self._not_made(error) from error
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let other processes work here. The folder stays."""
        os.close(self._lock)

    def done(self, file: str) -> list[ModuleError] | None:
        """The errors of a file that is finished; None of one that is not."""
        entry = self._record["files"].get(file)
        path = self.folder / file
        if entry is None or not path.is_file() or path.stat().st_size != entry["size"]:
            return None
        return [ModuleError(**error) for error in entry["modules"]]

    def open(self, file: str) -> WholeFile:
        """A file of the folder, to be written."""
        return WholeFile(self.folder / file, "convert", CheckpointError)

    def add(self, file: str, errors: Iterable[ModuleError]) -> None:
        """Record that a file of weights is finished."""
        size = (self.folder / file).stat().st_size
        self._record["files"][file] = {"size": size, "modules": [asdict(e) for e in errors]}
        self._save()

    def write_json(self, file: str, contents: Any) -> None:
        """Write a JSON file of the folder, whole or not at all."""
        self._write(file, (json.dumps(contents, indent=2) + "\n").encode())

    def copy(self, files: Iterable[Path]) -> None:
        """Copy small files as they are, each whole or not at all.

        Raises:
            CheckpointError: One can't be copied.
        """
        for file in files:
            try:
                contents = file.read_bytes()
            except OSError as error:
                raise CheckpointError(f"[convert] can't copy {file}: {reason_of(error)}") from error
            self._write(file.name, contents)

    def finish(self) -> None:
        """Let the folder take its place.

        Raises:
            CheckpointError: It can't.
        """
        self._record["finished"] = True
        self._save()
        try:
            self.folder.replace(self.target)
        except OSError as error:
            raise CheckpointError(
                f"[convert] can't rename {self.folder} to {self.target}: {reason_of(error)}"
            ) from error

    def _refuse_taken(self) -> None:
        taken = self.target.is_symlink() or self.target.exists()
        if taken and not _is_empty_folder(self.target):
            raise ConfigError(
                f"[convert] the result must be a new folder, {self.target} is there already; "
                "remove it or give another --mlx-path"
            )

    def _take_lock(self) -> None:
        """Refuse a folder in which another process works, or that it has just finished."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = os.path.samestat(os.fstat(self._lock), self.folder.stat())
        except (BlockingIOError, FileNotFoundError):
            free = False
        if not free:
            raise ConfigError(
                f"[convert] another run writes to {self.folder}; wait for it, or give another "
                "--mlx-path"
            )

    def _not_made(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"[convert] can't make {self.folder}: {reason_of(error)}")

    def _take_up(self, digest: str) -> None:
        try:
            record = read_json(self.folder / CONVERSION_FILE, missing={})
        except CheckpointError:  # no record of ours: those are whole
            record = {}
        if record.get("digest") != digest:
            raise ConfigError(
                f"[convert] {self.folder} is of another conversion (other options, or the model "
                "has changed); remove it, or give another --mlx-path"
            )
        self._record["files"] = record["files"]
        self.taken_up = True

    def _write(self, file: str, contents: bytes) -> None:
        with self.open(file) as opened:
            opened.write(contents)
            opened.sync()
            opened.appear()

    def _save(self) -> None:
        self.write_json(CONVERSION_FILE, self._record)


def _is_empty_folder(path: Path) -> bool:
    return not path.is_symlink() and path.is_dir() and not any(path.iterdir())
