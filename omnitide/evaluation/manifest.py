"""What a folder of results belongs to: results of different runs are never mixed in one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from omnitide.errors import ConfigError
from omnitide.evaluation.dataset import read_json_file
from omnitide.evaluation.runner import RunOptions
from omnitide.whole_file import WholeFile

FORMAT = 1

NAME = "run.json"

FREE = ("machine", "selection", "problems")
"""Keys that may differ when a run goes on."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything but the settings that decides what records say.

    Attributes:
        benchmark: Name.
        reading: `Reading.as_dict()`, or what another maker of items was told.
        data: Digest of what is asked, of the whole data set.
        model, checkpoint: Name and hash.
        backend, dtype: Where it runs, as given; what came of it is in the records.
        trained: Whether the weights are trained.
        options: `RunOptions` as plain data.
        machine: Where the latest run was: device, versions, platform.
        selection: Clips, items and questions of the latest run.
        problems: Of the data, as plain data.
    """

    benchmark: str
    reading: dict[str, Any]
    data: str
    model: str
    checkpoint: str
    backend: str
    dtype: str
    trained: bool
    options: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=dict)
    selection: dict[str, Any] = field(default_factory=dict)
    problems: list[dict[str, Any]] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        """Write it into a folder of results; that of an earlier run must agree.

        Raises:
            ConfigError: It does not, or the folder can't be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"[eval] can't make {folder}: {error.strerror}") from error
        path = folder / NAME
        if path.is_file():
            self._check_same(Manifest.load(folder), folder)
        elif (folder / "items.jsonl").is_file():
            raise ConfigError(f"[eval] {folder} has results but no {NAME}; take another --out")
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=2)
        with WholeFile(path, "eval", ConfigError) as file:
            file.write(text.encode() + b"\n")
            file.appear()

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """That of a folder.

        Raises:
            ConfigError: There is none, or it was made by another version.
        """
        path = folder / NAME
        if not path.is_file():
            raise ConfigError(f"[eval] {folder} holds no results ({NAME} is missing)")
        found = read_json_file(path)
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            raise ConfigError(f"[eval] {path} was made by another version; take another --out")
        try:
            return cls(**found)
        except TypeError as error:
            raise ConfigError(f"[eval] {path} is damaged ({error}); take another --out") from error

    def _check_same(self, other: Manifest, folder: Path) -> None:
        ours, theirs = json.loads(json.dumps(asdict(self))), asdict(other)
        for key in ours:
            if key not in FREE and ours[key] != theirs[key]:
                raise ConfigError(
                    f"[eval] {folder} holds results with another {key} "
                    f"({_difference(theirs[key], ours[key])}); take another --out"
                )


def options_dict(options: RunOptions) -> dict[str, Any]:
    """Run options as plain data."""
    return asdict(options)


def _difference(theirs: Any, ours: Any, name: str = "") -> str:
    """What differs, down to the option that does."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = [key for key in {**theirs, **ours} if theirs.get(key) != ours.get(key)]
        return "; ".join(_difference(theirs.get(key), ours.get(key), key) for key in keys)
    return f"{name} {_short(theirs)}, now {_short(ours)}".strip()


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
