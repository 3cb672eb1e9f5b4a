"""What the painter and the player take from elsewhere: speech, photographs and letters.

It is one file, so that the machine that trains needs no speech tool, photographs or fonts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from zipfile import BadZipFile
from zlib import error as ZlibError

import numpy as np
from numpy.typing import NDArray

from omnitide.errors import ConfigError
from omnitide.evaluation.needle.fact import WORDS
from training.world.vocabulary import SPOKEN

FIRST_SENTENCE = len(SPOKEN)
FIRST_REPEAT = FIRST_SENTENCE + len(WORDS)
NUM_COLUMNS = FIRST_REPEAT + len(WORDS)
"""Columns of the speech bank: words, then first halves of sentences, then second ones."""


@dataclass(frozen=True, slots=True)
class Bank:
    """Arrays of the bank.

    Attributes:
        codes: All speech, 8-bit mu-law at 16 kHz, one utterance after the other.
        starts, lengths: Of each utterance in `codes`, shape (voices, NUM_COLUMNS); an utterance
            that a voice doesn't say has length 0.
        photographs: Shape (photographs, size, size, 3), uint8.
        words: Coverage of each word of `WORDS` in each style, (styles, 24, 32, 112), uint8.
        digits: Coverage of a digit at a place of a number, (styles, 10, 5, 32, 112), uint8.
        word_bars, digit_bars: Half the height of the bar behind them, pixels; (styles, 24) and
            (styles,).
    """

    codes: NDArray[np.uint8]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    photographs: NDArray[np.uint8]
    words: NDArray[np.uint8]
    digits: NDArray[np.uint8]
    word_bars: NDArray[np.float32]
    digit_bars: NDArray[np.float32]


def column(kind: str, text: str) -> int:
    """The column of what is said.

    Args:
        kind: "speech", "sentence" or "repeat", as in `Sound.kind`.
        text: The word.
    """
    if kind == "speech":
        return SPOKEN.index(text)
    return {"sentence": FIRST_SENTENCE, "repeat": FIRST_REPEAT}[kind] + WORDS.index(text)


def save_bank(bank: Bank, path: Path) -> None:
    """Write a bank as an .npz file."""
    with path.open("wb") as file:
        np.savez_compressed(file, **{f.name: getattr(bank, f.name) for f in fields(Bank)})


def load_bank(path: Path | str) -> Bank:
    """Read what `save_bank` wrote.

    Raises:
        ConfigError: The file can't be read, or is no bank.
    """
    try:
        with Path(path).open("rb") as file, np.lib.npyio.NpzFile(file) as arrays:
            return Bank(**{f.name: arrays[f.name] for f in fields(Bank)})
    except (OSError, KeyError, ValueError, BadZipFile, ZlibError) as error:
        raise ConfigError(
            f"[bank] --speech must be a bank that can be read, {path} is not ({error}); make one "
            "with python -m training.speech --out FILE"
        ) from error
