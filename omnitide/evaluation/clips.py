"""Finding the films of a data set, whichever way its archives were unpacked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from omnitide.errors import ConfigError, reason_of

SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v")

_SAMPLE = re.compile(r"sample_\d+")


class Clips:
    """All films under a folder, looked up by path, by name and by StreamingBench's other layout."""

    def __init__(self, folder: str | Path) -> None:
        """List the films.

        Raises:
            ConfigError: There is no such folder, or it can't be read.
        """
        self.folder = Path(folder).absolute()  # workers may run elsewhere
        if not self.folder.is_dir():
            raise ConfigError(f"[eval] --videos must be a folder, there is none at {folder}")
        self._by_name: dict[str, Path] = {}
        try:
            found = sorted(_films(self.folder))
        except OSError as error:
            raise ConfigError(f"[eval] can't read {folder}: {reason_of(error)}") from error
        for path in found:
            for name in _names(path):
                self._by_name.setdefault(name, path)

    def find(self, *names: str) -> Path | None:
        """The first that exists of some paths or names; suffixes may be missing."""
        for name in names:
            if not name:
                continue
            direct = self.folder / name
            if direct.suffix.lower() in SUFFIXES and direct.is_file():
                return direct
            base = Path(name.replace("\\", "/")).name
            for key in (base, Path(base).stem if Path(base).suffix.lower() in SUFFIXES else base):
                if key in self._by_name:
                    return self._by_name[key]
        return None


def _films(folder: Path) -> Iterable[Path]:
    def refuse(error: OSError) -> None:
        raise error

    for root, folders, files in os.walk(folder, onerror=refuse):
        folders.sort()
        yield from (Path(root) / f for f in files if Path(f).suffix.lower() in SUFFIXES)


def _names(path: Path) -> Iterable[str]:
    """Under what names a film may be asked for.

    `<type>/sample_7/x.mp4` is what `sample_7_<type>.mp4` was before it was moved.
    """
    yield path.name
    yield path.stem
    if _SAMPLE.fullmatch(path.parent.name):
        kind = path.parent.parent.name
        for name in (kind.replace(" ", "_"), short_kind(kind)):
            yield f"{path.parent.name}_{name}"


def short_kind(archive: str) -> str:
    """The word that stands for an archive in the names of its films."""
    for begins, word in (
        ("Real-Time Visual Understanding", "real"),
        ("Sequential Question Answering", "sqa"),
        ("Proactive Output", "proactive"),
    ):
        if archive.replace("_", " ").startswith(begins):
            return word
    return archive.replace(" ", "_")
