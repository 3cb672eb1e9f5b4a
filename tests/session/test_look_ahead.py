"""The place of a reply's next token is worked out ahead: it changes nothing but when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omnitide import Session
from omnitide.cache import BoundedCache
from omnitide.media.chunk import MediaChunk


def talk(session: Session, chunk: Callable[..., MediaChunk]) -> list[int]:
    """A stream with replies of several tokens, cut short and whole, and evictions in between."""
    tokens: list[int] = []
    for index in range(9):
        session.append_media(chunk(index))
        if index % 2 == 0:
            reply = session.ask("What now?", max_tokens=3 + index)
            tokens += [response.token for response in reply]
        elif index == 3:
            reply = session.ask("And now?")
            tokens += [next(reply).token, next(reply).token]  # left where it stands
    return tokens


def test_a_look_ahead_changes_nothing(
    open_session: Callable[..., Session],
    chunk: Callable[..., MediaChunk],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ahead = open_session()
    expected = open_session()
    said = talk(ahead, chunk)
    monkeypatch.setattr(BoundedCache, "_look_ahead", lambda self, unit: None)
    assert talk(expected, chunk) == said

    ours, theirs = ahead.cache.state, expected.cache.state
    assert ours.evictions == theirs.evictions > 0
    assert ours.history.cells.tobytes() == theirs.history.cells.tobytes()
    assert ours.history.units == theirs.history.units
    assert ours.history.next_position == theirs.history.next_position
    cells = len(ours.history)
    np.testing.assert_array_equal(ours.angles[:cells], theirs.angles[:cells])
    np.testing.assert_array_equal(ours.table.live, theirs.table.live)
    ahead.cache.check_integrity()


def test_tokens_of_a_reply_are_placed_once(
    open_session: Callable[..., Session],
    chunk: Callable[..., MediaChunk],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = open_session()
    session.append_media(chunk(0))
    reply = session.ask("What now?", max_tokens=6)
    next(reply)
    placed: list[int] = []
    place = BoundedCache._place

    def counted(self: BoundedCache, unit: Any, record: Any) -> Any:
        placed.append(len(self.history))
        return place(self, unit, record)

    monkeypatch.setattr(BoundedCache, "_place", counted)
    before = len(session.cache.history)
    for _ in range(3):
        next(reply)
    # Each token found its place, and worked out that of the one after it.
    assert placed == [before + 1, before + 2, before + 3]
    assert len(session.cache.history) == before + 3
