"""Turns: paragraphs leave oldest first, and a turn keeps its marks for as long as it has words.

1. The system prefix and the newest unit stay whole.
2. The first paragraphs behind the prefix stay as far as the text budget reaches, and never take
   more than a quarter of the low watermark, or half of it with their marks: they say what all is
   about, and models lean on the first tokens of a text. If the first paragraph alone is longer, its
   first tokens stay.
3. Other paragraphs leave, oldest first, until the low watermark is met. With the last words of a
   turn its marks leave too, so what stays reads as a conversation.
"""

from __future__ import annotations

import numpy as np

from omnitide.config import RetentionConfig
from omnitide.history import History
from omnitide.retention import Mask, Mass, protected_units
from omnitide.runs import run_lengths
from omnitide.units import Cells, Role

_BOUNDARY = int(Role.BOUNDARY)

HEAD_SHARE = 4
"""The words of the first paragraphs take at most one part in so many of the low watermark."""

MARKED_SHARE = 2
"""The same with their marks, which outnumber the words where turns are short."""


class Turns:
    """Whole paragraphs of a conversation.

    The target is met unless the prefix, the first paragraphs and the newest unit exceed it.
    """

    name = "turns"
    bounded = True
    needs_mass = False

    def select(self, history: History, config: RetentionConfig, mass: Mass | None = None) -> Mask:
        """Which cells stay; see the module. A unit that was made with a mark first opens a turn."""
        starts = history.unit_starts()
        lengths = run_lengths(starts, len(history))
        boundary = history.cells["role"] == _BOUNDARY
        words = np.add.reduceat(~boundary, starts, dtype=np.int64)
        # What opens a turn is the first span of a unit; what closes one is not, even if alone.
        turn = np.cumsum(boundary[starts] & (history.cells["span"][starts] == 0))
        left = np.bincount(turn, words)  # words that each turn still has
        keep = np.ones(len(history), np.bool_)
        excess = len(history) - config.low_watermark

        held = protected_units(history)
        loose = ~np.repeat(held, lengths)
        free = [int(i) for i in np.flatnonzero(~held) if i < len(starts) - 1]
        head = min(config.text_budget, config.low_watermark // HEAD_SHARE)
        room = config.low_watermark // MARKED_SHARE
        first = True
        for unit in free:
            if excess <= 0:
                break
            begin, count = int(starts[unit]), int(lengths[unit])
            if words[unit]:
                if words[unit] <= head and count <= room:  # one of the first paragraphs
                    head -= int(words[unit])
                    room -= count
                    first = False
                    continue
                spoken = begin + int(np.argmin(boundary[begin : begin + count]))
                cells = slice(spoken + (head if first else 0), begin + count)
                first, head = False, 0
                going = ~boundary[cells]
                keep[cells] &= ~going
                gone = int(np.count_nonzero(going))
                excess -= gone
                left[turn[unit]] -= gone
            if left[turn[unit]] <= 0:
                marks = keep & loose & boundary & np.repeat(turn == turn[unit], lengths)
                keep[marks] = False
                excess -= int(np.count_nonzero(marks))
        keep[-int(lengths[-1]) :] = True
        return keep

    def survivors(self, cells: Cells, config: RetentionConfig) -> Mask:
        """None: every paragraph leaves in its turn."""
        return np.zeros(len(cells), np.bool_)
