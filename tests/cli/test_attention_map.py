"""`omnitide attention-map` on really encoded media."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from omnitide.cli import attention_map as command
from omnitide.media.clip import ClipSound, write_film

Call = Callable[..., Any]


def test_tables_of_a_film(call: Call, media: Path) -> None:
    result = call("attention-map", "--video", media / "film.mp4", "-p", "What?", "--queries", 8)
    assert result.code == 0
    assert result.out.startswith("embedded default (untrained, random weights")
    for title in ("Where attention goes", "By distance", "First tokens", "By layer", "Heads"):
        assert f"\n{title}" in result.out
    assert "\n--recent-units" in result.out


def test_json_and_a_picture(call: Call, media: Path, tmp_path: Path) -> None:
    picture = tmp_path / "map.svg"
    chosen = ("--layer", 0, "--layer", 2, "--draw", "2:1", "--draw", "0")
    result = call(
        "attention-map", "--video", media / "film.mp4", "--json", "--plot", picture, *chosen
    )
    assert result.code == 0
    data = result.json()
    # Three chunks of 34 tokens of picture and 52 of sound (see conftest), and no question.
    assert data["sizes"]["units"] == 3
    assert data["sizes"]["tokens"] == 3 * (34 + 52)
    assert data["queries"] == 3 * 64
    assert [row["layer"] for row in data["layers"]] == [0, 2]
    assert data["policy"] == "full"
    assert data["broken"] is None
    root = xml.parse(picture).getroot()
    assert root.tag.endswith("svg")


def test_a_tight_policy_says_nothing_of_recent_units(call: Call, media: Path) -> None:
    marks = ("--high-watermark", 150, "--low-watermark", 100)
    result = call("attention-map", "--video", media / "film.mp4", "--policy", "omnipick", *marks)
    assert result.code == 0
    assert "--recent-units -: the policy cut the history; run with --policy full" in result.out


def test_what_was_seen_of_a_broken_film_is_shown(call: Call, tmp_path: Path) -> None:
    film = tmp_path / "film.mkv"
    write_film(film, 6, None, ClipSound(codec="pcm_s16le"))
    film.write_bytes(film.read_bytes()[:100_000])  # 3.1 of 6 seconds of 32,000 bytes
    result = call("attention-map", "--audio", film, "--json")
    assert result.code == 2
    assert result.json()["sizes"]["units"] == 2
    assert "sound broke off at 3.1 s" in result.json()["broken"]
    assert "sound broke off at 3.1 s" in result.err


def test_an_interrupted_stream_is_shown_as_far_as_it_went(
    call: Call, media: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow = command.follow

    def interrupted(*arguments: Any) -> Iterator[Any]:
        events = follow(*arguments)
        yield next(events)
        yield next(events)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "follow", interrupted)
    result = call("attention-map", "--video", media / "film.mp4", "--json")
    assert result.code == 130
    assert result.json()["sizes"]["units"] == 2
    assert result.json()["broken"] == "interrupted"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--queries", 0), "[attention-map] --queries must be at least 1, got 0"),
        (("--layer", 3), "[attention-map] --layer must lie in [0, 3), got 3"),
        (("--draw", "1:2"), "must name one of the layers 0 to 2 and a head below 2, got 1:2"),
        (("--layer", 0, "--draw", "1"), "must name one of the layers 0 to 0"),
        (("--draw", "one"), "expected LAYER or LAYER:HEAD, got 'one'"),
        (("--ask-at", 2), "[attention-map] --ask-at needs a --prompt"),
        (("-p", "What?", "--max-tokens", 0), "[attention-map] --max-tokens must be at least 1"),
        (("--plot", "map.gif"), "must end in .png or .svg"),
        (("--high-watermark", 10, "--low-watermark", 20), "low watermark 20 is above"),
        (("--video", "no-such.mp4"), "no-such.mp4 does not exist"),
    ],
)
def test_bad_options_are_refused(
    options: tuple[Any, ...], message: str, call: Call, media: Path
) -> None:
    result = call("attention-map", "--video", media / "film.mp4", *options)
    assert result.code == 2
    assert message in result.err
    assert result.out == ""


def test_a_model_needs_a_stream(call: Call, checkpoint: Path) -> None:
    result = call("attention-map", "--model", checkpoint)
    assert result.code == 2
    assert "there must be a stream; give --video or --audio" in result.err
