"""The audio tower on whole clips: golden data, and transformers' encoder on random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from omnitide.backend import Backend
from omnitide.errors import MediaError
from omnitide.models.minicpm_o.audio import AudioTower, Memory, num_audio_tokens

TOLERANCE = 2e-5
"""Below the manifest's 5e-5, so that a wrong epsilon of the norms is seen."""

SECONDS = ["1.0", "2.5", "7.0"]


@pytest.fixture
def tower(make_tower: Callable[..., AudioTower], any_backend: Backend) -> AudioTower:
    """The golden tower on every backend."""
    return make_tower(any_backend)


def _run(tower: AudioTower, call: Callable[[], Any]) -> NDArray[Any]:
    """A result on the host."""
    backend = tower.backend
    return backend.run(lambda: backend.to_numpy(call()))


def _mel(frames: int) -> NDArray[np.float32]:
    return np.random.default_rng(frames).standard_normal((frames, 80)).astype(np.float32)


def _ends(rows: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([rows[:4], rows[-4:]])


@pytest.mark.parametrize("seconds", SECONDS)
def test_tokens_equal_the_golden_ones(seconds: str, tower: AudioTower, golden: Any) -> None:
    mel = golden(f"05_audio_{seconds}s_wave_mel")["mel"].T
    got = _run(tower, lambda: tower.encode(mel))
    want = golden(f"05_audio_{seconds}s_encoder")["tokens"]
    assert_allclose(got, want, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("seconds", SECONDS)
def test_sound_becomes_the_golden_tokens(seconds: str, tower: AudioTower, golden: Any) -> None:
    samples = golden(f"05_audio_{seconds}s_wave_mel")["wav_i16"].astype(np.float32) / 32768
    got = _run(tower, lambda: tower.encode_sound(samples))
    want = golden(f"05_audio_{seconds}s_encoder")["tokens"]
    assert_allclose(got, want, rtol=0, atol=5e-5)


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize(
    ("key", "layers"), [("encoder_in_ends", 0), ("layer0_ends", 1), ("layer1_ends", 2)]
)
def test_layers_equal_the_golden_ones(
    key: str,
    layers: int,
    seconds: str,
    make_tower: Callable[..., AudioTower],
    any_backend: Backend,
    golden: Any,
) -> None:
    tower = make_tower(any_backend, num_layers=layers)
    mel = golden(f"05_audio_{seconds}s_wave_mel")["mel"].T

    def states() -> Any:
        frames = tower.convolve(mel)
        count = frames.shape[0]
        chunks = [50] * (count // 50) + [count % 50] * (count % 50 > 0)
        return tower.blocks(frames, chunks, Memory())[0]

    want = golden(f"05_audio_{seconds}s_encoder")[key]
    assert_allclose(_ends(_run(tower, states)), want, rtol=0, atol=5e-5)


@pytest.mark.parametrize("key", ["encoder_out", "projected"])
def test_one_chunk_equals_the_golden_one(key: str, tower: AudioTower, golden: Any) -> None:
    mel = golden("05_audio_1.0s_wave_mel")["mel"].T

    def call() -> Any:
        states, _ = tower.blocks(tower.convolve(mel), [50], Memory())
        return tower.norm(tower.backend, states) if key == "encoder_out" else tower.project(states)

    want = golden("05_audio_1.0s_encoder")[key]
    assert_allclose(_run(tower, call), want, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("seconds", SECONDS)
def test_one_chunk_of_everything_is_full_attention(
    seconds: str, make_tower: Callable[..., AudioTower], any_backend: Backend, golden: Any
) -> None:
    tower = make_tower(any_backend, chunk_frames=1500)
    mel = golden(f"05_audio_{seconds}s_wave_mel")["mel"].T
    want = golden(f"05_audio_{seconds}s_encoder")["tokens_full_attention"]
    assert_allclose(_run(tower, lambda: tower.encode(mel)), want, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("how", ["in_batch", "alone"])
def test_a_batch_equals_the_golden_one(
    how: str, index: int, tower: AudioTower, golden: Any
) -> None:
    case = golden("08_audio_batch")
    mels = [case["mel0"].T, case["mel1"].T]
    got = _run(
        tower,
        lambda: tower.encode_batch(mels if how == "in_batch" else [mels[index]])[
            index if how == "in_batch" else 0
        ],
    )
    assert_allclose(got, case[f"tokens{index}_{how}"], rtol=0, atol=TOLERANCE)


def test_pooling_by_two_equals_the_golden_one(
    make_tower: Callable[..., AudioTower], any_backend: Backend, golden: Any
) -> None:
    tower = make_tower(any_backend, pool=2)
    mel = golden("05_audio_2.5s_wave_mel")["mel"].T
    want = golden("09_audio_pool2")["tokens"]
    assert_allclose(_run(tower, lambda: tower.encode(mel)), want, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("frames", [1, 2, 9, 10, 11, 19, 20, 99, 100, 101, 109, 110, 301])
@pytest.mark.parametrize("pool", [2, 5])
def test_number_of_tokens(
    pool: int, frames: int, make_tower: Callable[..., AudioTower], reference: Backend
) -> None:
    """Against the published formulas."""
    halved = (frames - 1) // 2 + 1
    want = (halved - pool) // pool + 1
    assert num_audio_tokens(frames, pool) == want
    tokens = make_tower(reference, pool=pool).encode(_mel(frames))
    assert (0 if tokens is None else len(tokens)) == want


def test_sound_that_is_too_short_gives_nothing(tower: AudioTower) -> None:
    encode = tower.backend.run
    for count in (0, 1, 159, 1280):
        assert encode(tower.encode_sound, np.zeros(count, np.float32)) is None
    assert encode(tower.encode_batch, []) == []


def test_sound_beyond_30_s_is_encoded_clip_by_clip(
    make_tower: Callable[..., AudioTower], reference: Backend, golden: Any
) -> None:
    clip = golden("05_audio_7.0s_wave_mel")["wav_i16"].astype(np.float32) / 32768
    samples = np.tile(clip, 5)  # 35 s: the second clip of 5 s is filled up to 30
    tower = make_tower(reference)
    got = tower.encode_sound(samples)
    assert got.shape == (350, 256)
    assert_allclose(got[:300], tower.encode_sound(samples[:480_000]), rtol=0, atol=TOLERANCE)


def test_a_clip_longer_than_the_positions_is_refused(
    make_tower: Callable[..., AudioTower], reference: Backend
) -> None:
    tower = make_tower(reference)
    with pytest.raises(MediaError, match=r"at most 1500 frames.*got 1501; cut it"):
        tower.encode(np.zeros((3002, 80), np.float32))


@pytest.mark.parametrize("positions", [50, 73, 100, 160])
def test_full_attention_equals_transformers(
    positions: int,
    make_tower: Callable[..., AudioTower],
    any_backend: Backend,
    whisper_oracle: Any,
    assert_close: Any,
) -> None:
    mel = _mel(2 * positions)
    want = whisper_oracle.states(whisper_oracle.convolved(mel), np.ones((positions, positions)))
    tower = make_tower(any_backend)

    def call() -> Any:
        states, _ = tower.blocks(tower.convolve(mel), [positions], Memory())
        return tower.norm(tower.backend, states)

    assert_close(_run(tower, call), want)


@pytest.mark.parametrize("lengths", [(10, 300), (102, 20, 230), (301, 300, 299), (100, 100), (60,)])
def test_a_batch_equals_transformers_with_the_published_mask(
    lengths: tuple[int, ...], tower: AudioTower, whisper_oracle: Any, assert_close: Any
) -> None:
    """Padded with zeros; what is hidden of the padding is found by the length before halving."""
    mels = [_mel(length) for length in lengths]
    got = tower.backend.run(
        lambda: [tower.backend.to_numpy(part) for part in tower.encode_batch(mels)]
    )
    for mel, tokens in zip(mels, got, strict=True):
        padded = np.zeros((max(lengths), 80), np.float32)
        padded[: len(mel)] = mel
        frames = whisper_oracle.convolved(padded)
        at = np.arange(len(frames))
        sees = (at[None] // 50 <= at[:, None] // 50) & (at[None] < len(mel))
        states = whisper_oracle.states(frames, sees)
        want = whisper_oracle.tokens(states, 5)[: num_audio_tokens(len(mel), 5)]
        assert_close(tokens, want)
