"""A data set as read: its items, and what is wrong with it."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omnitide.errors import ConfigError, reason_of
from omnitide.evaluation.clips import Clips
from omnitide.evaluation.item import Event, Item, Note
from omnitide.evaluation.problem import LEFT_OUT, MALFORMED, MISSING, Problem

PROTOCOLS = ("stream", "official")

LONGEST_MESSAGE = 300
"""Characters of a problem; a malformed value may be of any length."""


MALFORMATIONS = (ValueError, OverflowError, RecursionError)
"""What Python raises for values that are none: an infinite count, lists in lists without end."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a data set is read.

    Attributes:
        data: Files, or a folder that holds them under their published names.
        videos: Folder of the films.
        protocol: "stream": a clip is followed once and all its questions are asked on the way;
            "official": as the authors' code does it, where that differs.
        context: Seconds before a question that the official protocol shows; None: all.
        sound: Whether sound is heard; None: as the benchmark says.
        track: For data sets with several, which one; empty: its first.
        as_published: Leave known faults of the data as they are.
    """

    data: tuple[Path, ...]
    videos: Path
    protocol: str = "stream"
    context: float | None = 60.0
    sound: bool | None = None
    track: str = ""
    as_published: bool = False

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ConfigError(
                f"[eval] --protocol must be one of {', '.join(PROTOCOLS)}; got {self.protocol!r}"
            )
        if self.context is not None and not self.context >= 1:
            raise ConfigError(f"[eval] --context must be at least 1 second, got {self.context:g}")

    def as_dict(self) -> dict[str, Any]:
        """What of it changes results, ready for JSON; where files lie does not."""
        return {
            "protocol": self.protocol,
            "context": self.context if self.protocol == "official" else None,
            "sound": self.sound,
            "track": self.track,
            "as_published": self.as_published,
        }


@dataclass(frozen=True, slots=True)
class Dataset:
    """Items in the order of the data, with the problems that were met."""

    items: tuple[Item, ...]
    problems: tuple[Problem, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of what is asked: ids and events; not of where films lie."""
        asked = [
            [item.id, item.clip, [repr(event) for event in item.events]] for item in self.items
        ]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()

    def selected(self, tasks: Sequence[str] = (), limit: int | None = None) -> Dataset:
        """Only questions of some tasks, and only the first clips.

        Raises:
            ConfigError: A task that the data set does not have, or nothing is left.
        """
        items = self.items
        if tasks:
            known = sorted({q.task for item in items for q in item.questions})
            for task in tasks:
                if task not in known:
                    raise ConfigError(
                        f"[eval] --task must be one of {', '.join(known)}; got {task!r}"
                    )
            narrowed = (replace(item, events=_of(item, tasks)) for item in items)
            items = tuple(item for item in narrowed if item.questions)
        if limit is not None:
            clips = list(dict.fromkeys(item.clip for item in items))[:limit]
            items = tuple(item for item in items if item.clip in clips)
        if not items:
            raise ConfigError("[eval] no item is left to run; " + _why_empty(self.problems))
        return replace(self, items=items)


def _of(item: Item, tasks: Sequence[str]) -> tuple[Event, ...]:
    return tuple(e for e in item.events if isinstance(e, Note) or e.task in tasks)


def _why_empty(problems: Sequence[Problem]) -> str:
    if not problems:
        return "check --data, --task and --limit"
    first = next((p for p in problems if p.kind in LEFT_OUT), problems[0])
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return f"{count}, such as: {first.kind}: {first.where}: {first.what}"


@dataclass(slots=True)
class Collector:
    """What a reader gathers: problems, and the films it looks for.

    Attributes:
        clips: Where films are found.
        problems: So far.
    """

    clips: Clips
    problems: list[Problem] = field(default_factory=list)

    def film(self, where: str, questions: int, *names: str) -> str | None:
        """The path of a film; None, and a problem, where there is none."""
        path = self.clips.find(*names)
        if path is None:
            what = f"no film {names[0]} under {self.clips.folder}; left out"
            self.problems.append(Problem(MISSING, where, what, questions))
            return None
        return str(path)

    def row(self, where: str, read: Callable[[], Any], raw: Any) -> Any:
        """What `read` makes of a raw row; None, and a problem, where the row is malformed."""
        try:
            json.dumps(raw, ensure_ascii=False).encode()  # half a surrogate pair is no text
            return read()
        except (*MALFORMATIONS, KeyError, TypeError, IndexError, AttributeError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            if len(what) > LONGEST_MESSAGE:
                what = what[:LONGEST_MESSAGE] + "..."
            self.problems.append(Problem(MALFORMED, where, f"{what}; left out", 1))
            return None

    def note(self, kind: str, where: str, what: str) -> None:
        """Add a problem for which nothing is left out."""
        self.problems.append(Problem(kind, where, what))


def read_json_file(path: Path) -> Any:
    """The contents of a JSON file.

    Raises:
        ConfigError: It is missing or no JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"[eval] can't read {path}: {reason_of(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"[eval] {path} must be JSON ({error}); fetch it again") from error


def read_csv_file(path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns and the rows of a CSV file.

    Raises:
        ConfigError: It can't be read, or is no CSV: a quote that never ends, for one.
    """
    try:
        reader = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""))
        return list(reader.fieldnames or ()), list(reader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"[eval] can't read {path}: {reason_of(error)}") from error
    except csv.Error as error:
        raise ConfigError(f"[eval] {path} must be CSV ({error}); fetch it again") from error


def find_files(given: Iterable[Path], names: Sequence[str], what: str) -> list[Path]:
    """The files given; of a folder those of the given names, wherever under it they lie.

    Raises:
        ConfigError: A path is missing, or a folder holds none of the names.
    """
    files: list[Path] = []
    for path in given:
        if path.is_file():
            files.append(path)
            continue
        if not path.is_dir():
            raise ConfigError(f"[eval] --data must be a file or a folder, there is none at {path}")
        found = [hit for name in names for hit in sorted(path.rglob(name))[:1]]
        if not found:
            raise ConfigError(
                f"[eval] {path} holds none of {', '.join(names)}; --data takes {what}"
            )
        files += found
    return files
