"""The sound of made-up streams: faint noise, beeps, and speech where a speech tool is installed."""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omnitide.errors import MediaError
from omnitide.media.chunk import SAMPLE_RATE

Samples = NDArray[np.float32]

TOOLS = ("espeak-ng", "espeak")
"""Programs that can say a sentence; the first one found is taken."""

NOISE = 0.003
"""Deviation of the noise."""

BEEP_SECONDS, BEEP_EVERY, BEEP_HERTZ = 0.15, 0.3, 880.0

PATIENCE = 30.0
"""Seconds that a speech tool may take."""

SENTENCE = "The code word is {word}. I repeat: {word}."


def speech_tool() -> str | None:
    """The path of a speech tool; None where there is none."""
    return next((path for tool in TOOLS if (path := shutil.which(tool)) is not None), None)


def noise(first: int, count: int, seed: int) -> Samples:
    """Samples [first, first + count) of a stream's noise, the same however it is cut.

    It is made a second at a time.
    """
    seconds = range(first // SAMPLE_RATE, -(-(first + count) // SAMPLE_RATE))
    pieces = [np.random.default_rng([seed, s]).standard_normal(SAMPLE_RATE) for s in seconds]
    joined = np.concatenate([*pieces, np.empty(0)])
    start = first - seconds.start * SAMPLE_RATE
    return (NOISE * joined[start : start + count]).astype(np.float32)


def beeps(count: int) -> Samples:
    """So many beeps of 0.15 s, one every 0.3 s."""
    time = np.arange(round(count * BEEP_EVERY * SAMPLE_RATE)) / SAMPLE_RATE
    part = time % BEEP_EVERY
    fade = np.clip(np.minimum(part, BEEP_SECONDS - part) * 100, 0, 1)
    samples: Samples = (0.4 * fade * np.sin(math.tau * BEEP_HERTZ * part)).astype(np.float32)
    return samples


@lru_cache(maxsize=64)
def say(word: str) -> Samples:
    """A sentence with a word in it, twice.

    Raises:
        MediaError: There is no speech tool, or it fails.
    """
    tool = speech_tool()
    if tool is None:
        raise MediaError(f"[needle] speech needs one of {', '.join(TOOLS)}; install espeak-ng")
    from omnitide.media.reader import open_media  # brings in the media libraries

    with tempfile.TemporaryDirectory(prefix="omnitide-") as folder:
        path = Path(folder) / "speech.wav"
        command = [tool, "-s", "150", "-w", str(path), SENTENCE.format(word=word)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
        except (OSError, subprocess.SubprocessError) as error:
            raise MediaError(f"[needle] {tool} can't say a sentence ({error}); try it") from error
        with open_media(path, video=False) as reader:
            pieces = [chunk.samples for chunk in reader if chunk.samples is not None]
    samples = np.concatenate([*pieces, np.empty(0, np.float32)])
    if not np.abs(samples).max(initial=0) > 0:
        raise MediaError(f"[needle] {tool} said nothing; try it")
    return samples
