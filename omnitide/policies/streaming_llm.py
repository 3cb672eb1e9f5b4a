"""StreamingLLM: the first tokens stay as attention sinks, and the newest (Xiao et al., 2024).

StreamingLLM counts its sinks from the first token of the sequence. Here the system prefix stands
there, and no policy may drop it. Sinks counted inside it would change nothing, and this policy
would be token sliding; so the sinks are the first tokens *behind* the prefix, in addition to it.
With the two of the paper (section 7.1), that is the prefix, the first two tokens of the stream and
a recent suffix. In a history without a prefix they are its first tokens, as in the original.

The suffix begins at any token, so units and turns may be torn (see `token_sliding`).
"""

from __future__ import annotations

import numpy as np

from omnitide.config import RetentionConfig
from omnitide.history import History
from omnitide.retention import Mask, Mass, protected, room_beside
from omnitide.units import Cells


class StreamingLLM:
    """Sinks and a recent suffix.

    The target is met exactly, unless the protected cells alone exceed it. Where there is little
    room, the newest token goes before the sinks.
    """

    name = "streaming-llm"
    bounded = True
    needs_mass = False

    def select(self, history: History, config: RetentionConfig, mass: Mass | None = None) -> Mask:
        """The protected cells, the first `sink_tokens` others and the newest others."""
        held = protected(history)
        free = np.flatnonzero(~held)
        room = room_beside(held, config)
        sinks = min(config.sink_tokens, max(room - 1, 0))
        keep = held.copy()
        keep[free[:sinks]] = True
        keep[free[max(len(free) - (room - sinks), 0) :]] = True
        keep[-1:] = True
        return keep

    def survivors(self, cells: Cells, config: RetentionConfig) -> Mask:
        """None: but for the sinks, which a unit can't know that it holds, every token leaves."""
        return np.zeros(len(cells), np.bool_)
