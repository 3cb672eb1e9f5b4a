"""An interrupt or error anywhere leaves the session consistent, and its answers as they would be.

A trace function raises at the n-th line of the core that an update or a reply runs through. Set
OMNITIDE_EVERY_LINE=1 to try every n (minutes); otherwise every few.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import omnitide
from omnitide import MigrationConfig, RetentionConfig, Session
from omnitide.backends.eight_bit import EightBitPools
from omnitide.config import DuplexConfig
from omnitide.duplex import DuplexSession
from omnitide.errors import ConfigError
from omnitide.media.chunk import MediaChunk

CORE = Path(omnitide.__file__).parent
TRACED = {
    str(CORE / name)
    for name in (
        "cache.py", "cache_state.py", "session.py", "history.py", "pages.py", "migration.py",
        "retention.py", "positions.py", "growing.py", "policies/omnipick.py", "policies/h2o.py",
        "paging.py",
        "layouts/paper.py", "layouts/predictive.py", "layouts/eager.py", "layouts/suffix.py",
        "acceptance.py", "duplex.py",
    )
}  # fmt: skip


STRIDE = 1 if "OMNITIDE_EVERY_LINE" in os.environ else 7


class Interrupted(Exception):
    """Raised by the trace function."""


@contextmanager
def interrupt_at(line: int, kind: type[BaseException]) -> Iterator[list[int]]:
    """Raise `kind` at the given count of lines of the core; yields the lines counted so far."""
    count = [0]

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in TRACED:
            return None
        if event == "line":
            count[0] += 1
            if count[0] == line:
                raise kind
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


@pytest.fixture
def session(request: pytest.FixtureRequest, model: Any, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session on this very thread, which a trace function can reach."""
    monkeypatch.setattr(model.backend, "run", lambda f, *args, **kwargs: f(*args, **kwargs))
    retention = RetentionConfig(260, 150, recent_units=1, text_budget=40, image_sink=3)
    layout, policy, *bits = request.param
    return Session(
        model,
        retention=retention,
        layout=layout,
        policy=policy,
        migration=MigrationConfig("layout", span_pages=1),
        max_tokens=4,
        largest_unit=100,
        kv_bits=bits[0] if bits else None,
    )


def lines_of(action: Callable[[], object]) -> int:
    """Lines of the core that an action runs through."""
    with interrupt_at(-1, Interrupted) as count:
        action()
    return count[0]


def remember(session: Session) -> Callable[[], None]:
    """A function that puts state and pools back to what they are now."""
    state, pools = session.cache.state, session.cache.pools
    packed = isinstance(pools, EightBitPools)
    arrays = [a for part in (pools.paged if packed else (pools.keys, pools.values)) for a in part]
    rows = [array.copy() for array in arrays]

    def restore() -> None:
        session.cache.state = state
        for array, row in zip(arrays, rows, strict=True):
            np.copyto(array, row)

    return restore


def answer(session: Session) -> list[tuple[int, bytes]]:
    return [(r.token, r.logprobs.tobytes()) for r in session.ask("Well?", max_tokens=1)]


def mass_bits(session: Session) -> bytes | None:
    mass = session.cache.state.mass
    return None if mass is None else mass.tobytes()


@pytest.mark.parametrize(
    "session",
    [
        ("paper", "omnipick"),
        ("predictive", "omnipick"),
        ("eager", "omnipick"),
        ("suffix", "omnipick"),
        ("paper", "h2o"),
        ("paper", "omnipick", 8),
    ],
    ids=lambda given: "-".join(map(str, given)),
    indirect=True,
)
def test_update_interrupted_at_any_line(session: Session, chunk: Callable[..., MediaChunk]) -> None:
    """Before or after, never between: redoing what was not done gives the same answer."""
    while session.stats().evictions < 2:
        session.append_media(chunk(session.stats().units))
    # The next update evicts, and in the paper's layout migrates.
    while len(session.cache.history) + 62 <= 260:
        session.append_media(chunk(session.stats().units))
    restore, saved, new = remember(session), session.cache.state, chunk(99)

    total = lines_of(lambda: session.append_media(new))
    after = session.cache.state
    assert after.evictions == saved.evictions + 1
    if session.cache.layout.name in ("paper", "eager"):
        assert after.rows_moved > saved.rows_moved
    session.append_media(chunk(100))
    expected, weighed = answer(session), mass_bits(session)
    assert (weighed is not None) == session.cache.policy.needs_mass

    outcomes = set()
    for line in range(1, total + 1, STRIDE):
        restore()
        kind = KeyboardInterrupt if line % 2 else Interrupted
        with interrupt_at(line, kind), pytest.raises(kind):
            session.append_media(new)
        session.cache.check_integrity()
        taken = session.cache.history.next_unit > saved.history.next_unit
        outcomes.add(taken)
        # The stream's own state moves with the history, or not at all.
        assert (session.time > saved.time) == taken
        if not taken:
            assert session.cache.state is saved
            session.append_media(new)
        session.append_media(chunk(100))
        session.cache.check_integrity()
        assert answer(session) == expected
        assert mass_bits(session) == weighed
    assert outcomes == {False, True}


@pytest.mark.parametrize("session", [("predictive", "omnipick")], ids="-".join, indirect=True)
@pytest.mark.parametrize("aside", [False, True])
def test_reply_interrupted_at_any_line(
    session: Session, chunk: Callable[..., MediaChunk], aside: bool
) -> None:
    """The stream goes on, in well-formed turns, after a question that came to nothing."""
    for index in range(5):
        session.append_media(chunk(index))
    restore = remember(session)
    session.append_media(chunk(9))
    untouched = session.cache.history.cells.tobytes()
    restore()
    total = lines_of(lambda: list(session.ask("Well?", aside=aside)))
    for line in range(1, total + 1, 2 * STRIDE):
        restore()
        with interrupt_at(line, KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            list(session.ask("Well?", aside=aside))
        session.cache.check_integrity()
        session.append_media(chunk(9))
        session.cache.check_integrity()
        if aside:
            assert session.cache.history.cells.tobytes() == untouched
        marks = [t for t in session.cache.history.cells["token"].tolist() if t in (257, 258)]
        assert marks == ([257, 258] * len(marks))[: len(marks)]
        assert marks[-1] == 257
        assert len(list(session.ask("Well?", aside=aside))) == 4


LISTEN, CHUNK_END, UNIT, UNIT_END = 272, 275, 266, 267
SPEAKING = (273, 72, 73, CHUNK_END)  # of every unit: <|speak|>, two words, the end of the chunk


@pytest.mark.parametrize(
    ("policy", "kv_bits"), [("fifo", None), ("omnipick", None), ("fifo", 8), ("omnipick", 8)]
)
def test_duplex_unit_interrupted_at_any_line(
    families: Callable[[str], Any],
    second: Callable[..., MediaChunk],
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    kv_bits: int | None,
) -> None:
    """The unit is not there, or is ended before the next one; what was dropped is recalled once."""
    model = families("minicpm_o 4.5").model
    monkeypatch.setattr(model.backend, "run", lambda f, *args, **kwargs: f(*args, **kwargs))
    session = DuplexSession(
        model,
        policy=policy,
        retention=RetentionConfig(90, 60, recent_units=1, text_budget=4),
        migration=MigrationConfig("layout"),
        duplex=DuplexConfig(force_listen=0, recall=3),
        largest_unit=40,
        kv_bits=kv_bits,
    )
    seen: list[bytes] = []

    def choose(logits: Any, *_: Any) -> int:
        seen.append(model.backend.to_numpy(logits).tobytes())
        return SPEAKING[len(session.talk.said)]

    monkeypatch.setattr(model.duplex, "choose", choose)

    def hear(index: int) -> None:
        session.append_media(second(index, picture=False))

    # The next unit makes the session drop one, and recall its words.
    while len(session.cache.history) + 16 <= 90 or session.cache.state.renewals < 1:
        hear(session.talk.units)
    restore, saved, next_second = remember(session), session.cache.state, session.talk.units
    total = lines_of(lambda: hear(next_second))
    after = session.cache.state
    assert (after.evictions, after.renewals) == (saved.evictions + 1, saved.renewals + 1)
    hear(next_second + 1)
    expected, recalled = seen[-len(SPEAKING) :], session.talk.recalled

    outcomes = set()
    for line in range(1, total + 1, STRIDE):
        restore()
        kind = KeyboardInterrupt if line % 2 else Interrupted
        with interrupt_at(line, kind), pytest.raises(kind):
            hear(next_second)
        session.cache.check_integrity()
        taken = session.cache.history.next_unit > saved.history.next_unit
        assert (session.time > saved.time) == taken
        whole = session.talk.said == SPEAKING
        if not taken:
            assert session.cache.state is saved
            hear(next_second)
        outcomes.add((taken, whole and taken))
        hear(next_second + 1)
        session.cache.check_integrity()
        tokens = session.cache.history.cells["token"].tolist()
        marks = [t for t in tokens if t in (UNIT, UNIT_END)]
        assert marks == [UNIT, UNIT_END] * (len(marks) // 2)
        assert session.talk.units == session.cache.history.next_unit - 1
        if whole or not taken:
            assert seen[-len(SPEAKING) :] == expected
            assert session.talk.recalled == recalled
    assert outcomes == {(False, False), (True, False), (True, True)}


@pytest.mark.parametrize("policy", ["omnipick", "h2o"])
def test_backend_error_in_any_layer_is_forgotten(
    policy: str,
    open_session: Callable[..., Session],
    chunk: Callable[..., MediaChunk],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows written in vain are never seen: the same chunk again gives the same logits."""
    session, undisturbed = open_session(policy=policy), open_session(policy=policy)
    for index in range(6):
        undisturbed.append_media(chunk(index))
    backend = session.model.backend
    write = backend.append
    for index in range(6):
        for failing in range(session.model.spec.num_layers):

            def broken(pools: Any, layer: int, step: Any, k: Any, v: Any) -> None:
                write(pools, layer, step, np.full_like(k, np.nan), v)
                if layer == failing:  # noqa: B023 (called inside the loop only)
                    raise MemoryError("no more")

            with monkeypatch.context() as patch:
                patch.setattr(backend, "append", broken)
                with pytest.raises(MemoryError):
                    session.append_media(chunk(index))
            session.cache.check_integrity()
        session.append_media(chunk(index))
    assert mass_bits(session) == mass_bits(undisturbed)
    assert answer(session) == answer(undisturbed)


@pytest.mark.parametrize("failing", range(4))
def test_a_migration_that_fails_half_way_loses_nothing(
    open_session: Callable[..., Session],
    chunk: Callable[..., MediaChunk],
    monkeypatch: pytest.MonkeyPatch,
    failing: int,
) -> None:
    """Eager moves form chains. A batch that scatters half of its rows harms no live one."""
    session, undisturbed = open_session(layout="eager"), open_session(layout="eager")
    backend, copy = session.model.backend, session.model.backend.migrate
    failures = []

    def broken(pools: Any, source: Any, destination: Any) -> None:
        calls.append(len(source))
        assert not session.cache.state.table.live[destination].any()
        if len(calls) - 1 == failing:
            half = len(source) // 2
            copy(pools, source[:half], destination[:half])
            failures.append(len(source))
            raise MemoryError("no more")
        copy(pools, source, destination)

    for index in range(12):
        undisturbed.append_media(chunk(index))
        calls: list[int] = []
        seen = session.cache.history.next_unit
        with monkeypatch.context() as patch:
            patch.setattr(backend, "migrate", broken)
            try:
                session.append_media(chunk(index))
            except MemoryError:
                assert session.cache.history.next_unit == seen + 1
        session.cache.check_integrity()
    assert failures or failing > 1
    assert answer(session) == answer(undisturbed)


@pytest.mark.parametrize("layout", ["paged", "contiguous"])
def test_layouts_for_comparison_are_refused(
    open_session: Callable[..., Session], model: Any, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setattr(model.backend, "new_pools", None)
    with pytest.raises(ConfigError, match=rf"{layout}.*take one of predictive, paper, native"):
        open_session(layout=layout)
