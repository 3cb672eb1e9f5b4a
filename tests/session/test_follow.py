"""Questions are asked at their moments; text is handed out in whole characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from omnitide import GenerationResponse, Question, Session, Update, follow
from omnitide.detokenizer import Detokenizer
from omnitide.errors import ConfigError
from omnitide.following import pair_questions
from omnitide.media.chunk import MediaChunk


def test_questions_come_after_the_chunk_that_reaches_their_moment(
    open_session: Callable[..., Session], chunk: Callable[..., MediaChunk]
) -> None:
    session = open_session(max_tokens=2)
    asked = [Question("end"), Question("at 3", 3.0), Question("at 2", 2.0), Question("late", 99.0)]
    log = []
    for event in follow(session, [chunk(i) for i in range(3)], asked):
        if isinstance(event, Update):
            log.append(event.time)
        elif isinstance(event, Question):
            log.append(event.prompt)
        else:
            assert isinstance(event, GenerationResponse)
            assert event.time == session.time
    assert log == [2.0, "at 2", 4.0, "at 3", 6.0, "late", "end"]


def test_a_question_without_a_stream(open_session: Callable[..., Session]) -> None:
    session = open_session(max_tokens=3)
    events = list(follow(session, [], [Question("Well?")]))
    assert [type(e) for e in events] == [Question, *[GenerationResponse] * 3]
    assert events[-1].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompts", "moments", "paired"),
    [
        (["a"], [], [("a", None)]),
        (["a"], [4, 2], [("a", 2), ("a", 4)]),
        (["a", "b"], [5, 3], [("b", 3), ("a", 5)]),
        (["a", "b", "c"], [5], [("a", 5), ("b", None), ("c", None)]),
        ([], [], []),
    ],
)
def test_prompts_are_paired_with_moments(
    prompts: list[str], moments: list[float], paired: list[tuple[str, float | None]]
) -> None:
    assert [(q.prompt, q.at) for q in pair_questions(prompts, moments)] == paired


@pytest.mark.parametrize(
    ("prompts", "moments", "message"),
    [
        ([" "], [], "must not be empty"),
        (["a"], [-1.0], "at least 0 seconds, got -1"),
        (["a"], [float("nan")], "at least 0 seconds"),
        (["a", "b"], [1, 2, 3], "3 moments for 2 prompts"),
    ],
)
def test_odd_pairs_are_refused(prompts: list[str], moments: list[float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pair_questions(prompts, moments)


def decode_bytes(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode("utf-8", errors="replace")


def test_characters_are_handed_out_whole() -> None:
    text = "aé漢🌊b"
    detokenizer = Detokenizer(decode_bytes)
    pieces = [detokenizer.add(byte) for byte in text.encode()]
    assert "".join(pieces) + detokenizer.flush() == text
    assert pieces == ["a", "", "é", "", "", "漢", "", "", "", "🌊", "b"]


def test_broken_bytes_are_not_held_for_ever() -> None:
    detokenizer = Detokenizer(decode_bytes)
    pieces = [detokenizer.add(0xFF) for _ in range(20)]
    assert any(pieces)
    assert len("".join(pieces) + detokenizer.flush()) == 20
