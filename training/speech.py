"""Makes the bank: says all words in all voices with espeak-ng, adds photographs and letters.

python -m training.speech --out bank.npz
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.bank.bank import NUM_COLUMNS, Bank, save_bank
from training.bank.espeak import say_all
from training.bank.letters import draw_letters
from training.bank.photographs import read_photographs
from training.world.voices import VOICES, Voice


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
