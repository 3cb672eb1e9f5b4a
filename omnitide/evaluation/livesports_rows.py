"""Events of LiveSports-3K-CC as published: JSON, JSON lines or CSV; each becomes an item."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from omnitide.errors import ConfigError, reason_of
from omnitide.evaluation.dataset import Collector, read_csv_file, read_json_file
from omnitide.evaluation.film import Film
from omnitide.evaluation.item import Item, Question
from omnitide.evaluation.moment import parse_moment

FILE = "LiveSports-3K-CC.json"

FIRST_TURN = 3.0
"""Seconds of an event before the first turn."""

MAX_TOKENS = 32
"""Of a turn."""

TASK = "commentary"
LEAKY = "commentary, sound leaks"
"""Names of the task without sound and with it, which holds the reference."""

Spoken = list[tuple[float, float, str]]
"""Start, stop and words."""


def event_rows(path: Path) -> list[Any]:
    """Events of a JSON list, of JSON lines or of a CSV, as they are.

    Raises:
        ConfigError: The file is missing or of another kind.
    """
    if path.suffix.lower() == ".json":
        content = read_json_file(path)
        if not isinstance(content, list):
            raise ConfigError(f"[eval] {path} must hold a list of events; take {FILE}")
        return content
    if path.suffix.lower() == ".csv":
        return read_csv_file(path)[1]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"[eval] can't read {path}: {reason_of(error)}") from error
    rows: list[Any] = []
    for line in filter(str.strip, text.splitlines()):
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):
            rows.append(line)  # no object: a malformed row
    return rows


def event_item(row: Any, sound: bool, where: str, out: Collector) -> Item | None:
    """The item of an event; None, and a problem, where its film is missing.

    Raises:
        KeyError, TypeError, ValueError: The row is malformed.
    """
    if not isinstance(row, dict):
        raise ValueError("must be an object")
    video, event = str(row["video_id"]).strip(), str(row["event_id"]).strip()
    begin, end = parse_moment(row["begin"]), parse_moment(row["end"])
    if not end > begin:
        raise ValueError(f"end must lie behind begin, got {begin:g} to {end:g}")
    spoken = transcript(row.get("event_asr"))
    reference = str(row.get("event_asr_text") or " ".join(t for _, _, t in spoken))
    before = str(row.get("preasr_text") or " ".join(t for _, _, t in transcript(row.get("preasr"))))
    title = str(row.get("event_title") or row.get("video_title") or "")
    if not reference.strip():
        raise ValueError("has no commentary to compare with")
    path = out.film(where, 1, str(row.get("video") or f"{video}.mp4"), video)
    if path is None:
        return None
    task = LEAKY if sound else TASK
    tags = {"video": video, "event": event, "begin": repr(begin), "end": repr(end)}
    tags |= {"reference": reference, "spoken": json.dumps(spoken)}
    questions = _turns(begin, end, title, before, task)
    return Item(f"{video}_{event}", video, Film(path, begin, end, sound), questions, tags)


def _turns(begin: float, end: float, title: str, before: str, task: str) -> tuple[Question, ...]:
    """A turn every second, from three seconds on; one at the end of a shorter event."""
    first = min(begin + FIRST_TURN, end)
    moments = [first]
    while moments[-1] + 1.0 <= end:
        moments.append(moments[-1] + 1.0)
    intro = (
        "You are an expert commentator of sports videos. Comment on this event live: vivid, "
        "insightful, a few words a turn, and only on what is new. Say ... where there is nothing "
        f"to say.{f' The event: {title}.' if title else ''}"
        f"{f' What was said before: {before}' if before.strip() else ''}\nTime={begin:.1f}-"
        f"{first:.1f}s. Go on commenting."
    )
    turns = [Question("0", intro, first, None, task, MAX_TOKENS)]
    for index, at in enumerate(moments[1:], 1):
        prompt = f"Time={at - 1:.1f}-{at:.1f}s"
        turns.append(Question(str(index), prompt, at, None, task, MAX_TOKENS))
    return tuple(turns)


def transcript(value: Any) -> Spoken:
    """`[[start, stop, text], ...]`, also as a string of JSON or of Python; empty for nothing.

    Raises:
        TypeError, ValueError: It is none.
    """
    if value is None or value == "":
        return []
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            try:
                value = ast.literal_eval(value)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise ValueError(f"a transcript must be a list, got {value!r:.60}") from error
    return [(float(start), float(stop), str(text)) for start, stop, text in value]
