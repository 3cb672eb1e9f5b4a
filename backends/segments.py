"""Runs of equally long segments, so that an encoder's windows go through attention as one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive segments of one size.

    Attributes:
        count: Segments.
        length, key_length: Queries and keys of each.
        start, key_start: First query and first key of the first segment.
    """

    count: int
    length: int
    key_length: int
    start: int
    key_start: int

    @property
    def queries(self) -> slice:
        """The queries of all segments."""
        return slice(self.start, self.start + self.count * self.length)

    @property
    def keys(self) -> slice:
        """The keys of all segments."""
        return slice(self.key_start, self.key_start + self.count * self.key_length)


def equal_runs(lengths: Sequence[int], key_lengths: Sequence[int]) -> Iterator[Run]:
    """The runs of segments with so many queries and so many keys each, in order."""
    start = key_start = 0
    for (length, key_length), group in groupby(zip(lengths, key_lengths, strict=True)):
        run = Run(len(list(group)), length, key_length, start, key_start)
        yield run
        start, key_start = run.queries.stop, run.keys.stop
