"""LiveSports-3K-CC: its rows, the turns of a commentary, its scores by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnitide.errors import ConfigError
from omnitide.evaluation.dataset import Dataset, Reading
from omnitide.evaluation.film import Film
from omnitide.evaluation.item import Item
from omnitide.evaluation.livesports import LiveSports, commentary
from omnitide.evaluation.record import Record

BENCH = LiveSports()

EVENT = {
    "video_id": "abcdefghijk", "url": "", "event_id": 3, "begin": 1.0, "end": 7.0,
    "event_type": 1, "video": "abcdefghijk.mp4", "class": "golf", "event_title": "The last putt",
    "event_asr": '[[1.5, 2.5, "he putts"], [5.2, 6.0, "it drops"]]',
    "event_asr_text": "he putts it drops",
    "preasr": "[[0.0, 0.9, 'quiet now']]", "preasr_text": "quiet now",
}  # fmt: skip


def read(tmp_path: Path, folder: Path, rows: list[Any], sound: bool | None = None) -> Dataset:
    path = tmp_path / "LiveSports-3K-CC.json"
    path.write_text(json.dumps(rows))
    return BENCH.read(Reading((path,), folder, sound=sound))


@pytest.fixture
def event(tmp_path: Path, films: Callable[..., Path]) -> Item:
    """The event as an item; turns at seconds 4, 5, 6 and 7."""
    (item,) = read(tmp_path, films("abcdefghijk.mp4"), [EVENT]).items
    return item


def test_an_event_is_commented_second_by_second(event: Item) -> None:
    assert (event.id, event.clip) == ("abcdefghijk_3", "abcdefghijk")
    assert isinstance(event.source, Film)
    assert (event.source.start, event.source.stop, event.source.sound) == (1.0, 7.0, False)
    assert [q.at for q in event.questions if hasattr(q, "at")] == [4.0, 5.0, 6.0, 7.0]
    first, second = event.questions[0].prompt, event.questions[1].prompt
    assert "The last putt" in first
    assert "quiet now" in first
    assert first.endswith("Time=1.0-4.0s. Go on commenting.")
    assert second == "Time=4.0-5.0s"
    assert event.questions[0].max_tokens == 32


def test_a_short_event_has_one_turn(tmp_path: Path, films: Callable[..., Path]) -> None:
    (item,) = read(tmp_path, films("abcdefghijk.mp4"), [{**EVENT, "end": 2.5}]).items
    assert [q.at for q in item.questions if hasattr(q, "at")] == [2.5]


def test_sound_leaks_and_is_told(tmp_path: Path, films: Callable[..., Path]) -> None:
    found = read(tmp_path, films("abcdefghijk.mp4"), [EVENT], sound=True)
    assert found.items[0].questions[0].task == "commentary, sound leaks"
    assert any("leaky" in p.what for p in found.problems)


@pytest.mark.parametrize("ending", ["json", "jsonl", "csv"])
def test_rows_of_every_published_form(
    tmp_path: Path, films: Callable[..., Path], ending: str
) -> None:
    path = tmp_path / f"events.{ending}"
    old = {k: v for k, v in EVENT.items() if k != "event_title"} | {"video_title": "A putt"}
    if ending == "json":
        path.write_text(json.dumps([old]))
    elif ending == "jsonl":
        path.write_text(json.dumps(old) + "\n\nnot json\n")
    else:
        import csv

        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(old))
            writer.writeheader()
            writer.writerow(old)
    found = BENCH.read(Reading((path,), films("abcdefghijk.mp4")))
    (item,) = found.items
    assert item.id == "abcdefghijk_3"
    assert "A putt" in item.questions[0].prompt
    assert len([p for p in found.problems if p.kind == "malformed row"]) == (ending == "jsonl")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"end": 1.0}, "end must lie behind begin"),
        ({"begin": "x"}, "time stamp"),
        ({"event_asr": "nonsense"}, "transcript"),
        ({"event_asr": "[" * 90_000}, "transcript"),
        ({"event_asr": "-" * 90_000}, "transcript"),
        ({"event_title": "\ud800"}, "surrogates not allowed"),
        ({"event_asr": "", "event_asr_text": ""}, "no commentary"),
        ({"event_id": 3}, "stands twice"),
    ],
)
def test_malformed_rows_are_listed(
    tmp_path: Path, films: Callable[..., Path], change: dict[str, Any], reason: str
) -> None:
    rows = [EVENT, {**EVENT, "event_id": 4, **change}, {"video_id": "x"}, 7]
    found = read(tmp_path, films("abcdefghijk.mp4"), rows)
    assert len(found.items) == 1
    whats = [p.what for p in found.problems if p.kind == "malformed row"]
    assert len(whats) == 3
    assert reason in whats[0]


def test_missing_films_are_listed(tmp_path: Path, films: Callable[..., Path]) -> None:
    found = read(tmp_path, films("other.mp4"), [EVENT])
    assert found.items == ()
    assert [p.questions for p in found.problems if p.kind == "missing clip"] == [1]


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        (["He putts ...", " ...", "...", "it drops."], "He putts it drops."),
        (["He putts\u2026", "", "wow", " .... "], "He putts wow"),
        ([None, "...", "", "..."], ""),
    ],
)
def test_turns_of_dots_keep_silent(
    event: Item, record: Callable[..., Record], turns: list[str | None], said: str
) -> None:
    made = record(event, **{str(i): turn for i, turn in enumerate(turns)})
    assert commentary(made) == said


def test_marks_by_hand(event: Item, record: Callable[..., Record]) -> None:
    made = record(event, **{"0": "he putts ...", "1": " ...", "2": "it", "3": "..."})
    found = {m.metric: m.value for m in BENCH.marks(event, made)}
    # said "he putts it" of "he putts it drops": precision 1, recall 3/4
    assert found["rouge-l"] == pytest.approx(2 * 0.75 / 1.75)
    assert found["words"] == pytest.approx(0.75)
    assert found["repetition"] == 0
    # seconds of the event: the human speaks in 0, 1 and 4; the model in 0 to 2 and in 4
    assert found["speech-f1"] == pytest.approx(2 * 3 / (3 + 4))


def test_silence_is_worth_nothing(event: Item, record: Callable[..., Record]) -> None:
    made = record(event, **{str(i): "..." for i in range(4)})
    assert {m.metric: m.value for m in BENCH.marks(event, made)} == {
        "rouge-l": 0, "chrf": 0, "speech-f1": 0, "words": 0, "repetition": 0,
    }  # fmt: skip


def test_predictions_are_the_authors_json_lines(event: Item, record: Callable[..., Record]) -> None:
    made = record(event, **{"0": "he putts ...", "1": "it drops", "2": "...", "3": ""})
    (text,) = BENCH.predictions([(event, made)]).values()
    assert json.loads(text) == {
        "video_id": "abcdefghijk", "event_id": 3, "begin": 1.0, "end": 7.0,
        "pred": "he putts it drops",
    }  # fmt: skip


def test_a_judge_marks_alignment(event: Item, record: Callable[..., Record]) -> None:
    (unit,) = BENCH.units(event, record(event, **{str(i): f"word{i}" for i in range(4)}))
    assert unit.marks == {"alignment": (0, 100)}
    assert "word0 word1 word2 word3" in unit.prompt
    assert "he putts it drops" in unit.prompt


def test_with_a_baseline_a_judge_compares_in_both_orders(
    event: Item, record: Callable[..., Record], tmp_path: Path
) -> None:
    path = tmp_path / "base.jsonl"
    path.write_text(json.dumps({"video_id": "abcdefghijk", "event_id": 3, "pred": "BASE"}) + "\n")
    made = record(event, **{str(i): "OURS" if i == 0 else "..." for i in range(4)})
    first, second = LiveSports(path).units(event, made)
    assert "Commentary A: OURS\n\nCommentary B: BASE" in first.prompt
    assert "Commentary A: BASE\n\nCommentary B: OURS" in second.prompt
    assert first.choices == {"A": 1.0, "B": 0.0, "tie": 0.0}
    assert second.choices == {"A": 0.0, "B": 1.0, "tie": 0.0}
    assert first.question != second.question


@pytest.mark.parametrize("text", ["", '{"video_id": "a"}\n', "words\n"])
def test_a_baseline_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "base.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="--baseline"):
        LiveSports(path)
