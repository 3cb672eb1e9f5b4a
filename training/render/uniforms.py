"""Numbers that follow from a seed alone, many seeds at a time and the same on every machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def uniforms(seeds: NDArray[np.int64], count: int, stream: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) that look random: SplitMix64 of the seed, the stream and the place.

    Args:
        seeds: Shape (n,).
        count: Numbers for each seed.
        stream: Tells apart what the numbers are for.

    Returns:
        Shape (n, count).
    """
    step = np.uint64(0x9E3779B97F4A7C15)
    place = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(stream * 4096)
    # Whole numbers wrap around on purpose.
    mixed = _mix(seeds.astype(np.uint64)[:, None] * step) + place[None, :] * step
    return (_mix(mixed) >> np.uint64(11)).astype(np.float64) / 2.0**53


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def between(u: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Numbers in [0, 1) spread over [low, high)."""
    return low + u * (high - low)
