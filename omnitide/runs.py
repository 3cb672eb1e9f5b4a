"""Runs of equal neighbours in an array: where they start and how long they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def run_starts(*columns: NDArray[Any]) -> NDArray[np.int64]:
    """Index at which each run of equal values of all columns starts, shape (num_runs,)."""
    count = len(columns[0])
    first = np.ones(count, np.bool_)
    if count:
        np.not_equal(columns[0][1:], columns[0][:-1], out=first[1:])
        for column in columns[1:]:
            first[1:] |= column[1:] != column[:-1]
    return first.nonzero()[0]


def run_lengths(starts: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Lengths of runs that start at `starts`, the last one ending at `count`; (num_runs,)."""
    lengths = np.empty(len(starts), np.int64)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    if len(starts):
        lengths[-1] = count - starts[-1]
    return lengths
