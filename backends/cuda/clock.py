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

HELD_PER_CALL = 5e-4
"""Seconds for which the stream is held up for each call, so that calls queue behind."""

CALLS_AT_ONCE = 32
"""Calls that queue; the driver's own queue is bounded."""


def instances() -> tuple[Instance, ...]:
    """Every instance that `timed` can launch."""
    return (DELAY,)


def timed(compiler: Compiler, function: Callable[[int], Any], repeat: int) -> list[float]:
    """Seconds of each call on the device, by events on the stream; see `Backend.timed`."""
    delay = compiler(DELAY)
    seconds: list[float] = []
    for first in range(0, repeat, CALLS_AT_ONCE):
        calls = range(first, min(first + CALLS_AT_ONCE, repeat))
        marks = [cp.cuda.Event() for _ in range(len(calls) + 1)]
        delay((1,), (1,), (np.uint64(len(calls) * HELD_PER_CALL * 1e9),))
        marks[0].record()
        for call, mark in zip(calls, marks[1:], strict=True):
            function(call)
            mark.record()
        marks[-1].synchronize()
        seconds += (cp.cuda.get_elapsed_time(a, b) / 1e3 for a, b in pairwise(marks))
    return seconds
