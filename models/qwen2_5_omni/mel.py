"""A stream's sound to the log-mel frames of the audio tower, piece by piece: 128 bands."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from omnitide.models.mel import (
    FLOOR,
    HALF,
    HOP,
    RANGE,
    WINDOW,
    Mel,
    Samples,
    checked,
    log_power,
    mirrored,
    normalised,
)

NUM_BANDS = 128
"""Mel bands of a frame."""


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
        sound = checked(samples)
        if not len(sound):
            return np.zeros((0, NUM_BANDS), np.float32), self
        known = np.concatenate([self.tail, sound])
        end = self.position + len(sound)
        start = end - len(known)
        # Frames at the edge of the last push are computed again, for the peak alone.
        first = _frames_settled(self.position)
        emitted, last = -(-self.position // HOP), -(-end // HOP)
        raw = log_power(mirrored(known, first * HOP - HALF - start), last - first, NUM_BANDS)
        settled = raw[: max(_frames_settled(end) - first, 0)]
        peak = max(self.peak, float(settled.max(initial=FLOOR)))
        fresh = raw[emitted - first :]
        tail = known[-WINDOW:].copy()
        tail.flags.writeable = False
        loudest = max(peak, float(fresh.max(initial=FLOOR)))
        return normalised(fresh, loudest - RANGE), MelStream(tail, end, peak)


def _frames_settled(end: int) -> int:
    """Frames that see nothing beyond the first `end` samples, mirrored left edge included."""
    return max(-(-(end - HALF) // HOP), 0)
