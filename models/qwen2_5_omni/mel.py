"""Sound to the log-mel frames of the audio tower: 128 bands, 100 frames a second.

Frame k is centred on sample 160 * k and sees 200 samples to either side. `log_mel` transforms a
whole clip; `MelStream` a stream, piece by piece, on the same grid of frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from omnitide.errors import MediaError
from omnitide.media.chunk import SAMPLE_RATE

NUM_BANDS = 128
"""Mel bands of a frame."""

WINDOW = 400
"""Samples a frame sees."""

HALF = WINDOW // 2
"""Samples a frame sees to either side of its centre."""

HOP = 160
"""Samples from one frame to the next."""

FLOOR = -10.0
"""log10 of the least power that is told from silence."""

RANGE = 8.0
"""Powers of ten below the maximum that are kept."""

_FRAMES_AT_ONCE = 1024

Samples = NDArray[np.floating]
Mel = NDArray[np.float32]


def log_mel(samples: Samples, *, right_edge: Literal["zeros", "reflect"] = "zeros") -> Mel:
    """Log-mel frames of a whole clip, as the models were trained on it.

    Short-time Fourier transform (periodic Hann window), squared magnitude, mel bands, log10, cut
    8 below the maximum of the clip, then `(x + 4) / 4`. The left edge mirrors the clip.

    The Qwen processor fills every clip with zeros up to 300 s before the transform and then takes
    the `ceil(samples / 160)` frames that hold sound. `right_edge="zeros"`, the default, gives
    exactly those frames for clips below 300 s, without computing the zeros. With `"reflect"` the
    right edge mirrors the clip and the last frame is dropped, `floor(samples / 160)` frames: the
    transform of Whisper without filling. Both differ in the last one or two frames only.

    Args:
        samples: Mono, `SAMPLE_RATE`, float in [-1, 1], (num_samples,).
        right_edge: See above.

    Returns:
        float32, (num_frames, `NUM_BANDS`).

    Raises:
        MediaError: Samples are not one row of finite floats, or too few to be mirrored
            ("reflect" needs 201).
    """
    sound = _checked(samples)
    if right_edge == "zeros":
        num_frames = -(-len(sound) // HOP)
        # Two frames more reach back into the clip; the maximum is taken over them as well.
        heard = num_frames + 2 if num_frames else 0
        filled = np.concatenate([sound, np.zeros(HOP * 2 + WINDOW, np.float64)])
        padded = np.concatenate([filled[HALF:0:-1], filled])
    else:
        if len(sound) <= HALF:
            raise MediaError(
                f"[mel] mirroring needs more than {HALF} samples, got {len(sound)}; "
                "use right_edge='zeros'"
            )
        num_frames = heard = len(sound) // HOP
        padded = np.pad(sound, HALF, mode="reflect")
    raw = _log_power(padded, heard)
    return _normalised(raw[:num_frames], float(raw.max(initial=FLOOR)))


@dataclass(frozen=True, slots=True, eq=False)
class MelStream:
    """Log-mel of a stream that is pushed piece by piece; a value, `push` returns the next one.

    Frames lie on the grid of the whole stream: a push that brings the stream from sample a to b
    gives the frames with centres in `[a, b)`, so all pushes together give `ceil(samples / 160)`
    frames, 2 s (32,000 samples) give 200 and 1 s gives 100. Every frame sees the true samples
    before it, across pushes.

    Two choices make the transform causal; both are part of the contract:

    - The right edge of a push mirrors its last sample, because what follows isn't known. Frames
      less than 200 samples from the edge differ from `log_mel`: the last one if the push ends on
      the grid, otherwise at most two. They are not handed out again later. (A first push of fewer
      than 201 samples can't mirror the left edge either and takes zeros for what is missing.)
    - The maximum below which 8 powers of ten are kept is the greatest value *so far*: over all
      earlier frames, each with its true samples on both sides, and over the frames of this push.
      Once the loudest moment has passed, frames equal those of `log_mel`; before it, quiet parts
      reach lower. Nothing handed out is ever changed.

    Attributes:
        tail: Last samples of the stream, float64, at most `WINDOW`, read-only.
        position: Samples pushed so far.
        peak: Greatest raw log10 value of the frames that are settled.
    """

    tail: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    position: int = 0
    peak: float = FLOOR

    def push(self, samples: Samples) -> tuple[Mel, MelStream]:
        """Frames of the next samples, and the stream after them. Changes nothing.

        Args:
            samples: As in `log_mel`; any number, also none.

        Returns:
            float32, (num_frames, `NUM_BANDS`), and the next stream.

        Raises:
            MediaError: Samples are not one row of finite floats.
        """
        sound = _checked(samples)
        if not len(sound):
            return np.zeros((0, NUM_BANDS), np.float32), self
        known = np.concatenate([self.tail, sound])
        end = self.position + len(sound)
        start = end - len(known)
        # Frames at the edge of the last push are computed again, for the peak alone.
        first = _frames_settled(self.position)
        emitted, last = -(-self.position // HOP), -(-end // HOP)
        raw = _log_power(_surrounded(known, start, first * HOP), last - first)
        settled = raw[: max(_frames_settled(end) - first, 0)]
        peak = max(self.peak, float(settled.max(initial=FLOOR)))
        fresh = raw[emitted - first :]
        tail = known[-WINDOW:].copy()
        tail.flags.writeable = False
        loudest = max(peak, float(fresh.max(initial=FLOOR)))
        return _normalised(fresh, loudest), MelStream(tail, end, peak)


@cache
def mel_filters(num_bands: int = NUM_BANDS) -> NDArray[np.float64]:
    """Triangular mel filters on Slaney's scale, each of area one in Hz, from 0 to 8,000 Hz.

    The scale is linear below 1 kHz, 200/3 Hz a mel, and logarithmic above, where 27 mels are a
    factor of 6.4 (M. Slaney, Auditory Toolbox, 1998).

    Args:
        num_bands: Number of filters.

    Returns:
        float64, (`WINDOW` // 2 + 1, num_bands), read-only.
    """
    hertz_per_mel, knee_hertz = 200 / 3, 1000.0
    knee, step = knee_hertz / hertz_per_mel, np.log(6.4) / 27
    nyquist = SAMPLE_RATE / 2
    top = knee + np.log(nyquist / knee_hertz) / step
    mels = np.linspace(0.0, top, num_bands + 2)
    edges = np.where(mels < knee, mels * hertz_per_mel, knee_hertz * np.exp((mels - knee) * step))
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    bins = np.linspace(0.0, nyquist, WINDOW // 2 + 1)[:, None]
    rising, falling = (bins - low) / (centre - low), (high - bins) / (high - centre)
    filters: NDArray[np.float64] = np.maximum(np.minimum(rising, falling), 0.0) * (2 / (high - low))
    filters.flags.writeable = False
    return filters


@cache
def _window() -> NDArray[np.float64]:
    """Periodic Hann window, (`WINDOW`,), read-only."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    window.flags.writeable = False
    return window


def _checked(samples: Samples) -> NDArray[np.float64]:
    if samples.ndim != 1 or not np.issubdtype(samples.dtype, np.floating):
        raise MediaError(
            "[mel] samples must be floats in [-1, 1] of shape (num_samples,), "
            f"got {samples.dtype} {samples.shape}; divide 16-bit samples by 32768"
        )
    if not np.isfinite(samples).all():
        raise MediaError("[mel] samples must be finite, got NaN or infinity")
    return samples.astype(np.float64)


def _frames_settled(end: int) -> int:
    """Frames that see nothing beyond the first `end` samples, mirrored left edge included."""
    return max(-(-(end - HALF) // HOP), 0)


def _surrounded(known: NDArray[np.float64], start: int, first_centre: int) -> NDArray[np.float64]:
    """Samples from `first_centre - HALF` of the stream to beyond the end of `known`.

    Args:
        known: Samples of the stream from `start` on.
        start: Place of the first one in the stream; above 0 only if `first_centre` lies at least
            `HALF` samples after it.
        first_centre: Place of the first frame's centre.
    """
    filled = np.concatenate([known, np.zeros(max(WINDOW - len(known), 0))])
    right = filled[max(len(known) - HALF, 0) : len(known) - 1][::-1]
    right = np.concatenate([right, np.zeros(HALF - len(right))])
    begin = first_centre - HALF - start
    left = filled[-begin:0:-1] if begin < 0 else filled[:0]
    return np.concatenate([left, known[max(begin, 0) :], right])


def _log_power(padded: NDArray[np.float64], num_frames: int) -> NDArray[np.float64]:
    """log10 of the mel bands of frames that start at 0, `HOP`, ... in `padded`.

    In blocks, so that a long clip doesn't need 2.5 times its size for windows that overlap.
    """
    if not num_frames:
        return np.zeros((0, NUM_BANDS))
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:num_frames]
    blocks = []
    for at in range(0, num_frames, _FRAMES_AT_ONCE):
        spectrum = np.fft.rfft(frames[at : at + _FRAMES_AT_ONCE] * _window())
        power = spectrum.real**2 + spectrum.imag**2
        blocks.append(np.log10(np.maximum(power @ mel_filters(), 10.0**FLOOR)))
    return np.concatenate(blocks)


def _normalised(raw: NDArray[np.float64], maximum: float) -> Mel:
    return ((np.maximum(raw, maximum - RANGE) + 4) / 4).astype(np.float32)
