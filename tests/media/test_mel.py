"""Log-mel frames against transformers' Whisper feature extractor, and the streaming contract."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank

from omnitide.errors import MediaError
from omnitide.models import mel
from omnitide.models.mel import mel_filters
from omnitide.models.qwen2_5_omni.mel import NUM_BANDS, MelStream

TOLERANCE = 2e-4
"""Theirs is computed in float32."""


log_mel = partial(mel.log_mel, num_bands=NUM_BANDS)


def _sound(count: int, seed: int = 0, loud: float = 0.3) -> NDArray[np.float32]:
    """A sweep with noise, loudest in its first 50 ms."""
    rng = np.random.default_rng(seed)
    seconds = np.arange(count) / 16_000
    sweep = np.sin(2 * np.pi * (200 + 300 * seconds) * seconds)
    sound = loud * sweep + 0.01 * rng.standard_normal(count)
    sound[:800] *= 3
    return sound.astype(np.float32)


def _theirs(samples: NDArray[np.float32], seconds: int, **options: object) -> NDArray[np.float32]:
    extractor = WhisperFeatureExtractor(feature_size=128, chunk_length=seconds)
    out = extractor(samples, sampling_rate=16_000, return_tensors="np", **options)
    return out["input_features"][0].T


def _push_all(
    samples: NDArray[np.float32], sizes: Sequence[int]
) -> tuple[list[NDArray[np.float32]], MelStream]:
    stream, pieces, at = MelStream(), [], 0
    for size in sizes:
        frames, stream = stream.push(samples[at : at + size])
        pieces.append(frames)
        at += size
    assert at == len(samples)
    return pieces, stream


def test_filters_equal_transformers() -> None:
    expected = mel_filter_bank(
        num_frequency_bins=201,
        num_mel_filters=128,
        min_frequency=0.0,
        max_frequency=8000.0,
        sampling_rate=16_000,
        norm="slaney",
        mel_scale="slaney",
    )
    assert_allclose(mel_filters(128), expected, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("count", [1, 2, 159, 160, 161, 200, 201, 400, 16_000, 20_003, 32_000])
def test_zeros_to_the_right_equal_the_padded_extractor(count: int) -> None:
    samples = _sound(count)
    frames = log_mel(samples)
    num_frames = -(-count // 160)
    assert frames.shape == (num_frames, 128)
    assert frames.dtype == np.float32
    # 4 s in place of the processor's 300 s: what lies beyond the sound is zeros in both.
    expected = _theirs(samples, seconds=4, padding="max_length")
    assert_allclose(frames, expected[:num_frames], atol=TOLERANCE)


def test_zeros_to_the_right_equal_the_extractor_at_300_seconds() -> None:
    samples = _sound(24_321)
    expected = _theirs(samples, seconds=300, padding="max_length", return_attention_mask=True)
    assert_allclose(log_mel(samples), expected[:153], atol=TOLERANCE)


@pytest.mark.parametrize("count", [16_000, 16_010, 16_159])
def test_a_loud_end_counts_for_the_maximum_beyond_the_frames_handed_out(count: int) -> None:
    """Of 16,000 samples the last one is loudest in the frame after the last that is given."""
    samples = (1e-3 * np.random.default_rng(3).standard_normal(count)).astype(np.float32)
    samples[-10:] = 1.0
    frames = log_mel(samples)
    expected = _theirs(samples, seconds=4, padding="max_length")
    assert_allclose(frames, expected[: len(frames)], atol=TOLERANCE)


@pytest.mark.parametrize("count", [201, 1600, 16_000, 20_003])
def test_mirrored_edge_equals_the_unpadded_extractor(count: int) -> None:
    samples = _sound(count)
    frames = log_mel(samples, right_edge="reflect")
    expected = _theirs(samples, seconds=30, padding="do_not_pad")
    assert frames.shape == (count // 160, 128)
    assert_allclose(frames, expected, atol=TOLERANCE)


def test_mirroring_a_clip_that_is_too_short_is_refused() -> None:
    with pytest.raises(MediaError, match="more than 200 samples, got 200"):
        log_mel(_sound(200), right_edge="reflect")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_float_types(dtype: type[np.floating]) -> None:
    samples = np.round(_sound(4000) * 512) / 512  # exact in all three
    assert_array_equal(log_mel(samples.astype(dtype)), log_mel(samples.astype(np.float64)))


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (np.zeros(500, np.int16), "divide 16-bit samples by 32768"),
        (np.zeros((2, 500), np.float32), "shape"),
        (np.full(500, np.nan, np.float32), "finite"),
        (np.array([0.0, np.inf]), "finite"),
    ],
)
def test_bad_samples_are_refused(samples: NDArray[np.float32], words: str) -> None:
    with pytest.raises(MediaError, match=words):
        log_mel(samples)
    with pytest.raises(MediaError, match=words):
        MelStream().push(samples)


def test_silence_gives_the_fixed_floor() -> None:
    silence = np.zeros(32_000, np.float32)
    assert_array_equal(log_mel(silence), np.full((200, 128), -1.5, np.float32))
    assert_array_equal(MelStream().push(silence)[0], np.full((200, 128), -1.5, np.float32))


def test_no_samples_give_no_frames() -> None:
    nothing = np.zeros(0, np.float32)
    assert log_mel(nothing).shape == (0, 128)
    _, stream = MelStream().push(_sound(500))
    frames, same = stream.push(nothing)
    assert frames.shape == (0, 128)
    assert same is stream


@pytest.mark.parametrize(("count", "frames"), [(32_000, 200), (16_000, 100), (1, 1), (161, 2)])
def test_frames_of_a_first_push(count: int, frames: int) -> None:
    assert MelStream().push(_sound(count))[0].shape == (frames, 128)


PUSHES = {
    "2 s": [32_000] * 3,
    "1 s": [16_000] * 6,
    "40 ms": [640] * 150,
    "10 ms": [160] * 600,
    "off the grid": [5000, 333, 1, 7, 50, 159, 20_001, 199, 201, 400] + [1] * 30 + [69_619],
    "one by one at first": [1] * 400 + [95_600],
}


@pytest.mark.parametrize("sizes", PUSHES.values(), ids=PUSHES.keys())
def test_streamed_frames_equal_the_clip_but_at_the_edges(sizes: list[int]) -> None:
    """Exact where 200 true samples lie on both sides; at most two other frames a push."""
    samples = _sound(96_000)
    offline = log_mel(samples)
    pieces, stream = _push_all(samples, sizes)
    streamed = np.concatenate(pieces)
    assert streamed.shape == offline.shape
    # All frames of the loud start must have been settled before the maximum is the same.
    ends = np.cumsum(sizes)
    loud_known = ends[np.searchsorted(ends, 1600)]
    exact = 0
    for piece, begin, end in zip(pieces, ends - sizes, ends, strict=True):
        first = -(-int(begin) // 160)
        centres = (first + np.arange(len(piece))) * 160
        settled = (centres + 200 < end) & (end >= loud_known)
        assert np.count_nonzero(centres + 200 >= end) <= 2
        assert_allclose(
            piece[settled], offline[first : first + len(piece)][settled], atol=1e-6, rtol=0
        )
        exact += np.count_nonzero(settled)
    if min(sizes) >= 16_000:
        assert exact == len(offline) - len(sizes)
    assert stream.position == 96_000
    assert 4 * offline.max() - 4 == pytest.approx(stream.peak, abs=1e-5)


@pytest.mark.parametrize("count", [1600, 16_000, 32_000])
def test_a_first_push_equals_the_unpadded_extractor(count: int) -> None:
    """Edge frame included: both mirror the last sample."""
    samples = _sound(count)
    samples[-300:] += 0.3
    frames, _ = MelStream().push(samples)
    assert_allclose(frames, _theirs(samples, 30, padding="do_not_pad"), atol=TOLERANCE)


def test_the_edge_frame_is_close_and_differs() -> None:
    """The mirrored edge is an estimate: if it were exact, the contract could be stronger."""
    samples = _sound(64_000)
    offline, (first, _) = log_mel(samples), _push_all(samples, [32_000, 32_000])[0]
    difference = np.abs(first[199] - offline[199]).max()
    assert 1e-4 < difference < 0.6


def test_the_maximum_is_the_greatest_so_far() -> None:
    quiet, loud = _sound(32_000, loud=0.001) * 0.01, _sound(32_000)
    stream = MelStream()
    frames, stream = stream.push(quiet)
    low_floor = frames.min()
    frames, stream = stream.push(loud)
    high_floor = frames.min()
    frames, stream = stream.push(quiet)
    assert low_floor < high_floor
    # After the loud part quiet frames are cut where those of the whole clip are.
    assert_allclose(frames.min(), log_mel(np.concatenate([quiet, loud, quiet])).min(), atol=1e-6)


def test_an_edge_that_is_loud_only_by_mirroring_does_not_stay() -> None:
    """The peak is made of true frames, so it equals the clip's, however the pushes fall."""
    rng = np.random.default_rng(5)
    samples = (0.01 * rng.standard_normal(48_000)).astype(np.float32)
    samples[15_900:16_000] += np.linspace(0, 0.8, 100, dtype=np.float32)
    samples[16_000:16_100] -= np.linspace(0.8, 0, 100, dtype=np.float32)
    _, cut = _push_all(samples, [16_000, 32_000])
    _, whole = _push_all(samples, [48_000])
    assert cut.peak == pytest.approx(whole.peak, abs=1e-9)


def test_push_changes_nothing() -> None:
    samples = _sound(6400)
    _, stream = MelStream().push(samples)
    first, _ = stream.push(samples)
    samples[:] = 0.5  # the stream must not look at the caller's memory
    second, _ = stream.push(_sound(6400))
    assert_array_equal(first, second)
    assert len(stream.tail) == 400
    assert stream.tail.base is None  # the rest of the samples is let go
    with pytest.raises(ValueError, match="read-only"):
        stream.tail[0] = 1.0
