"""A question asked aside is answered as any other, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from omnitide import Session
from omnitide.errors import SessionError
from omnitide.media.chunk import MediaChunk
from omnitide.policies import POLICIES

Chunk = Callable[..., MediaChunk]
Open = Callable[..., Session]


def heard(session: Session, prompt: str = "What?", **options: Any) -> list[tuple[int, bytes]]:
    """Tokens of a reply with the bits of what they were drawn from."""
    return [(r.token, r.logprobs.tobytes()) for r in session.ask(prompt, **options)]


@pytest.mark.parametrize("layout", ["predictive", "paper", "eager"])
@pytest.mark.parametrize("policy", POLICIES)
def test_it_is_answered_alike_and_changes_nothing_after_it(
    open_session: Open, chunk: Chunk, policy: str, layout: str
) -> None:
    asking = open_session(policy=policy, layout=layout)
    silent = open_session(policy=policy, layout=layout)
    for index in range(10):
        for session in (asking, silent):
            session.append_media(chunk(index))
        held = asking.cache.state
        first = heard(asking, aside=True)
        assert asking.cache.state is held
        assert heard(asking, "A longer question, in between?", aside=True) != first
        assert heard(asking, aside=True) == first
    asking.cache.check_integrity()
    assert (asking.stats().evictions > 1) == POLICIES[policy].bounded
    assert asking.cache.history.cells.tobytes() == silent.cache.history.cells.tobytes()
    assert first == heard(silent)
    assert heard(asking) == first  # `silent` has only now heard it


def test_one_that_was_left_is_forgotten_with_the_next_event(
    open_session: Open, chunk: Chunk
) -> None:
    session = open_session()
    session.append_media(chunk(0))
    before = len(session.cache.history)
    late = session.ask("What?", aside=True)
    next(late)
    assert session.append_media(chunk(1)).tokens_kept == before + 62
    with pytest.raises(SessionError, match="ended by what was appended or asked since"):
        next(late)
    other = session.ask("What?", aside=True)
    next(other)
    again = session.ask("What?", aside=True)
    next(again)  # begins as `other` did, with a reply of the same place and id
    with pytest.raises(SessionError, match="ended by what was appended or asked since"):
        next(other)
    assert len(list(again)) == 11


def test_history_above_its_watermark_is_cut_before_it(open_session: Open, chunk: Chunk) -> None:
    """What an interrupt kept from being cut is cut first, so that nothing is cut meanwhile."""
    session = open_session(layout="eager")
    for index in range(6):
        session.append_media(chunk(index))
    cut = session.cache.evict
    session.cache.evict = lambda: None  # type: ignore[method-assign]
    while len(session.cache.history) <= session.retention.high_watermark:
        session.append_media(chunk(session.stats().units))
    session.cache.evict = cut  # type: ignore[method-assign]
    evictions = session.cache.state.evictions
    first = heard(session, aside=True)
    assert session.cache.state.evictions == evictions + 1
    assert heard(session, aside=True) == first
    assert session.cache.state.evictions == evictions + 1


def test_its_last_token_is_not_fed(
    open_session: Open, chunk: Chunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_session()
    session.append_media(chunk(0))
    forward, lengths = session.model.backend.forward_pass, []

    def counted(function: Any, embeddings: Any, *rest: Any) -> Any:
        lengths.append(len(embeddings))
        return forward(function, embeddings, *rest)

    monkeypatch.setattr(session.model.backend, "forward_pass", counted)
    assert len(list(session.ask("What?", max_tokens=3, aside=True))) == 3
    assert lengths[1:] == [1, 1]


def test_backend_error_in_it_is_forgotten_with_it(
    open_session: Open, chunk: Chunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_session()
    session.append_media(chunk(0))
    held, forward = session.cache.state, session.model.backend.forward_pass
    passes = iter(range(3))

    def fail_later(*arguments: Any) -> Any:
        if next(passes) == 2:
            raise RuntimeError("the device is gone")
        return forward(*arguments)

    monkeypatch.setattr(session.model.backend, "forward_pass", fail_later)
    with pytest.raises(RuntimeError, match="gone"):
        list(session.ask("What?", aside=True))
    monkeypatch.undo()
    before = len(held.history)
    assert session.append_media(chunk(1)).tokens_kept == before + 62
