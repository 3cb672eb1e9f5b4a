"""Runs of equally long segments, so that an encoder's windows go through attention as one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby


def equal_runs(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(start token, number of segments, length of each) of every run, in order."""
    start = 0
    for length, run in groupby(lengths):
        count = len(list(run))
        yield start, count, length
        start += count * length
