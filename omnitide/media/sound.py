"""The sound track: mono samples at 16 kHz, each at its place on the clock.

Invariant: sample n was heard at n / 16,000 s, within `TOLERANCE`. Where the stream has no sound
there is silence; sound that overlaps what is already there is cut.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.error import FFmpegError
from numpy.typing import NDArray

from omnitide.media.chunk import SAMPLE_RATE
from omnitide.media.feed import Feed

TOLERANCE = 0.04
"""Seconds by which time stamps may differ from the count of samples before they are followed.

Containers round time stamps, some by a whole frame of the codec; following each would tear sound.
"""

MIXING = {"rematrix_maxval": "1.0"}
"""Channels are weighted so that their sum stays within 1: two become their mean."""

Samples = NDArray[np.float32]


class SoundTrack:
    """Samples of one audio stream, taken in ascending order of time.

    Args:
        feed: Decoded frames.
        origin: Second of the container that is 0 here.
    """

    def __init__(self, feed: Feed[AudioFrame], origin: float) -> None:
        self._feed = feed
        self._origin = origin
        self._segments: deque[tuple[int, Samples]] = deque()
        self._written = 0
        self._taken = 0
        self._resampler: AudioResampler | None = None
        self._shape: tuple[int, str, str] | None = None
        self._by_hand = False
        self._cursor = 0
        self._anchor = 0.0
        self._seconds_in = 0.0
        self._declared_end: float | None = None
        self._finished = False

    @property
    def end(self) -> float | None:
        """Second at which the last sample ends; None while it isn't known."""
        return self._written / SAMPLE_RATE if self._finished else None

    def advance(self, stop: int) -> None:
        """Read until the samples before `stop` are there, or no more come for now."""
        while self._written < stop and not self._finished:
            item = self._feed.read()
            if item is not None:
                self._place(item[0] - self._origin, item[1])
            elif self._feed.ended:
                self._flush()
                self._cut_padding()
                self._finished = True
            else:
                return

    def take(self, start: int, stop: int) -> Samples:
        """Samples [start, stop), silence where there are none; earlier ones are forgotten."""
        out = np.zeros(stop - start, np.float32)
        while self._segments and self._segments[0][0] < stop:
            first, samples = self._segments.popleft()
            low, high = max(first, start), min(first + len(samples), stop)
            out[low - start : high - start] = samples[low - first : high - first]
            if high < first + len(samples):
                self._segments.appendleft((high, samples[high - first :]))
                break
        self._taken = stop
        return out

    def _place(self, second: float, frame: AudioFrame) -> None:
        shape = (frame.sample_rate, frame.format.name, frame.layout.name)
        expected = self._anchor + self._seconds_in
        torn = abs(second - expected) > TOLERANCE
        if self._resampler is None or torn or shape != self._shape:
            self._flush()
            self._resampler = AudioResampler("flt", "mono", SAMPLE_RATE, options=MIXING)
            self._by_hand = self._by_hand and shape == self._shape
            self._shape = shape
            self._anchor, self._seconds_in = second, 0.0
            self._cursor = round(second * SAMPLE_RATE)
        length = frame.samples / frame.sample_rate
        self._seconds_in += length
        declared = self._feed.length_of(frame)
        self._declared_end = second + declared if 0 < declared < length else None
        self._resample(frame)

    def _flush(self) -> None:
        """Take what the resampler still holds and part with it."""
        if self._resampler is not None:
            self._resample(None)
            self._resampler = None

    def _resample(self, frame: AudioFrame | None) -> None:
        assert self._resampler is not None
        try:
            if frame is not None and self._by_hand:
                frame = _mean_of_channels(frame)
            resampled = self._resampler.resample(frame)
        except (FFmpegError, ValueError):
            self._resampler = None
            if frame is not None and not self._by_hand:
                # FFmpeg mixes no layout that it has no matrix for, such as 9 channels or 18.
                self._by_hand = True
                self._resampler = AudioResampler("flt", "mono", SAMPLE_RATE)
                self._resample(frame)
            return
        for piece in resampled:
            samples = np.nan_to_num(piece.to_ndarray()[0], posinf=1.0, neginf=-1.0)
            self._append(np.clip(samples, -1.0, 1.0))

    def _append(self, samples: Samples) -> None:
        start, self._cursor = self._cursor, self._cursor + len(samples)
        late = max(self._written - start, self._taken - start, 0)
        if late < len(samples):
            self._segments.append((start + late, samples[late:]))
            self._written = self._cursor

    def _cut_padding(self) -> None:
        """Forget the filling of the codec's last frame, which lasts longer than it declares."""
        if self._declared_end is None:
            return
        end = round(self._declared_end * SAMPLE_RATE)
        if self._segments and self._segments[-1][0] < end < self._written:
            first, samples = self._segments[-1]
            self._segments[-1] = (first, samples[: end - first])
            self._written = end


def _mean_of_channels(frame: AudioFrame) -> AudioFrame:
    """One channel, float, of a frame with any number of them.

    Raises:
        ValueError: Samples of an unknown kind.
    """
    samples: NDArray[Any] = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, frame.layout.nb_channels).T
    if samples.dtype.kind == "f":
        mean = samples.mean(axis=0)
    else:
        info = np.iinfo(samples.dtype)
        middle = (int(info.max) + int(info.min) + 1) // 2
        mean = (samples.mean(axis=0) - middle) / (int(info.max) - middle + 1)
    mixed = AudioFrame.from_ndarray(mean[None].astype(np.float32), format="flt", layout="mono")
    mixed.sample_rate, mixed.pts, mixed.time_base = frame.sample_rate, frame.pts, frame.time_base
    return mixed
