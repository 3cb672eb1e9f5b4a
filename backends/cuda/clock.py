"""The device's own clock: how long work takes there, without the host's time in between."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.instances import Instance

DELAY = Instance("delay", "delay")

HELD_PER_CALL, HELD_AT_MOST = 1e-3, 0.25
"""Seconds for which the stream is held up, so that calls queue behind."""


def instances() -> tuple[Instance, ...]:
    """Every instance that `timed` can launch."""
    return (DELAY,)


def timed(compiler: Compiler, function: Callable[[int], Any], repeat: int) -> list[float]:
    """Seconds of each call on the device, by events on the stream; see `Backend.timed`."""
    held = min(repeat * HELD_PER_CALL, HELD_AT_MOST)
    compiler(DELAY)((1,), (1,), (np.uint64(held * 1e9),))
    marks = [cp.cuda.Event() for _ in range(repeat + 1)]
    marks[0].record()
    for call in range(repeat):
        function(call)
        marks[call + 1].record()
    marks[-1].synchronize()
    pairs = pairwise(marks)
    return [cp.cuda.get_elapsed_time(start, stop) / 1e3 for start, stop in pairs]
