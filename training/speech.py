"""Makes the bank: says all words in all voices with espeak-ng, adds photographs and letters.

python -m training.speech --out bank.npz
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import wave
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly

from omnitide.evaluation.needle.fact import WORDS
from omnitide.evaluation.needle.sound import SENTENCE
from omnitide.media.chunk import SAMPLE_RATE
from training.bank import NUM_COLUMNS, Bank, column, save_bank
from training.letters import draw_letters
from training.mulaw import encode
from training.photographs import read_photographs
from training.size import SAMPLES
from training.vocabulary import SPOKEN
from training.voices import VOICES, Voice

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


def make_bank(voices: Sequence[Voice], workers: int) -> Bank:
    """Speech of some voices, with all photographs and letters.

    Raises:
        ValueError: Two voices sound the same, or something is too long or silent.
    """
    with ThreadPoolExecutor(workers) as pool:
        rows = list(pool.map(say_all, voices))
    for row, said in enumerate(rows):
        # An unknown variant is passed over by the tool: it would be another voice's double.
        if any(np.array_equal(said[0], other[0]) for other in rows[:row]):
            raise ValueError(f"[speech] {voices[row].name} sounds like another voice; take it out")
    starts = np.zeros((len(voices), NUM_COLUMNS), np.int64)
    lengths = np.zeros_like(starts)
    pieces: list[NDArray[np.uint8]] = []
    total = 0
    for row, said in enumerate(rows):
        for place, codes in said.items():
            starts[row, place], lengths[row, place] = total, len(codes)
            pieces.append(codes)
            total += len(codes)
    letters = draw_letters()
    return Bank(
        np.concatenate(pieces),
        starts,
        lengths,
        read_photographs(),
        letters.words,
        letters.digits,
        letters.word_bars,
        letters.digit_bars,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the bank; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m training.speech", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--workers", type=int, default=2, help="speech tools at a time")
    options = parser.parse_args(arguments)
    try:
        bank = make_bank(VOICES, options.workers)
        save_bank(bank, options.out)
    except (OSError, ValueError, subprocess.SubprocessError, ImportError) as error:
        print(f"[speech] no bank was made: {error}", file=sys.stderr)
        return 1
    megabytes = options.out.stat().st_size / 1e6
    print(f"{options.out}: {len(VOICES)} voices, {megabytes:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
