"""What a bounded prompt cache knows at one moment, replaced as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from omnitide.history import History
from omnitide.mlx_lm.rows import Rows
from omnitide.mlx_lm.segments import Place


def _nothing() -> NDArray[np.int32]:
    return np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class PromptState:
    """Between two forward passes.

    A row is a token, the same one in every layer; row i stands at position i. The first
    `len(history)` rows are in units, the others are the tail: tokens of a unit that may still grow.

    Attributes:
        layers: Keys and values, a `Rows` for each bounded layer.
        rows: Rows that are live in each of them.
        history: The units. Slots are rows.
        place: Where in the conversation the tail begins.
        written: Position at which the key of each of the first rows was written, those that were
            there at the last eviction; int32. Later rows were written where they stand.
        tokens_seen: Tokens ever given.
        evictions: How often something was deleted.
    """

    layers: tuple[Rows, ...]
    rows: int = 0
    history: History = field(default_factory=History)
    place: Place = field(default_factory=Place)
    written: NDArray[np.int32] = field(default_factory=_nothing)
    tokens_seen: int = 0
    evictions: int = 0
