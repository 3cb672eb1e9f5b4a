"""A duplex session decides, speaks, forgets and recalls as the published code does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide import RetentionConfig, SamplingConfig
from omnitide.backend import Backend
from omnitide.config import DuplexConfig
from omnitide.duplex import DuplexSession
from omnitide.media.chunk import MediaChunk
from omnitide.sampling import Sampler

RATE = 16_000
FILLER = -9


@pytest.fixture(scope="session")
def voice(golden: Any) -> NDArray[np.float32]:
    return golden("11_llm_duplex")["ref_wav_i16"].astype(np.float32) / 32768


@pytest.fixture(scope="session")
def hear(golden: Any) -> Callable[..., MediaChunk]:
    """Second `index` of the longest clip, with the named pictures: `hear(index, *names)`."""
    clip = golden("05_audio_7.0s_wave_mel")["wav_i16"].astype(np.float32) / 32768

    def make(index: int, *pictures: str, sound: bool = True) -> MediaChunk:
        frames = tuple(golden(f"02_image_{name}")["rgb"] for name in pictures)
        samples = clip[RATE * index : RATE * (index + 1)] if sound else None
        return MediaChunk(index, index + 1.0, frames, (float(index),) * len(frames), samples)

    return make


@pytest.fixture
def open_duplex(
    golden_model: Callable[..., Any], voice: NDArray[np.float32]
) -> Callable[..., DuplexSession]:
    """A session that records the logits of each decision: `open_duplex(backend, **options)`."""

    def open_(backend: Backend, media: dict[str, Any] | None = None, **options: Any) -> Any:
        model = golden_model(backend, **(media or {}))
        session = DuplexSession(model, **({"policy": "full", "voice": voice} | options))
        session.seen = []
        step = session._step

        def record(logits: Any) -> Any:
            session.seen.append(backend.to_numpy(logits))
            return step(logits)

        session._step = record
        return session

    return open_


def decisions(session: Any, said: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Of all recorded logits those of the first step of each unit."""
    firsts = np.cumsum([0, *(len(tokens) for tokens in said[:-1])])
    return np.stack(session.seen)[firsts]


def fed(update: Any) -> list[int]:
    """What a unit was fed behind its sound."""
    return [*update.said.tokens, 256]


def rows(table: NDArray[np.int32]) -> list[list[int]]:
    return [[int(i) for i in row if i != FILLER] for row in table]


def test_greedy_stream_is_the_published_one(
    open_duplex: Any, hear: Any, golden: Any, any_backend: Backend
) -> None:
    want = golden("16_duplex_greedy")
    session = open_duplex(any_backend, duplex=DuplexConfig(force_listen=1))
    updates = [session.append_media(hear(i, *(["tiny"] if i == 2 else []))) for i in range(6)]
    assert [fed(update) for update in updates] == rows(want["fed_after_audio"])
    said = [update.said.tokens for update in updates]
    assert np.abs(decisions(session, said) - want["decision_logits"]).max() < 1e-4
    assert [update.said.speaks for update in updates] == [False, True, True, True, True, True]
    assert session.talk.units == 6


def test_window_of_whole_units_is_the_published_one(
    open_duplex: Any, hear: Any, golden: Any, reference: Backend
) -> None:
    want = golden("15_window_basic")
    high, low = map(int, want["limits"])
    session = open_duplex(
        reference,
        duplex=DuplexConfig(force_listen=100),
        policy="fifo",
        retention=RetentionConfig(high, low),
    )
    assert len(session.cache.history) == want["system_length"]
    for index, (_, whole, dropped, left) in enumerate(want["steps"]):
        before = len(session.cache.history.units)
        update = session.append_media(hear(index))
        assert update.tokens_kept + update.evicted == whole
        assert before + 1 - len(session.cache.history.units) == dropped
        assert update.tokens_kept == left
        session.cache.check_integrity()
    assert np.abs(np.stack(session.seen) - want["decision_logits"]).max() < 1e-4


def test_recalled_words_are_the_published_ones(
    open_duplex: Any, hear: Any, golden: Any, reference: Backend
) -> None:
    """The window of so many units is met here by watermarks between their lengths."""
    want = golden("17_window_context")
    _, recall, unit_tokens = map(int, want["limits"])
    session = open_duplex(
        reference,
        duplex=DuplexConfig(force_listen=0, unit_tokens=unit_tokens, recall=recall),
        policy="fifo",
        retention=RetentionConfig(76, 70),
    )
    updates = []
    for index, (at_decision, after, protected, previous, units) in enumerate(want["steps"]):
        update = session.append_media(hear(index))
        updates.append(update)
        history = session.cache.history
        assert update.tokens_kept + update.evicted - len(fed(update)) == at_decision or previous
        assert len(history) == after
        assert history.prefix == protected
        assert len(history.units) - 1 == units
        written = history.cells["token"][21 : 21 + previous].tolist()
        assert written == rows(want["previous_ids"])[index]
        session.cache.check_integrity()
    assert [fed(update) for update in updates] == rows(want["fed_after_audio"])
    said = [update.said.tokens for update in updates]
    assert np.abs(decisions(session, said) - want["decision_logits"]).max() < 1e-4
    cells = session.cache.history.cells
    pool = reference.to_numpy(session.cache.pools.keys[-1])  # [page][kv_head][row][head_dim]
    keys = pool.transpose(0, 2, 1, 3).reshape(-1, pool.shape[1], pool.shape[3])[cells["slot"]]
    turned = reference.rotate(keys, *session.model.spec.rotary.tables(cells["position"]))
    assert np.abs(turned.transpose(1, 0, 2) - want["final_keys_layer_last"]).max() < 5e-5


@pytest.fixture(scope="session")
def rules(golden_model: Any, reference: Backend) -> Any:
    return golden_model(reference).duplex


@pytest.mark.parametrize("row", range(48))
def test_decode_rule(rules: Any, golden: Any, row: int) -> None:
    want = golden("18_decode_rule")
    sampler = Sampler(SamplingConfig())
    chosen = rules.choose(want["logits"][row], want["history"][row].tolist(), sampler)
    assert chosen == want["choice"][row]


def test_forbidden_tokens_are_the_published_ones(rules: Any, golden: Any) -> None:
    for name in ("16_duplex_greedy", "18_decode_rule"):
        assert sorted(rules._forbidden) == sorted(golden(name)["forbidden_ids"])
    assert golden("17_window_context")["marker_ids"].tolist() == rules._recall_marker
    # The placeholder's id is one of an ordinary word in the small vocabulary.
    left_out = set(range(320)) - set(rules.worth_recalling([0, *range(320)])) - {104}
    assert sorted(left_out) == golden("17_window_context")["filtered_ids"].tolist()
