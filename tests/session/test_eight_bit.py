"""Sessions over 8-bit keys and values: refused where a backend can't, else close to exact."""

from __future__ import annotations

import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide import Session, load
from omnitide.backends import describe_backends
from omnitide.backends.eight_bit import EightBitPools
from omnitide.cli import main
from omnitide.config import DuplexConfig, RetentionConfig
from omnitide.duplex import DuplexSession
from omnitide.errors import ConfigError
from omnitide.policies import POLICIES

HERE = [info.name for info in describe_backends() if info.available]
"""Backends of this machine; the parity tests say which are missing."""

TEXT = "A red ball rolls down the hill, and the dog runs after it. "


def _talk(model: Any, **options: Any) -> tuple[Session, list[int], Any]:
    """A session with some text and a reply, its tokens, and the first log-probabilities."""
    session = Session(model, max_tokens=8, largest_unit=512, **options)
    for _ in range(12):
        session.append_text(TEXT)
    responses = list(session.ask("What rolls?"))
    return session, [r.token for r in responses], responses[0].logprobs


@pytest.fixture(scope="module", params=HERE)
def model(request: pytest.FixtureRequest, tiny_checkpoint: Callable[..., Path]) -> Any:
    """A small model in float32 on each backend that packs."""
    return load(tiny_checkpoint(), backend=request.param, dtype="float32")


def test_half_the_memory_of_16_bits_and_little_error(model: Any) -> None:
    exact, _, want = _talk(model)
    packed, _, got = _talk(model, kv_bits=8)
    layers = model.spec.num_layers
    # In float32 a value takes 4 bytes, a turned key too; packed, one and its share of a scale,
    # beside the factors.
    factors = layers * model.spec.num_kv_heads * model.spec.head_dim * 4
    share = (packed.cache.pools.nbytes - factors) / exact.cache.pools.nbytes
    arrays = model.backend.pool_arrays / 2
    assert share == pytest.approx((1 + 4 / model.spec.head_dim) / 4 / arrays)
    error = np.abs(np.exp(got.astype(np.float64)) - np.exp(want.astype(np.float64))).sum() / 2
    assert 0 < error < 0.02


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_runs_over_packed_pools(policy: str, model: Any) -> None:
    retention = RetentionConfig(high_watermark=400, low_watermark=300, text_budget=64)
    session, tokens, _ = _talk(model, kv_bits=8, policy=policy, retention=retention)
    session.append_text(TEXT * 3)
    session.cache.check_integrity()
    assert (session.cache.state.evictions > 0) == POLICIES[policy].bounded
    assert len(tokens) >= 1


def test_a_backend_that_can_not_pack_refuses_before_anything_is_made(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(model.backend), "kv_bits", frozenset())
    monkeypatch.setattr(model.backend, "new_pools", lambda *_: pytest.fail("pools were made"))
    with pytest.raises(
        ConfigError, match=r"doesn't pack keys and values, got 8; leave out --kv-bits"
    ):
        Session(model, kv_bits=8)


@pytest.mark.parametrize("bits", [4, 16, 0, -8])
def test_other_bits_are_refused(bits: int, model: Any) -> None:
    with pytest.raises(ConfigError, match=f"packs keys and values in 8 bits, got {bits}"):
        Session(model, kv_bits=bits)


def test_costs_are_remembered_apart(model: Any) -> None:
    plain, packed = Session(model), Session(model, kv_bits=8)
    assert packed.costs.key == f"{plain.costs.key} kv8"


def test_the_command_line(
    tiny_checkpoint: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["generate", "--model", str(tiny_checkpoint()), "--prompt", "Hello", "--kv-bits"]
    assert main([*command, "8", "--max-tokens", "3", "--backend", "reference"]) == 0
    capsys.readouterr()
    assert main([*command, "3"]) == 2
    assert "packs keys and values in 8 bits, got 3" in capsys.readouterr().err
    assert main([*command, "3", "--dry-run"]) == 2
    assert "got 3" in capsys.readouterr().err


# -- duplex streams -------------------------------------------------------------------------------
SPEAKING = (273, 72, 73, 275)  # of every unit: <|speak|>, two words, the end of the chunk


@pytest.fixture(scope="module", params=HERE)
def speaker(request: pytest.FixtureRequest, minicpm_checkpoint: Callable[..., Path]) -> Any:
    """A small MiniCPM-o 4.5 in float32 on each backend that packs."""
    return load(minicpm_checkpoint(), backend=request.param, dtype="float32")


def _listen(
    speaker: Any, second: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[DuplexSession, list[Any]]:
    """A session over twelve seconds of sound with evictions and recalled words, and its logits."""
    session = DuplexSession(
        speaker,
        retention=RetentionConfig(120, 80),
        policy="fifo",
        duplex=DuplexConfig(force_listen=0, recall=6),
        largest_unit=40,
        **options,
    )
    seen: list[Any] = []

    def choose(logits: Any, *_: Any) -> int:
        seen.append(speaker.backend.to_numpy(logits).astype(np.float64))
        return SPEAKING[len(session.talk.said)]

    monkeypatch.setattr(speaker.duplex, "choose", choose)
    for index in range(12):
        session.append_media(second(index, picture=False))
        session.cache.check_integrity()
    return session, seen


def test_a_duplex_stream_over_packed_pools(
    speaker: Any, second: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefixes that get another end, units that grow and are closed: close to exact throughout."""
    exact, want = _listen(speaker, second, monkeypatch)
    packed, got = _listen(speaker, second, monkeypatch, kv_bits=8)
    assert isinstance(packed.cache.pools, EightBitPools)
    for session in (exact, packed):
        assert session.stats().evictions > 1
        assert session.cache.state.renewals > 1
    assert packed.talk == exact.talk
    assert (
        packed.cache.history.cells["token"].tolist() == exact.cache.history.cells["token"].tolist()
    )
    errors = [np.linalg.norm(g - w) / np.linalg.norm(w) for g, w in zip(got, want, strict=True)]
    assert len(errors) == 12 * len(SPEAKING)
    assert 0 < max(errors) < 0.03


def test_the_renewed_end_of_a_prefix_lies_in_the_pools_as_what_it_is(
    speaker: Any, second: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its values, unpacked by the formula, are those of a pass in float32 to within half a step."""
    rows = {}
    for bits in (None, 8):
        session, _ = _listen(speaker, second, monkeypatch, kv_bits=bits)
        prefix = session.cache.history.prefix
        slots = session.cache.history.cells["slot"][:prefix]
        page, row = np.divmod(slots, session.cache.pools.keys[0].shape[2])
        pools, host = session.cache.pools, speaker.backend.to_numpy
        values = host(pools.values[0])[page, :, row].astype(np.float64)
        if bits is not None:
            scales = host(pools.value_scales[0])[page, :, row].astype(np.float64)
            values = values * scales[..., None]
            rows["step"] = scales[..., None]
        rows[bits] = values
    # The first layer's values depend on the tokens alone.
    assert (np.abs(rows[8] - rows[None]) <= 0.51 * rows["step"]).all()


def test_the_command_line_of_a_duplex_stream(
    second: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with wave.open(str(tmp_path / "sound.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        samples = second(0, picture=False).samples
        file.writeframes((samples * 32767).astype("<i2").tobytes() * 3)
    command = ["generate", "--duplex", "--audio", str(tmp_path / "sound.wav"), "--kv-bits"]
    assert main([*command, "8", "--backend", "reference", "--json"]) == 0
    assert '"turns"' in capsys.readouterr().out
    assert main([*command, "3"]) == 2
    assert "packs keys and values in 8 bits, got 3" in capsys.readouterr().err
