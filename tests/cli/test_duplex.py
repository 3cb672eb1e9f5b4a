"""A duplex run with nothing given, and how its turns are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnitide.cli.progress import minutes
from omnitide.cli.transcript import Transcript, Turn
from omnitide.cli.words import Words
from omnitide.response import DuplexUpdate, Utterance


def unit(second: int, text: str = "", tokens: int = 1, in_turn: bool = False) -> DuplexUpdate:
    """An update in which the model said `text`, or listened."""
    said = Utterance(second, second + 1.0, bool(text), text, (7,) * tokens, in_turn)
    return DuplexUpdate(second + 1.0, 12, 0.1, 0, 0, 12, 12, 1, said)


STREAM = [
    unit(0),
    unit(1),
    unit(2, "Good ", 4, in_turn=True),
    unit(3, "day.", 3),
    unit(4, "Now", 2, in_turn=True),
    unit(5),
    unit(6, "then.", 2, in_turn=True),
]


def test_turns_are_told_by_who_has_the_word() -> None:
    """A turn that follows a finished one is another; who listens for long has one turn."""
    transcript = Transcript()
    for update in STREAM:
        transcript.add(update, update.time)
    nothing = DuplexUpdate(8.0, 0, 0.1, 0, 0, 12, 12, 1, None)
    transcript.add(nothing, 8.0)
    assert transcript.turns == [
        Turn("stream", 0, 2.0, "", 2),
        Turn("model", 2, 4.0, "Good day.", 7, finished=True),
        Turn("model", 4, 5.0, "Now", 2),
        Turn("stream", 5, 6.0, "", 1),
        Turn("model", 6, 7.0, "then.", 2),
    ]
    assert transcript.as_list() == []


@pytest.mark.parametrize("headed", [False, True])
def test_every_turn_has_a_line(headed: bool, capsys: pytest.CaptureFixture[str]) -> None:
    words = Words(headed)
    for update in STREAM:
        words.show(update, update.time)
    words.end_line()
    lines = ["Good day.", "Now", "then."]
    times = [3.0, 5.0, 7.0]
    if headed:
        lines = [f"[{minutes(t)}] {text}" for t, text in zip(times, lines, strict=True)]
    assert capsys.readouterr().out.splitlines() == lines


def test_without_a_model_a_small_one_follows(call: Callable[..., Any], media: Path) -> None:
    found = call("generate", "--duplex", "--audio", media / "deaf.wav", "--json").json()
    assert found["trained"] is False
    assert found["units"] == 1 + 6
    assert found["turns"][0]["speaker"] == "stream"
    assert found["turns"][-1]["stop"] == 6.0


def test_a_model_that_is_asked_is_refused(
    call: Callable[..., Any], media: Path, checkpoint: Path
) -> None:
    result = call("generate", "--duplex", "--model", checkpoint, "--audio", media / "deaf.wav")
    assert result.code == 2
    assert "speaks only when it is asked" in result.err
    assert result.out == ""
