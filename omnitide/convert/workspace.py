"""The folder in which a checkpoint grows, beside its place, until it is whole.

`<name>.unfinished` holds finished files and a record of them. It takes its place under the name in
one step, once everything is in it. The record stays with the checkpoint, as a report; as long as
it says that the conversion is not finished, the folder is refused as a model.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omnitide.convert.shard import ModuleError
from omnitide.errors import CheckpointError, ConfigError, reason_of
from omnitide.models.headers import CONVERSION_FILE, read_json
from omnitide.whole_file import WholeFile

SUFFIX = ".unfinished"


class Workspace:
    """A conversion's folder, new or taken up again."""

    def __init__(self, target: Path, digest: str) -> None:
        """Make the folder, or take up the one that an equal conversion left.

        Args:
            target: Where the checkpoint is to be. Changed by `finish` only.
            digest: Of the plan.

        Raises:
            ConfigError: The place is taken, or the folder beside it belongs to another conversion.
            CheckpointError: It can't be made or read.
        """
        self.target = target
        self.folder = target.with_name(target.name + SUFFIX)
        if target.is_symlink() or (
            target.exists() and not (target.is_dir() and not any(target.iterdir()))
        ):
            raise ConfigError(
                f"[convert] the result must be a new folder, {target} is there already; remove it "
                "or give another --mlx-path"
            )
        self._record: dict[str, Any] = {"finished": False, "digest": digest, "files": {}}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            parts = set(self.folder.glob(".*.part"))  # of a run that was killed
            if set(self.folder.iterdir()) - parts:
                self._take_up(digest)
            for part in parts:
                part.unlink()
        except OSError as error:
            raise CheckpointError(
                f"[convert] can't make {self.folder}: {reason_of(error)}"
            ) from error
        self._save()

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
        with self.open(file) as opened:
            opened.write((json.dumps(contents, indent=2) + "\n").encode())
            opened.sync()
            opened.appear()

    def copy(self, files: Iterable[Path]) -> None:
        """Copy files as they are.

        Raises:
            CheckpointError: One can't be copied.
        """
        for file in files:
            try:
                shutil.copyfile(file, self.folder / file.name)
            except OSError as error:
                raise CheckpointError(f"[convert] can't copy {file}: {reason_of(error)}") from error

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

    def _take_up(self, digest: str) -> None:
        record = read_json(self.folder / CONVERSION_FILE, missing={})
        if record.get("digest") != digest:
            raise ConfigError(
                f"[convert] {self.folder} is of another conversion (other options, or the model "
                "has changed); remove it, or give another --mlx-path"
            )
        self._record["files"] = record["files"]

    def _save(self) -> None:
        self.write_json(CONVERSION_FILE, self._record)
