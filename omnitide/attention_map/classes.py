"""Classes of cells: what structure says of a token, and nothing that a policy does not know.

A token of a picture or of a piece of sound has a class for each of the first places in its span, so
that the length of a sink can be read off; those behind them share one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnitide.history import History
from omnitide.units import Modality, Role, UnitKind, span_ranks

RANKS = 32
"""First tokens of a picture or sound span that are told apart."""

PREFIX, BOUNDARY, TEXT, SOURCE = range(4)
"""The system prefix, boundary tokens, words, and the whole source image of a sliced picture."""

IMAGE = SOURCE + 1
"""First token of a picture's span; `IMAGE + r` is the one behind r others, `IMAGE + RANKS` rest."""

AUDIO = IMAGE + RANKS + 1
"""The same of sound."""

NUM_CLASSES = AUDIO + RANKS + 1

Classes = NDArray[np.uint8]


def classes_of(history: History, stop: int) -> Classes:
    """Class of each of the first `stop` cells of a history, shape (stop,)."""
    cells = history.cells[:stop]
    modality, role = cells["modality"], cells["role"]
    rank = np.minimum(span_ranks(cells), RANKS)
    out = np.full(stop, TEXT, np.uint8)
    image, audio = modality == Modality.IMAGE, modality == Modality.AUDIO
    out[image] = IMAGE + rank[image]
    out[audio] = AUDIO + rank[audio]
    out[role == Role.SOURCE_IMAGE] = SOURCE
    out[role == Role.BOUNDARY] = BOUNDARY
    systems = [unit.id for unit in history.units if unit.kind is UnitKind.SYSTEM]
    out[np.isin(cells["unit"], systems)] = PREFIX
    return out


def image_classes(first: int = 0, stop: int = RANKS + 1) -> list[int]:
    """Classes of tokens of pictures with that place in their span; all by default."""
    return list(range(IMAGE + min(first, RANKS), IMAGE + min(stop, RANKS + 1)))


def audio_classes(first: int = 0, stop: int = RANKS + 1) -> list[int]:
    """Classes of tokens of sound with that place in their span; all by default."""
    return list(range(AUDIO + min(first, RANKS), AUDIO + min(stop, RANKS + 1)))
