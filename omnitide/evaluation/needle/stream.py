"""A made-up stream: filler, a fact for a few seconds, and filler again.

Pictures and sound are made when they are needed and are the same each time, so a stream of hours
takes no memory, and every policy and every worker sees the same one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from types import TracebackType
from typing import Self

import numpy as np

from omnitide.config import MediaOptions
from omnitide.evaluation.needle import painting, sound
from omnitide.evaluation.needle.fact import HEARD, SEEN
from omnitide.media.chunk import SAMPLE_RATE, Frame, MediaChunk


@dataclass(frozen=True, slots=True)
class NeedleStream:
    """A `ClipSource` that makes its chunks.

    Attributes:
        kind: A name of `fact.KINDS`; one that is neither seen nor heard leaves filler alone.
        answer: The fact.
        start, stop: Seconds between which it is shown; what is said begins at `start`.
        seconds: Length.
        size: Width and height of the picture, pixels.
        seed: Of the filler.
    """

    kind: str
    answer: str
    start: float
    stop: float
    seconds: float
    size: int
    seed: int

    def open(self, options: MediaOptions) -> OpenNeedle:
        """Its chunks, cut as `media.reader.MediaReader` cuts a film.

        Raises:
            MediaError: Speech is needed and there is no tool for it.
        """
        return OpenNeedle(self, options)

    def picture(self, second: float) -> Frame:
        """What is shown at a second, shape (size, size, 3)."""
        ground = painting.paint_ground(second, self.size, self.seed)
        if self.kind not in SEEN or not self.start <= second < self.stop:
            return ground
        if self.kind == "shape":
            return painting.paint_shape(ground, self.answer)
        return painting.paint_words(ground, self.answer.upper())

    def samples(self, first: int, stop: int) -> sound.Samples:
        """Samples [first, stop) at 16 kHz, noise with what is said in it."""
        out = sound.noise(first, stop - first, self.seed)
        if self.kind in HEARD:
            said = sound.beeps(int(self.answer)) if self.kind == "tone" else sound.say(self.answer)
            begin = round(self.start * SAMPLE_RATE)
            low, high = max(begin, first), min(begin + len(said), stop)
            if low < high:
                out[low - first : high - first] += said[low - begin : high - begin]
        return np.clip(out, -1, 1)


class OpenNeedle:
    """A stream being made, an `OpenClip`."""

    broken: str | None = None
    damage: str | None = None

    def __init__(self, stream: NeedleStream, options: MediaOptions) -> None:
        self._stream = stream
        self._fps = Fraction(options.fps).limit_denominator(1_000_000)
        self._length = Fraction(options.chunk_seconds).limit_denominator(1_000_000)
        if stream.kind == "speech":
            sound.say(stream.answer)  # a missing tool shows before the model runs

    def __iter__(self) -> Iterator[MediaChunk]:
        end = Fraction(self._stream.seconds).limit_denominator(1_000_000)
        for index in range(math.ceil(end / self._length)):
            start, stop = index * self._length, min((index + 1) * self._length, end)
            numbers = range(math.ceil(start * self._fps), math.ceil(stop * self._fps))
            times = tuple(float(number / self._fps) for number in numbers)
            yield MediaChunk(
                float(start),
                float(stop),
                tuple(self._stream.picture(second) for second in times),
                times,
                self._stream.samples(round(start * SAMPLE_RATE), round(stop * SAMPLE_RATE)),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is held."""
