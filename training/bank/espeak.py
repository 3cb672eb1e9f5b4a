"""What a voice says, by espeak-ng: a subprocess, its sound at 16 kHz without silence around."""

from __future__ import annotations

import io
import subprocess
import wave

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

from omnitide.evaluation.needle.fact import WORDS
from omnitide.evaluation.needle.sound import SENTENCE
from omnitide.media.chunk import SAMPLE_RATE
from training.bank.bank import column
from training.bank.mulaw import encode
from training.world.unit import SAMPLES
from training.world.vocabulary import SPOKEN
from training.world.voices import Voice

TOOL = "espeak-ng"

PEAK = 0.9
"""Greatest amplitude of an utterance in the bank."""

QUIET = 0.01
"""Below this part of the peak, sound at the ends is silence."""

PATIENCE = 30.0
"""Seconds that the speech tool may take."""


def say(voice: Voice, text: str) -> NDArray[np.float32]:
    """A text at 16 kHz, without silence at its ends, its peak at `PEAK`.

    Raises:
        OSError: There is no espeak-ng.
        subprocess.SubprocessError: It fails.
        ValueError: It says nothing.
    """
    command = [TOOL, "-v", voice.name, "-s", str(voice.speed), "--stdout", text]
    said = subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE).stdout
    with wave.open(io.BytesIO(said)) as file:
        rate = file.getframerate()
        # A wave file that went through a pipe tells a length that it doesn't have.
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768
    shared = int(np.gcd(rate, SAMPLE_RATE))
    samples = resample_poly(samples, SAMPLE_RATE // shared, rate // shared)
    peak = float(np.abs(samples).max(initial=0))
    if peak == 0:
        raise ValueError(f"[speech] {voice.name} says nothing for {text!r}; take another voice")
    loud = np.flatnonzero(np.abs(samples) > QUIET * peak)
    trimmed = samples[loud[0] : loud[-1] + 1] * (PEAK / peak)
    return trimmed.astype(np.float32)


def say_all(voice: Voice) -> dict[int, NDArray[np.uint8]]:
    """What a voice says, coded, by column of the bank.

    Raises:
        ValueError: Something is longer than its units.
    """
    said = {column("speech", word): say(voice, word) for word in SPOKEN}
    if voice.sentences:
        for word in WORDS:
            sentence = say(voice, SENTENCE.format(word=word))
            said[column("sentence", word)] = sentence[:SAMPLES]
            said[column("repeat", word)] = sentence[SAMPLES:]
    for place, samples in said.items():
        if not 0 < len(samples) <= SAMPLES:
            raise ValueError(
                f"[speech] {voice.name} at {voice.speed} says column {place} in {len(samples)} "
                f"samples, not 1 to {SAMPLES}; take another speed"
            )
    return {place: encode(samples) for place, samples in said.items()}
