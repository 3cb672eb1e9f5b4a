"""A duplex session keeps its bounds and its units whole, whatever is said and however it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from omnitide import RetentionConfig, SamplingConfig
from omnitide.config import DuplexConfig
from omnitide.duplex import DuplexSession
from omnitide.errors import CapacityError, ConfigError, SessionError
from omnitide.layouts import LAYOUTS
from omnitide.media.chunk import MediaChunk
from omnitide.policies import POLICIES
from omnitide.response import Utterance

SERVED = [name for name, layout in LAYOUTS.items() if not layout.simulated]
BOUNDED = [name for name, policy in POLICIES.items() if policy.bounded]
Chunk = Callable[..., MediaChunk]
Open = Callable[..., DuplexSession]

# Ids of the small random checkpoint: bytes, then its markers.
UNIT, UNIT_END, TTS_BOS = 266, 267, 270
LISTEN, SPEAK, TURN_END, CHUNK_END = 272, 273, 274, 275
WORDS = [72, 73, 74]


@pytest.fixture
def duplex_model(families: Any) -> Any:
    return families("minicpm_o 4.5").model


@pytest.fixture
def open_duplex(duplex_model: Any) -> Open:
    """A duplex session with tight watermarks: `open_duplex(**options of DuplexSession)`."""

    def open_(**options: Any) -> DuplexSession:
        given: dict[str, Any] = {
            "retention": RetentionConfig(300, 200, recent_units=1, text_budget=40),
            "largest_unit": 100,
            "duplex": DuplexConfig(force_listen=1),
        }
        return DuplexSession(duplex_model, **(given | options))

    return open_


def talkative() -> Iterator[int]:
    """Decisions of a model that listens, speaks over two units, and listens again."""
    return cycle(
        [
            *[SPEAK, *WORDS, CHUNK_END],
            *[*WORDS, TURN_END, CHUNK_END],
            *[LISTEN],
        ]
    )


@pytest.fixture
def script(
    duplex_model: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[tuple[int, ...]]]:
    """Let the model choose what is written: `script(tokens)`. What it was told of, call by call."""

    def write(tokens: Iterator[int]) -> list[tuple[int, ...]]:
        told: list[tuple[int, ...]] = []

        def choose(logits: Any, chosen: tuple[int, ...], sampler: Any) -> int:
            told.append(tuple(chosen))
            return next(tokens)

        monkeypatch.setattr(duplex_model.duplex, "choose", choose)
        return told

    return write


def kept(session: DuplexSession) -> list[int]:
    tokens: list[int] = session.cache.history.cells["token"].tolist()
    return tokens


@pytest.mark.parametrize("layout", SERVED)
@pytest.mark.parametrize("policy", BOUNDED)
def test_history_stays_within_capacity(
    open_duplex: Open, second: Chunk, script: Any, policy: str, layout: str
) -> None:
    script(talkative())
    duplex = DuplexConfig(force_listen=1, recall=6)
    session = open_duplex(policy=policy, layout=layout, duplex=duplex)
    slots = len(session.cache.state.table.live)
    for index in range(20):
        update = session.append_media(second(index, picture=index % 3 == 0))
        session.cache.check_integrity()
        assert update.tokens_kept == len(session.cache.history) <= session.capacity_tokens
        assert not session.cache.history.units[-1].open
    assert session.stats().evictions >= 2
    assert session.stats().tokens_kept <= 300
    assert len(session.cache.state.table.live) == slots


@pytest.mark.parametrize("recall", [0, 6])
def test_layout_never_changes_a_decision(
    open_duplex: Open,
    second: Chunk,
    duplex_model: Any,
    monkeypatch: pytest.MonkeyPatch,
    recall: int,
) -> None:
    """Bit for bit: where cells lie must not matter, nor that some are written anew."""
    stories = []
    for layout in SERVED:
        script, story = talkative(), []

        def choose(
            logits: Any, *_: Any, script: Iterator[int] = script, story: list[Any] = story
        ) -> int:
            story.append(duplex_model.backend.to_numpy(logits).tobytes())
            return next(script)

        monkeypatch.setattr(duplex_model.duplex, "choose", choose)
        config = DuplexConfig(force_listen=1, recall=recall)
        session = open_duplex(layout=layout, policy="fifo", duplex=config)
        for index in range(12):
            session.append_media(second(index))
        assert session.stats().evictions > 2
        assert (session.cache.state.renewals > 2) is bool(recall)
        stories.append(story)
    assert all(story == stories[0] for story in stories)


def test_turned_keys_may_be_kept(
    open_duplex: Open, second: Chunk, script: Any, duplex_model: Any, monkeypatch: Any
) -> None:
    """A rotation begins with a pass over all live cells (`Step.rotation`), renewals or not."""
    script(talkative())
    session = open_duplex(policy="fifo", duplex=DuplexConfig(force_listen=1, recall=6))
    run, seen = duplex_model.backend.forward_pass, set()

    def forward_pass(forward: Any, x: Any, pools: Any, step: Any) -> Any:
        if step.rotation is not None and step.rotation not in seen:
            seen.add(step.rotation)
            live = session.cache.history.cells["slot"].tolist()
            assert set(live) <= set(step.slots.tolist())
        return run(forward, x, pools, step)

    monkeypatch.setattr(duplex_model.backend, "forward_pass", forward_pass)
    for index in range(12):
        session.append_media(second(index))
    assert session.cache.state.renewals > 2
    assert len(seen) > 2


@pytest.mark.parametrize("policy", ["omnipick", "fifo"])
def test_units_stay_well_formed(open_duplex: Open, second: Chunk, script: Any, policy: str) -> None:
    script(talkative())
    session = open_duplex(policy=policy)
    for index in range(16):
        session.append_media(second(index))
        marks = [token for token in kept(session) if token in (UNIT, UNIT_END)]
        assert marks == [UNIT, UNIT_END] * (len(marks) // 2)


def test_what_is_said_is_told_and_fed(open_duplex: Open, second: Chunk, script: Any) -> None:
    script(talkative())
    session = open_duplex(policy="full")
    updates = [session.append_media(second(index)) for index in range(5)]
    said = [update.said for update in updates]
    assert [s.tokens for s in said if s] == [
        (LISTEN,),  # it is made to
        (SPEAK, *WORDS, CHUNK_END),
        (*WORDS, TURN_END, CHUNK_END),
        (LISTEN,),
        (SPEAK, *WORDS, CHUNK_END),
    ]
    words = session.model.decode_text(WORDS)
    assert [s.text for s in said if s] == ["", words, words, "", words]
    assert [s.speaks for s in said if s] == [False, True, True, False, True]
    assert [s.in_turn for s in said if s] == [False, True, False, False, True]
    assert [(s.start, s.stop) for s in said if s] == [(i, i + 1.0) for i in range(5)]
    assert [update.tokens for update in updates] == [1 + 66 + 10 + n + 1 for n in (1, 5, 5, 1, 5)]


def test_listening_within_a_turn_is_fed_as_speech(
    open_duplex: Open, second: Chunk, script: Any
) -> None:
    """And is remembered as it was chosen; a chunk's end is not remembered."""
    told = script(iter([SPEAK, LISTEN, CHUNK_END, LISTEN, TURN_END, LISTEN]))
    session = open_duplex(duplex=DuplexConfig(force_listen=0))
    first, then = (session.append_media(second(i, picture=False)) for i in range(2))
    assert first.said is not None
    assert then.said is not None
    assert first.said.tokens == (SPEAK, TTS_BOS, CHUNK_END)
    assert then.said.tokens == (TTS_BOS, TURN_END, LISTEN)
    assert not then.said.in_turn
    assert told == [
        (),
        (SPEAK,),
        (SPEAK, LISTEN),
        (SPEAK, LISTEN),
        (SPEAK, LISTEN, LISTEN),
        (SPEAK, LISTEN, LISTEN, TURN_END),
    ]


def test_a_unit_says_no_more_than_it_may(open_duplex: Open, second: Chunk, script: Any) -> None:
    script(cycle(WORDS))
    session = open_duplex(duplex=DuplexConfig(force_listen=0, unit_tokens=5))
    update = session.append_media(second(0, picture=False))
    assert update.said is not None
    assert update.said.tokens == (72, 73, 74, 72, CHUNK_END)
    assert update.said.in_turn


def test_stop_ends_what_is_said_in_the_unit(
    open_duplex: Open, second: Chunk, duplex_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_duplex(duplex=DuplexConfig(force_listen=0))

    def choose(*_: Any) -> int:
        session.stop()
        return WORDS[0]

    monkeypatch.setattr(duplex_model.duplex, "choose", choose)
    said = [session.append_media(second(i, picture=False)).said for i in range(2)]
    assert [s.tokens for s in said if s] == [(WORDS[0], CHUNK_END)] * 2


@pytest.mark.parametrize("spoken", [0, 1, 3])
def test_an_interrupted_unit_is_ended_before_the_next(
    open_duplex: Open, second: Chunk, script: Any, spoken: int
) -> None:
    """Whatever it had said so far stays, and the stream goes on."""

    def interrupted() -> Iterator[int]:
        yield from WORDS[:spoken]
        raise KeyboardInterrupt

    script(interrupted())
    session = open_duplex(duplex=DuplexConfig(force_listen=0))
    with pytest.raises(KeyboardInterrupt):
        session.append_media(second(0, picture=False))
    assert session.cache.history.units[-1].open
    script(iter([LISTEN, TURN_END, LISTEN]))
    session.append_media(second(1, picture=False))
    end = [CHUNK_END] if spoken else [LISTEN]
    tail = [*WORDS[:spoken], *end, UNIT_END, UNIT]
    tokens = [t for t in kept(session) if t != 259]  # without the features
    prefix = tokens.index(UNIT) + 1
    assert tokens[prefix : prefix + len(tail)] == tail
    assert session.talk.units == 2
    session.cache.check_integrity()


@pytest.mark.parametrize("spoken", [0, 1, 3])
def test_what_an_interrupted_unit_said_is_not_lost(
    open_duplex: Open, second: Chunk, script: Any, spoken: int
) -> None:
    def interrupted() -> Iterator[int]:
        yield LISTEN
        yield from WORDS[:spoken]
        raise KeyboardInterrupt

    script(interrupted())
    session = open_duplex(duplex=DuplexConfig(force_listen=0))
    assert session.untold is None
    session.append_media(second(0, picture=False))
    assert session.untold is None
    with pytest.raises(KeyboardInterrupt):
        session.append_media(second(1, picture=False))
    words = tuple(WORDS[:spoken])
    text = session.model.decode_text(words)
    want = Utterance(1.0, 2.0, True, text, words, True) if spoken else None
    assert session.untold == want
    script(cycle([TURN_END, LISTEN]))
    session.append_media(second(2, picture=False))
    assert session.untold is None


def test_what_was_decided_is_told_if_the_unit_was_not_closed(
    open_duplex: Open, second: Chunk, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(cycle([*WORDS, CHUNK_END]))
    session = open_duplex(duplex=DuplexConfig(force_listen=0))

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session.cache, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.append_media(second(0, picture=False))
    assert session.untold is not None
    assert session.untold.tokens == (*WORDS, CHUNK_END)


def test_advice_of_a_duplex_session_names_its_own_options(open_duplex: Open) -> None:
    with pytest.raises(ConfigError, match="--unit-tokens"):
        open_duplex(max_kv_size=64)
    with pytest.raises(ConfigError, match="--voice or --recall"):
        open_duplex(duplex=DuplexConfig(recall=500))


def test_units_of_one_kind_of_media_and_of_none(
    open_duplex: Open, second: Chunk, script: Any
) -> None:
    script(cycle([LISTEN]))
    session = open_duplex()
    assert session.append_media(second(0, picture=False)).tokens == 1 + 10 + 2
    assert session.append_media(second(1, sound=False)).tokens == 1 + 66 + 2
    before = len(session.cache.history)
    update = session.append_media(second(2, picture=False, sound=False))
    assert (update.tokens, update.said) == (0, None)
    assert (session.time, len(session.cache.history), session.talk.units) == (3.0, before, 2)


def test_sound_too_short_for_a_token_waits(open_duplex: Open, script: Any) -> None:
    script(cycle([LISTEN]))
    session = open_duplex()
    short = MediaChunk(0.0, 0.001, samples=np.zeros(16, np.float32))
    assert session.append_media(short).said is None
    assert session.time == 0.001


def test_oversized_unit_is_refused_before_anything_changes(
    open_duplex: Open, second: Chunk, script: Any
) -> None:
    script(cycle([LISTEN]))
    session = open_duplex(largest_unit=30, retention=RetentionConfig(90, 60))
    session.append_media(second(0, picture=False))
    before = session.cache.state
    with pytest.raises(CapacityError, match="media unit has 77 tokens, capacity leaves"):
        session.append_media(second(1))
    assert session.cache.state is before
    session.append_media(second(1, picture=False))


def test_questions_and_text_are_refused(open_duplex: Open) -> None:
    session = open_duplex()
    with pytest.raises(SessionError, match="takes no questions"):
        session.ask("What?")
    with pytest.raises(SessionError, match="takes no text"):
        session.append_text("Some.")


@pytest.mark.parametrize("name", ["qwen2_5_omni", "minicpm_o 2.6"])
def test_a_model_that_speaks_only_when_asked_is_refused(families: Any, name: str) -> None:
    with pytest.raises(ConfigError, match="speaks only when it is asked"):
        DuplexSession(families(name).model)


def test_a_seed_repeats_what_is_sampled(open_duplex: Open, second: Chunk) -> None:
    def told(seed: int) -> list[int]:
        sampling = SamplingConfig(temperature=1.5, seed=seed)
        session = open_duplex(sampling=sampling, duplex=DuplexConfig(force_listen=0))
        updates = [session.append_media(second(i, picture=False)) for i in range(3)]
        return [token for update in updates if update.said for token in update.said.tokens]

    assert told(3) == told(3)
    assert told(3) != told(4)


def test_dropped_words_are_recalled_newest_first(
    open_duplex: Open, second: Chunk, script: Any
) -> None:
    """The first token of a unit never is; the marker stands where there are words alone."""
    script(token for word in range(65, 99, 2) for token in (SPEAK, word, word + 1, CHUNK_END))
    session = open_duplex(
        policy="fifo",
        retention=RetentionConfig(120, 80),
        duplex=DuplexConfig(force_listen=0, recall=3),
    )
    prefix = session.cache.history.prefix
    marker = session.model.duplex.recall_marker
    for index in range(12):
        session.append_media(second(index, picture=False))
        dropped = index + 1 - (len(session.cache.history.units) - 1)
        words = [word for unit in range(dropped) for word in (65 + 2 * unit, 66 + 2 * unit)]
        recalled = session.talk.recalled
        assert recalled == tuple(words[-3:])
        written = kept(session)[prefix - 2 + marker : session.cache.history.prefix - 2]
        assert tuple(written) == recalled
        session.cache.check_integrity()
    assert session.cache.state.renewals == 2


def test_angles_of_equal_rotation_are_equal(
    open_duplex: Open,
    second: Chunk,
    script: Any,
    duplex_model: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backend that keeps turned keys relies on it, also where the prefix got another end."""
    backend = duplex_model.backend
    run, known = backend.forward_pass, {}

    def watched(forward: Any, x: Any, pools: Any, step: Any) -> Any:
        angles = {s: a.tobytes() for s, a in zip(step.slots.tolist(), step.cos, strict=True)}
        written = set(step.query_slots.tolist())
        before = known.get(step.rotation, {})
        assert all(angles[s] == a for s, a in before.items() if s in angles and s not in written)
        known[step.rotation] = angles
        return run(forward, x, pools, step)

    monkeypatch.setattr(backend, "forward_pass", watched)
    script(talkative())
    config = DuplexConfig(force_listen=1, recall=6)
    session = open_duplex(policy="fifo", retention=RetentionConfig(120, 80), duplex=config)
    for index in range(12):
        session.append_media(second(index, picture=False))
    assert session.cache.state.renewals > 2
    assert len(known) > 4
