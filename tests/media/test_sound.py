"""Where samples lie on the clock when time stamps jitter, leap and overlap."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np
import pytest
from av.audio.frame import AudioFrame
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from omnitide.media.clip import ClipSound
from omnitide.media.feed import Feed
from omnitide.media.reader import open_media
from omnitide.media.sound import SoundTrack

MOST = 1_000_000


class FakeFeed:
    """Frames of constant level with time stamps at will; None stands for "silent for now"."""

    def __init__(self, *frames: tuple[float, float, float] | None, rate: int = 16_000) -> None:
        self._frames = deque(frames)
        self._rate = rate

    @property
    def ended(self) -> bool:
        return not self._frames

    def read(self) -> tuple[float, AudioFrame] | None:
        item = self._frames.popleft() if self._frames else None
        if item is None:
            return None
        second, length, level = item
        samples = np.full((1, round(length * self._rate)), level, np.float32)
        frame = av.AudioFrame.from_ndarray(samples, format="flt", layout="mono")
        frame.sample_rate, frame.time_base = self._rate, Fraction(1, self._rate)
        return second, frame

    def length_of(self, frame: AudioFrame) -> float:
        return frame.samples / frame.sample_rate


def track(*frames: tuple[float, float, float] | None, origin: float = 0.0) -> SoundTrack:
    return SoundTrack(cast(Feed[AudioFrame], FakeFeed(*frames)), origin)


def levels(samples: NDArray[np.float32], at: Sequence[float]) -> list[float]:
    return [round(float(samples[round(second * 16_000)]), 3) for second in at]


def test_a_gap_is_silence() -> None:
    sound = track((0.0, 0.5, 0.1), (1.5, 0.5, 0.2))
    sound.advance(MOST)
    assert sound.end == 2.0
    samples = sound.take(0, 32_000)
    assert levels(samples, [0.0, 0.499, 0.501, 1.499, 1.501, 1.999]) == [0.1, 0.1, 0, 0, 0.2, 0.2]


def test_an_overlap_is_cut_from_what_comes_later() -> None:
    sound = track((0.0, 1.0, 0.1), (0.5, 1.0, 0.2), (0.2, 0.3, 0.3))
    sound.advance(MOST)
    assert sound.end == 1.5
    samples = sound.take(0, 24_000)
    assert levels(samples, [0.999, 1.001, 1.499]) == [0.1, 0.2, 0.2]


def test_small_errors_of_time_stamps_are_not_followed() -> None:
    jitter = [0.0, 0.02, -0.02, 0.03, -0.03, 0.0]
    sound = track(*((0.1 * i + late, 0.1, 0.1 * (i + 1)) for i, late in enumerate(jitter)))
    sound.advance(MOST)
    expected = np.repeat(np.arange(1, 7) * 0.1, 1600).astype(np.float32)
    assert_allclose(sound.take(0, 9600), expected, atol=1e-6)


def test_a_clock_that_drifts_is_followed() -> None:
    """20 s of samples in 21 s of time stamps: never more than the tolerance apart."""
    sound = track(*((0.105 * index, 0.1, index / 200) for index in range(200)))
    sound.advance(MOST)
    samples = sound.take(0, 21 * 16_000)
    for index in range(200):
        begin = round(0.105 * index * 16_000)
        assert abs(samples[begin + 800] - index / 200) < 1e-6
    assert sound.end == pytest.approx(21.0, abs=0.05)


def test_sound_before_the_origin_is_cut() -> None:
    sound = track((9.5, 1.0, 0.3), origin=10.0)
    sound.advance(MOST)
    assert levels(sound.take(0, 16_000), [0.0, 0.499, 0.501]) == [0.3, 0.3, 0.0]
    assert sound.end == 0.5


def test_sound_that_comes_after_its_time_was_taken_is_cut() -> None:
    """A track that was silent for now: its chunk went out with silence and stays as it is."""
    sound = track((0.0, 0.5, 0.1), None, (0.5, 1.0, 0.2), (1.5, 0.5, 0.3))
    sound.advance(16_000)
    assert sound.end is None
    first = sound.take(0, 16_000)
    sound.advance(32_000)
    second = sound.take(16_000, 32_000)
    assert levels(first, [0.4, 0.6, 0.9]) == [0.1, 0, 0]
    assert levels(second, [0.0, 0.49, 0.51, 0.99]) == [0.2, 0.2, 0.3, 0.3]


def test_pieces_of_any_size_make_the_whole() -> None:
    frames = [(0.1 * index, 0.1, index / 100) for index in range(20)]
    whole = track(*frames)
    whole.advance(MOST)
    expected = whole.take(0, 32_000)
    pieces, at = track(*frames), 0
    parts = []
    for size in (1, 159, 1600, 5000, 3, 16_000, 9237):
        pieces.advance(at + size)
        parts.append(pieces.take(at, at + size))
        at += size
    assert_array_equal(np.concatenate(parts), expected)


@pytest.mark.parametrize("rate", [8000, 11_025, 44_100, 48_000, 96_000])
def test_resampling_keeps_length_phase_and_level(film: Callable[..., Path], rate: int) -> None:
    """A tone through a container of whole milliseconds: the same tone, to the last sample."""

    def play(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        return 0.5 * np.sin(2 * np.pi * 440 * seconds)

    sound = ClipSound(codec="flac", sample_rate=rate, layout="stereo", play=play)
    path = film("a.mkv", 3.0, None, sound)
    with open_media(path) as reader:
        samples = np.concatenate([c.samples for c in reader if c.samples is not None])
    assert len(samples) == pytest.approx(48_000, abs=16)
    expected = play(np.arange(len(samples)) / 16_000)
    assert_allclose(samples[100:-100], expected[100:-100], atol=2e-3)
    assert np.abs(samples[-40:] - expected[-40:]).max() < 0.25
