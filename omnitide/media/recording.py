"""A short recording as a whole."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnitide.errors import MediaError
from omnitide.media.chunk import SAMPLE_RATE
from omnitide.media.reader import open_media
from omnitide.media.source import Source, name_of

LONGEST = 30
"""Seconds of the longest recording that is read."""


def read_recording(source: Source) -> NDArray[np.float32]:
    """Read the sound of a file.

    Returns:
        Mono samples at `SAMPLE_RATE`, float32 in [-1, 1].

    Raises:
        MediaError: As `open_media`; the file breaks off, or is longer than `LONGEST`.
    """
    pieces: list[NDArray[np.float32]] = []
    held = 0
    with open_media(source, video=False) as reader:
        for chunk in reader:
            if chunk.samples is not None:
                pieces.append(chunk.samples)
                held += len(chunk.samples)
            if held > LONGEST * SAMPLE_RATE:
                raise MediaError(
                    f"[voice] a recording may have {LONGEST} s, {name_of(source)} has more; cut it"
                )
        if reader.broken is not None:
            raise MediaError(f"[voice] {name_of(source)}: {reader.broken}; fetch it again")
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
