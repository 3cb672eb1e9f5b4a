"""Timed pieces of a stream, as the reader hands them out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 16_000
"""Samples a second of all sound handed to models."""

Frame = NDArray[np.uint8]
"""A picture, RGB, shape (height, width, 3)."""


@dataclass(frozen=True, slots=True)
class MediaChunk:
    """What was seen and heard in `[start, stop)` seconds of a stream.

    Attributes:
        start, stop: Seconds.
        frames: Pictures, all of one size, oldest first; empty where there is no picture.
        frame_times: Second at which each was shown.
        samples: Mono sound at `SAMPLE_RATE`, float32 in [-1, 1]; None where there is no sound.
        still: A single picture that stands outside of time (an image file).
    """

    start: float
    stop: float
    frames: tuple[Frame, ...] = ()
    frame_times: tuple[float, ...] = ()
    samples: NDArray[np.float32] | None = None
    still: bool = False

    @property
    def seconds(self) -> float:
        """Length in seconds."""
        return self.stop - self.start
