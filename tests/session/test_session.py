"""A session follows a stream within its bounds and converses in well-formed turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omnitide import RetentionConfig, SamplingConfig, Session
from omnitide.errors import CapacityError, ConfigError, SessionError
from omnitide.layouts import LAYOUTS
from omnitide.media.chunk import MediaChunk
from omnitide.pages import PAGE_SIZE
from omnitide.policies import POLICIES

SERVED = [name for name, layout in LAYOUTS.items() if not layout.simulated]
Chunk = Callable[..., MediaChunk]
Open = Callable[..., Session]

IM_START, IM_END = 257, 258
TIGHT_REST = 300  # the high watermark of the sessions here


def reply(session: Session, prompt: str = "What?", **options: Any) -> list[int]:
    return [r.token for r in session.ask(prompt, **options)]


def turns(session: Session) -> list[str]:
    """Roles opened and closed, in the order of the tokens that are kept."""
    spoken = session.cache.history.cells["token"]
    return ["start" if t == IM_START else "end" for t in spoken if t in (IM_START, IM_END)]


@pytest.mark.parametrize("layout", SERVED)
@pytest.mark.parametrize("policy", [n for n, p in POLICIES.items() if p.bounded])
def test_history_stays_within_capacity(
    family: Any, open_family: Open, family_chunk: Chunk, policy: str, layout: str
) -> None:
    session = open_family(policy=policy, layout=layout)
    slots = len(session.cache.state.table.live)
    for index in range(24):
        update = session.append_media(family_chunk(index))
        session.cache.check_integrity()
        assert update.tokens == family.tokens
        assert update.tokens_kept <= session.capacity_tokens
        if index % 8 == 5:
            reply(session)
            session.cache.check_integrity()
            assert len(session.cache.history) <= session.capacity_tokens
    stats = session.stats()
    assert stats.evictions >= 5
    assert stats.tokens_kept <= TIGHT_REST
    assert session.cache.pools.num_pages * PAGE_SIZE == slots == len(session.cache.state.table.live)
    assert stats.full_kv_bytes > 2 * stats.physical_kv_bytes * stats.tokens_kept / slots


def test_layout_never_changes_an_answer(open_family: Open, family_chunk: Chunk) -> None:
    """Where cells lie must not matter: same tokens, bit for bit the same logits."""
    answers = []
    for layout in SERVED:
        session = open_family(layout=layout)
        for index in range(12):
            session.append_media(family_chunk(index))
        answers.append([(r.token, r.logprobs.tobytes()) for r in session.ask("And now?")])
        assert session.stats().evictions > 2
    assert all(answer == answers[0] for answer in answers)


def test_turns_stay_well_formed(open_family: Open, family_chunk: Chunk) -> None:
    """Whatever was evicted, roles open and close in turn, and the user's is open at the end."""
    session = open_family()
    for index in range(20):
        session.append_media(family_chunk(index))
        if index % 3 == 0:
            reply(session, f"Question {index}?")
        found = turns(session)
        assert found[::2] == ["start"] * ((len(found) + 1) // 2)
        assert found[1::2] == ["end"] * (len(found) // 2)
        assert found[-1] == "start"


def test_reply_left_early_is_closed_and_short(open_session: Open, chunk: Chunk) -> None:
    session = open_session()
    session.append_media(chunk(0))
    answer = session.ask("What?")
    first = [next(answer).token, next(answer).token]
    answer.close()
    session.append_media(chunk(1))
    assert turns(session) == ["start", "end"] * 3 + ["start"]
    # The same question again gives the same first tokens: nothing of the session was lost.
    again = open_session()
    again.append_media(chunk(0))
    assert reply(again)[:2] == first


@pytest.mark.parametrize("then", ["append", "ask"])
def test_reply_read_on_too_late_is_refused(open_session: Open, chunk: Chunk, then: str) -> None:
    session = open_session()
    session.append_media(chunk(0))
    late = session.ask("What?")
    next(late)
    if then == "append":
        session.append_media(chunk(1))
    else:
        assert len(reply(session, "And?")) == 12
    before = session.cache.state
    with pytest.raises(SessionError, match="ended by what was appended or asked since; ask again"):
        next(late)
    assert session.cache.state is before
    assert len(reply(session)) == 12


def test_stop_ends_the_reply_after_the_next_token(open_session: Open, chunk: Chunk) -> None:
    session = open_session()
    session.append_media(chunk(0))
    pieces = []
    for piece in session.ask("What?"):
        pieces.append(piece)
        session.stop()
    assert [p.finish_reason for p in pieces] == [None, "stop"]
    assert len(reply(session)) == 12  # a stop holds for one reply only


def test_full_context_grows_and_keeps_all(open_session: Open, chunk: Chunk) -> None:
    session = open_session(policy="full")
    for index in range(12):
        session.append_media(chunk(index))
    stats = session.stats()
    assert stats.tokens_kept == stats.tokens_seen == len(session.cache.history)
    assert stats.tokens_kept > 12 * 62
    assert stats.evictions == 0
    assert stats.capacity_tokens >= stats.tokens_kept
    session.cache.check_integrity()


def test_growing_pools_changes_no_answer(open_family: Open, family_chunk: Chunk) -> None:
    grown, roomy = open_family(policy="full"), open_family(policy="full", max_kv_size=4096)
    for session in (grown, roomy):
        for index in range(10):
            session.append_media(family_chunk(index))
    assert reply(grown) == reply(roomy)


@pytest.mark.parametrize("policy", ["omnipick", "full"])
def test_max_kv_size_binds(open_session: Open, chunk: Chunk, policy: str) -> None:
    session = open_session(policy=policy, max_kv_size=400, retention=RetentionConfig())
    spec = session.model.spec
    assert session.cache.pools.nbytes <= 400 * spec.kv_bytes_per_token(4)
    if policy == "full":
        while len(session.cache.history) + 62 + 12 + 16 <= session.capacity_tokens:
            session.append_media(chunk(0))
        with pytest.raises(CapacityError, match=r"media unit has 62 tokens, capacity leaves \d+"):
            session.append_media(chunk(0))
    else:
        for index in range(20):
            session.append_media(chunk(index))
        assert session.stats().evictions > 4
        assert session.retention.high_watermark < 2500


@pytest.mark.parametrize("policy", ["omnipick", "fifo"])
@pytest.mark.parametrize("max_kv_size", [None, 1024])
def test_a_long_reply_leaves_room_for_the_stream(
    open_session: Open, chunk: Chunk, policy: str, max_kv_size: int | None
) -> None:
    """A reply longer than the watermarks stays whole while it is the newest unit."""
    session = open_session(
        policy=policy,
        retention=RetentionConfig(200, 150),
        max_tokens=300,
        max_kv_size=max_kv_size,
    )
    for index in range(6):
        session.append_media(chunk(index))
        assert len(reply(session)) == 300
        assert len(session.cache.history) <= session.capacity_tokens
    session.append_media(chunk(6))
    session.cache.check_integrity()


def test_oversized_unit_is_refused_before_anything_changes(
    open_session: Open, chunk: Chunk
) -> None:
    session = open_session()
    session.append_media(chunk(0))
    before = session.cache.state
    with pytest.raises(CapacityError, match=r"text unit has 1,000 tokens, capacity leaves \d+;"):
        session.append_text("x" * 1000)
    assert session.cache.state is before
    with pytest.raises(CapacityError, match="prompt unit has"):
        reply(session, "x" * 1000)
    assert session.cache.state is before
    session.append_media(chunk(1))
    session.cache.check_integrity()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"system_prompt": "x" * 250}, "system prefix has .* low watermark is 200"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"max_kv_size": 0}, "max_kv_size must be at least 1"),
        ({"max_kv_size": 200}, "--max-kv-size 200 is too small"),
        ({"policy": "full", "max_kv_size": 64}, "must hold the system prefix"),
        ({"policy": "lru"}, "expected one of omnipick"),
        ({"layout": "tidy"}, "expected one of predictive"),
    ],
)
def test_impossible_sessions_are_refused(
    open_session: Open, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_session(**options)


def test_questions_are_checked_when_asked(open_session: Open) -> None:
    session = open_session()
    with pytest.raises(ConfigError, match="must not be empty"):
        session.ask(" \n")
    with pytest.raises(ConfigError, match="max_tokens must be from 1 to the session's 12, got 13"):
        session.ask("What?", max_tokens=13)
    with pytest.raises(ConfigError, match="must not be empty"):
        session.append_text("")


def test_prefix_larger_than_the_default_unit_room_still_fits(open_session: Open) -> None:
    """The capacity is made around the prefix, so the prefix itself is never refused."""
    session = open_session(
        system_prompt="x" * 190, retention=RetentionConfig(230, 229), largest_unit=40
    )
    assert len(session.cache.history) > 190


def test_seed_repeats_a_sampled_reply(open_session: Open, chunk: Chunk) -> None:
    def sampled(seed: int) -> list[int]:
        session = open_session()
        session.append_media(chunk(0))
        return reply(session, sampling=SamplingConfig(temperature=1.5, seed=seed))

    assert sampled(3) == sampled(3)
    assert sampled(3) != sampled(4)


def test_chunks_without_picture_or_sound(open_session: Open, chunk: Chunk) -> None:
    session = open_session()
    assert session.append_media(chunk(0, picture=False)).tokens == 52
    assert session.append_media(chunk(1, sound=False)).tokens == 10
    kept = len(session.cache.history)
    assert session.append_media(chunk(2, picture=False, sound=False)).tokens == 0
    assert (session.time, len(session.cache.history)) == (6.0, kept)
    session.cache.check_integrity()


def test_statistics_add_up(open_session: Open, chunk: Chunk) -> None:
    session = open_session()
    session.append_text("A walk by the sea.")
    for index in range(8):
        session.append_media(chunk(index))
    tokens = len(reply(session))
    stats, state = session.stats(), session.cache.state
    assert stats.units == 1 + 1 + 8 + 2  # system, text, chunks, prompt and reply
    assert stats.tokens_kept == len(state.history) == state.table.num_live
    assert stats.physical_kv_bytes == sum(
        a.nbytes for a in (*session.cache.pools.keys, *session.cache.pools.values)
    )
    assert stats.full_kv_bytes == stats.tokens_seen * 2 * 3 * 1 * 128 * 4
    assert 0 < stats.update_ms_p50 <= stats.update_ms_p95
    assert stats.decode_tokens_per_s > 0
    assert tokens == 12
    assert np.isfinite(stats.peak_memory_bytes)
