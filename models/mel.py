"""Sound to log-mel frames, 100 a second, as Whisper's encoders take them.

Frame k is centred on sample 160 * k and sees 200 samples to either side. `log_mel` transforms a
whole clip. A stream's frames are each family's own affair; the pieces they are made of are here.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from omnitide.errors import MediaError
from omnitide.media.chunk import SAMPLE_RATE

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


def log_mel(
    samples: Samples, num_bands: int, *, right_edge: Literal["zeros", "reflect"] = "zeros"
) -> Mel:
    """Log-mel frames of a whole clip, as the models were trained on it.

    Short-time Fourier transform (periodic Hann window), squared magnitude, mel bands, log10, cut
    8 below the maximum of the clip, then `(x + 4) / 4`. The left edge mirrors the clip.

    The processors fill every clip with zeros up to a length of theirs before the transform, and
    then take the `ceil(samples / 160)` frames that hold sound. `right_edge="zeros"`, the default,
    gives exactly those frames for clips that end 200 samples before that length or earlier, without
    computing the zeros. With `"reflect"` the right edge mirrors the clip and the last frame is
    dropped, `floor(samples / 160)` frames: the transform of Whisper without filling. Both differ in
    the last one or two frames only.

    Args:
        samples: Mono, `SAMPLE_RATE`, float in [-1, 1], (num_samples,).
        num_bands: Mel bands of a frame.
        right_edge: See above.

    Returns:
        float32, (num_frames, num_bands).

    Raises:
        MediaError: Samples are not one row of finite floats, or too few to be mirrored
            ("reflect" needs 201).
    """
    sound = checked(samples)
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
    raw = log_power(padded, heard, num_bands)
    return normalised(raw[:num_frames], float(raw.max(initial=FLOOR)) - RANGE)


@cache
def mel_filters(num_bands: int) -> NDArray[np.float64]:
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


def checked(samples: Samples) -> NDArray[np.float64]:
    """A copy in float64.

    Raises:
        MediaError: Samples are not one row of finite floats.
    """
    if samples.ndim != 1 or not np.issubdtype(samples.dtype, np.floating):
        raise MediaError(
            "[mel] samples must be floats in [-1, 1] of shape (num_samples,), "
            f"got {samples.dtype} {samples.shape}; divide 16-bit samples by 32768"
        )
    if not np.isfinite(samples).all():
        raise MediaError("[mel] samples must be finite, got NaN or infinity")
    return samples.astype(np.float64)


def mirrored(known: NDArray[np.float64], begin: int) -> NDArray[np.float64]:
    """Samples from place `begin` of `known` to beyond its end, mirrored at its edges.

    The transform's frames start at 0, `HOP`, ... of what is returned; the last one that is whole is
    centred on the last sample or less than `HOP` samples before. Zeros stand for samples that are
    missing because there are too few to mirror.

    Args:
        known: A stretch of sound.
        begin: First sample wanted; below 0, at least `-HALF`, the left edge is mirrored.
    """
    filled = np.concatenate([known, np.zeros(max(WINDOW - len(known), 0))])
    right = filled[max(len(known) - HALF, 0) : len(known) - 1][::-1]
    right = np.concatenate([right, np.zeros(HALF - len(right))])
    left = filled[-begin:0:-1] if begin < 0 else filled[:0]
    return np.concatenate([left, known[max(begin, 0) :], right])


def log_power(padded: NDArray[np.float64], num_frames: int, num_bands: int) -> NDArray[np.float64]:
    """log10 of the mel bands of frames that start at 0, `HOP`, ... in `padded`.

    In blocks, so that a long clip doesn't need 2.5 times its size for windows that overlap.
    """
    if not num_frames:
        return np.zeros((0, num_bands))
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:num_frames]
    blocks = []
    for at in range(0, num_frames, _FRAMES_AT_ONCE):
        spectrum = np.fft.rfft(frames[at : at + _FRAMES_AT_ONCE] * _window())
        power = spectrum.real**2 + spectrum.imag**2
        blocks.append(np.log10(np.maximum(power @ mel_filters(num_bands), 10.0**FLOOR)))
    return np.concatenate(blocks)


def normalised(raw: NDArray[np.float64], floor: float) -> Mel:
    """What the encoders take: log10 values, none below a floor, as `(x + 4) / 4`."""
    return ((np.maximum(raw, floor) + 4) / 4).astype(np.float32)
