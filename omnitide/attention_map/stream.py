"""What a watched stream was made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omnitide.attention_map.classes import PREFIX, TEXT
from omnitide.attention_map.watch import AttentionWatch


@dataclass(frozen=True, slots=True)
class StreamSizes:
    """Sizes of a stream in tokens.

    Attributes:
        prefix: Tokens of the system prefix.
        tokens: Tokens of all units behind it.
        units: Number of these units.
        text: Words among these tokens: text that is no boundary.
    """

    prefix: int
    tokens: int
    units: int
    text: int

    @classmethod
    def of(cls, watch: AttentionWatch) -> StreamSizes:
        """Of all that a watch has seen."""
        contents = watch.contents
        behind = contents != PREFIX
        return cls(
            prefix=int(np.count_nonzero(~behind)),
            tokens=int(np.count_nonzero(behind)),
            units=len(np.unique(watch.units[behind])),
            text=int(np.count_nonzero(contents == TEXT)),
        )
