"""Log-mel frames of clips and streams: golden data, transformers, and a slow second transform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor
from transformers.audio_utils import mel_filter_bank

from omnitide.errors import MediaError
from omnitide.models.minicpm_o.mel import MelPiece, MelStream, PlainMelStream, clip_mels

TOLERANCE = 2e-4
"""The manifest's: the published transform works in float32."""

SECONDS = ["1.0", "2.5", "7.0"]
STEP = 10
RATE = 16_000
CUTS = {"duplex": ("b", 2), "half-duplex": ("c", 0)}


def _float(samples: NDArray[np.int16]) -> NDArray[np.float32]:
    return samples.astype(np.float32) / 32768


def _sound(count: int, seed: int = 0) -> NDArray[np.float32]:
    """Noise whose loudness wanders over five powers of ten."""
    random = np.random.default_rng(seed)
    loudness = 10 ** (2.5 * np.sin(np.arange(count) / 21_000 + seed) - 3)
    return (loudness * random.standard_normal(count)).astype(np.float32)


def _raw(buffer: NDArray[Any]) -> NDArray[np.float64]:
    """log10 mel of a whole buffer, mirrored at both ends, without the last frame."""
    filters = mel_filter_bank(201, 80, 0.0, 8000.0, RATE, "slaney", "slaney")
    window = np.hanning(401)[:-1]
    padded = np.pad(buffer.astype(np.float64), 200, mode="reflect")
    frames = [padded[at : at + 400] * window for at in range(0, len(padded) - 399, 160)][:-1]
    return np.log10(np.maximum(np.abs(np.fft.rfft(frames)) ** 2 @ filters, 1e-10))


def _push_all(
    stream: MelStream, samples: NDArray[Any], sizes: Sequence[int], ends: bool = False
) -> tuple[list[list[MelPiece]], list[MelStream]]:
    """Pieces of each push, and the stream after each."""
    given, streams, at = [], [], 0
    for index, size in enumerate(sizes):
        pieces, stream = stream.push(samples[at : at + size], last=ends and index == len(sizes) - 1)
        given.append(pieces)
        streams.append(stream)
        at += size
    return given, streams


def _own(pieces: Sequence[MelPiece]) -> NDArray[np.float32]:
    """Frames without the neighbours."""
    return np.concatenate([p.frames[p.before : len(p.frames) - p.after] for p in pieces])


# -- clips --------------------------------------------------------------------------------------
@pytest.mark.parametrize("seconds", SECONDS)
def test_clips_equal_the_golden_ones(seconds: str, golden: Any) -> None:
    case = golden(f"05_audio_{seconds}s_wave_mel")
    (mel,) = clip_mels(_float(case["wav_i16"]))
    assert mel.dtype == np.float32
    assert_allclose(mel.T, case["mel"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["0", "1", "2", "_silence"])
def test_odd_clips_equal_the_golden_ones(name: str, golden: Any) -> None:
    case = golden("05_mel_odd")
    (mel,) = clip_mels(_float(case[f"wav{name}_i16"]))
    assert_allclose(mel.T, case[f"mel{name}"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("index", [0, 1])
def test_clips_of_a_batch_equal_the_golden_ones(index: int, golden: Any) -> None:
    case = golden("08_audio_batch")
    (mel,) = clip_mels(_float(case[f"wav{index}_i16"]))
    assert_allclose(mel.T, case[f"mel{index}"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "count", [1, 159, 160, 161, 16_001, 479_600, 479_799, 479_800, 479_801, 479_999, 480_000]
)
def test_clips_equal_transformers(count: int) -> None:
    """Also where the zeros behind the clip are so few that the mirrored end is seen."""
    samples = _sound(count)
    samples[-60:] = 0.9
    extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=30)
    out = extractor(samples, sampling_rate=RATE, return_tensors="np", padding="max_length")
    (mel,) = clip_mels(samples)
    assert_allclose(mel.T, out["input_features"][0][:, : -(-count // 160)], atol=TOLERANCE)


def test_long_sound_is_cut_into_clips_of_30_s() -> None:
    samples = _sound(1_000_000)
    mels = clip_mels(samples)
    assert [len(mel) for mel in mels] == [3000, 3000, 250]
    assert_array_equal(mels[1], clip_mels(samples[480_000:960_000])[0])
    assert clip_mels(samples[:0]) == []


# -- streams ------------------------------------------------------------------------------------
@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("mode", CUTS)
def test_streams_equal_the_golden_ones(mode: str, seconds: str, golden: Any) -> None:
    wave = _float(golden(f"05_audio_{seconds}s_wave_mel")["wav_i16"])
    case = golden(f"06_audio_{seconds}s_stream")
    key, neighbours = CUTS[mode]
    if mode == "duplex":
        wave = wave[: len(wave) // RATE * RATE]
    sizes = [min(RATE, len(wave) - at) for at in range(0, len(wave), RATE)]
    given, streams = _push_all(MelStream(STEP, neighbours), wave, sizes, mode != "duplex")
    pieces = [piece for (piece,) in given]
    assert [len(piece.frames) for piece in pieces] == case[f"{key}_mel_frames"].tolist()
    remembered = [[len(stream.buffer), stream.start] for stream in streams]
    assert remembered == case[f"{key}_samples"][:, 1:].tolist()
    mel = np.concatenate([piece.frames for piece in pieces]).T
    assert_allclose(mel, case[f"{key}_mel"], rtol=0, atol=TOLERANCE)
    assert pieces[0].before == 0
    assert {(p.before, p.after) for p in pieces[1:]} <= {(neighbours, neighbours)}
    if mode == "duplex":
        assert len(streams[-1].waiting) == case["b_left_over"]


def test_a_long_stream_equals_the_golden_one(golden: Any, long_wave: NDArray[np.float32]) -> None:
    case = golden("07_audio_long")
    given, streams = _push_all(MelStream(STEP), long_wave, [RATE] * 33)
    frames = [piece.frames for (piece,) in given]
    assert [len(mel) for mel in frames] == case["mel_frames"].tolist()
    remembered = [[len(stream.buffer), stream.start] for stream in streams]
    assert remembered == case["samples"][:, 1:].tolist()
    ends = np.stack([mel[[0, -1]] for mel in frames])
    assert_allclose(ends, case["mel_first_last"], rtol=0, atol=TOLERANCE)
    means = [mel.mean(dtype=np.float64) for mel in frames]
    assert_allclose(means, case["mel_mean"], rtol=0, atol=1e-4)


EDGE = 160_000 - 560
BURSTS = {
    "none": (),
    "before what is forgotten": (EDGE - 70,),
    "behind what is forgotten": (EDGE + 70,),
    "at the end of a second": (12 * RATE - 90, 35 * RATE - 90),
}


@pytest.mark.parametrize("bursts", BURSTS.values(), ids=BURSTS.keys())
@pytest.mark.parametrize("seed", [0, 1])
def test_a_stream_equals_the_whole_transform_of_what_is_remembered(
    seed: int, bursts: tuple[int, ...]
) -> None:
    """Over three times that the oldest 10 s are forgotten, and the loudest moment with them.

    A burst beside an edge of what is remembered makes the frames that are mirrored there count.
    """
    seconds = 55
    samples = _sound(seconds * RATE, seed)
    for burst in bursts:
        samples[burst] = 100.0
    whole = np.concatenate([np.zeros(560, np.float32), samples])
    given, _ = _push_all(MelStream(STEP), samples, [RATE] * seconds)
    start, stop = 0, 0
    for second, (piece,) in enumerate(given):
        stop = 16_480 + second * RATE
        if stop - start >= 480_000:
            start += 160_000
        raw = _raw(whole[start:stop])
        floor = -10.0 if stop - start < 80_000 else raw.max() - 8
        first = max(0, 100 * second - 2) - start // 160
        want = (np.maximum(raw[first : first + len(piece.frames)], floor) + 4) / 4
        assert_allclose(piece.frames, want, rtol=0, atol=1e-5)
    assert start == 480_000


PUSHES = {
    "odd": [5000, 333, 1, 7, 159, 20_001, 199, 201, 400, 16_000, 1699, 8000, 12_000],
    "100 ms": [1600] * 40,
    "10 ms": [160] * 400,
    "one by one, then the rest": [1] * 300 + [63_700],
}


@pytest.mark.parametrize("sizes", PUSHES.values(), ids=PUSHES.keys())
@pytest.mark.parametrize("neighbours", [0, 2])
def test_frames_do_not_depend_on_the_pushes(neighbours: int, sizes: list[int]) -> None:
    """While the floor is fixed; and all that has its neighbours is given out, in whole steps."""
    samples = _sound(64_000, seed=5)
    whole = np.concatenate([np.zeros(560, np.float32), samples])
    want = (_raw(whole) + 4) / 4
    given, _ = _push_all(MelStream(STEP, neighbours), samples, sizes)
    pushed, ready = 560, 0
    for pieces, size in zip(given, sizes, strict=True):
        pushed += size
        for piece in pieces:
            count = len(piece.frames) - piece.before - piece.after
            assert count % STEP == 0
            assert piece.before == min(ready, neighbours)
            assert piece.after == neighbours
            around = want[ready - piece.before : ready + count + neighbours]
            assert_allclose(piece.frames, around, rtol=0, atol=1e-5)
            ready += count
        settled = (pushed - 200) // 160 + 1 - neighbours
        assert ready == settled // STEP * STEP
    assert ready == 400


def test_seconds_may_be_pushed_at_once() -> None:
    samples = _sound(12 * RATE, seed=3)
    (at_once,), (end,) = _push_all(MelStream(STEP), samples, [12 * RATE])
    one_by_one, streams = _push_all(MelStream(STEP), samples, [RATE] * 12)
    for piece, (single,) in zip(at_once, one_by_one, strict=True):
        assert_array_equal(piece.frames, single.frames)
    assert_array_equal(end.buffer, streams[-1].buffer)


def test_the_end_is_given_out_when_it_is_said() -> None:
    samples = _sound(25_000)
    given, _ = _push_all(MelStream(STEP), samples, [RATE, 9000], ends=True)
    frames = _own([piece for (piece,) in given])
    assert_allclose(frames, (_raw(np.concatenate([np.zeros(560), samples])) + 4) / 4, atol=1e-5)
    assert given[-1][0].after == 0
    _, stream = MelStream(STEP).push(samples[:RATE])
    ((piece,), _) = stream.push(samples[:0], last=True)
    assert len(piece.frames) - piece.before == 3


@pytest.mark.parametrize("neighbours", [0, 2])
def test_sound_shorter_than_a_token_waits(neighbours: int) -> None:
    pieces, stream = MelStream(STEP, neighbours).push(_sound(100))
    assert pieces == []
    assert len(stream.buffer) + len(stream.waiting) == 660
    assert stream.push(np.zeros(0, np.float32))[0] == []


def test_silence_gives_the_fixed_floor() -> None:
    pieces, _ = MelStream(STEP).push(np.zeros(RATE * 8, np.float32))
    assert_array_equal(_own(pieces), np.full((800, 80), -1.5, np.float32))


def test_push_changes_nothing() -> None:
    samples = _sound(RATE * 31)
    _, stream = MelStream(STEP).push(samples[: 30 * RATE])
    (first,), _ = stream.push(samples[30 * RATE :])
    samples[: 30 * RATE] = 0.5  # the stream must not look at the caller's memory
    (second,), _ = stream.push(samples[30 * RATE :])
    assert_array_equal(first.frames, second.frames)
    for array in (stream.buffer, stream.waiting, stream.peaks):
        assert array.base is None  # what is forgotten is let go
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (np.zeros(500, np.int16), "divide 16-bit samples by 32768"),
        (np.zeros((2, 500), np.float32), "shape"),
        (np.full(500, np.nan, np.float32), "finite"),
    ],
)
@pytest.mark.parametrize("stream", [MelStream(STEP), PlainMelStream()], ids=["4.5", "2.6"])
def test_bad_samples_are_refused(
    stream: MelStream | PlainMelStream, samples: NDArray[Any], words: str
) -> None:
    with pytest.raises(MediaError, match=words):
        clip_mels(samples)
    with pytest.raises(MediaError, match=words):
        stream.push(samples)


def test_seconds_of_a_plain_stream_are_clips_of_their_own() -> None:
    samples = _sound(RATE * 2 + 777)
    pieces, stream = PlainMelStream().push(samples)
    assert stream == PlainMelStream()
    assert [(p.before, p.after) for p in pieces] == [(0, 0)] * 3
    for piece, at in zip(pieces, (0, RATE, 2 * RATE), strict=True):
        assert_array_equal(piece.frames, clip_mels(samples[at : at + RATE])[0])
    assert stream.push(samples[:0])[0] == []
