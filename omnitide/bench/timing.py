"""Times of repeated calls, and what of them is reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec

import numpy as np

from omnitide.backend import Backend

P = ParamSpec("P")

WARM_UP = 3
"""Calls before the timed ones: kernels are compiled, buffers allocated, clocks raised."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and the middle four fifths of repeated times, seconds."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Of at least one time."""
        p10, median, p90 = np.percentile(np.asarray(seconds, float), [10, 50, 90])
        return cls(float(median), float(p10), float(p90))

    def named(self, name: str, factor: float) -> dict[str, float]:
        """As fields of a row, `name`, `name_p10` and `name_p90`, in another unit."""
        parts = {name: self.median, f"{name}_p10": self.p10, f"{name}_p90": self.p90}
        return {key: value * factor for key, value in parts.items()}


def wall(
    backend: Backend, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> float:
    """Seconds of one call by the host's clock, the device's work included.

    Call on the backend's thread, with the device idle.
    """
    started = time.perf_counter()
    function(*args, **kwargs)
    backend.synchronize()
    return time.perf_counter() - started
