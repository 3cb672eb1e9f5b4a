"""Attention mass in a session: kept with its cells, and computed only where it is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omnitide import Session
from omnitide.errors import IntegrityError
from omnitide.media.chunk import MediaChunk
from omnitide.policies import POLICIES, make_policy

Chunk = Callable[..., MediaChunk]
Open = Callable[..., Session]

FREE = [name for name, policy in POLICIES.items() if not policy.needs_mass]


def follow(session: Session, chunk: Chunk, chunks: int = 6) -> None:
    for index in range(chunks):
        session.append_media(chunk(index))
    list(session.ask("What?"))


@pytest.mark.parametrize("policy", FREE)
def test_mass_is_never_computed_for_a_policy_without_need(
    policy: str, open_session: Open, chunk: Chunk, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise AssertionError("attention_mass was called")

    monkeypatch.setattr(model.backend, "attention_mass", refuse)
    session = open_session(policy=policy)
    follow(session, chunk)
    assert session.cache.state.mass is None
    assert session.stats().evictions > 0 or policy == "full"


def test_mass_is_computed_once_a_layer_and_pass(
    open_session: Open, chunk: Chunk, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: dict[str, list[Any]] = {"attention": [], "attention_mass": []}

    def counted(name: str) -> Callable[..., Any]:
        operation = getattr(model.backend, name)

        def call(q: Any, pools: Any, layer: int, step: Any, scale: float) -> Any:
            calls[name].append((layer, step.num_queries))
            return operation(q, pools, layer, step, scale)

        return call

    for name in calls:
        monkeypatch.setattr(model.backend, name, counted(name))
    follow(open_session(policy="h2o"), chunk)
    assert calls["attention_mass"] == calls["attention"]
    assert len(calls["attention"]) % model.spec.num_layers == 0
    assert len(calls["attention"]) > 10 * model.spec.num_layers


def test_mass_of_all_cells_is_what_the_queries_gave(open_session: Open, chunk: Chunk) -> None:
    """Each query gives 1 a head and layer; an eviction takes away what the lost cells held."""
    session = open_session(policy="h2o")
    spec = session.model.spec
    each = spec.num_heads * spec.num_layers
    held = float(len(session.cache.history) * each)
    evictions = 0
    for index in range(9):
        before = session.cache.state
        session.append_media(chunk(index))
        after = session.cache.state
        assert after.mass is not None
        assert before.mass is not None
        assert len(after.mass) == len(after.history)
        if after.evictions == evictions:
            held += 62 * each
            assert after.mass.sum() == pytest.approx(held, rel=1e-5)
            # Old cells gain and never lose.
            assert (after.mass[: len(before.mass)] >= before.mass).all()
        else:
            held, evictions = float(after.mass.sum()), after.evictions
    assert evictions > 1


def test_the_heaviest_of_the_old_stay(
    open_session: Open, chunk: Chunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `select` is given is the mass of these cells; the choice follows it."""
    session = open_session(policy="h2o")
    policy = session.cache.policy
    seen: list[tuple[Any, Any]] = []
    select = policy.select

    def noted(history: Any, config: Any, mass: Any = None) -> Any:
        keep = select(history, config, mass)
        seen.append((mass.copy(), keep))
        return keep

    monkeypatch.setattr(policy, "select", noted)
    while session.stats().evictions < 1:
        before = session.cache.state
        session.append_media(chunk(session.stats().units))
    ((mass, keep),) = seen
    kept = session.cache.state.mass
    assert kept is not None
    assert before.mass is not None
    assert len(mass) == len(before.mass) + 62
    assert np.array_equal(kept, mass[keep])
    prefix = session.cache.history.units[0].length
    room = session.retention.low_watermark - prefix
    old = np.arange(prefix, len(mass) - (room - room // 2))
    assert mass[old][keep[old]].min() > mass[old][~keep[old]].max()
    assert 0 < keep[old].sum() == room // 2


def test_a_policy_without_a_model_says_so(open_session: Open, chunk: Chunk) -> None:
    session = open_session(policy="full")
    follow(session, chunk)
    with pytest.raises(ValueError, match="h2o chooses by attention mass"):
        make_policy("h2o").select(session.cache.history, session.retention)


def test_mass_out_of_step_with_the_history_is_noticed(open_session: Open, chunk: Chunk) -> None:
    session = open_session(policy="h2o")
    session.append_media(chunk(0))
    state = session.cache.state
    assert state.mass is not None
    session.cache.check_integrity()
    session.cache.state = replace(state, mass=state.mass[1:])
    with pytest.raises(IntegrityError, match=r"\[cache\] attention mass of 105 cells, .* 106"):
        session.cache.check_integrity()
