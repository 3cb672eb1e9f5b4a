"""The clip of a benchmark: a film on disk, or a stretch of one, with or without its sound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from omnitide.config import MediaOptions
from omnitide.errors import ConfigError
from omnitide.media.chunk import SAMPLE_RATE, MediaChunk

LEAST_SOUND = 0.1
"""Seconds; a shorter rest of a chunk that was cut, without a picture, is left out."""


@dataclass(frozen=True, slots=True)
class Film:
    """A `ClipSource` that reads files.

    Attributes:
        path: The film.
        start, stop: Second at which it begins to be shown, and before which it ends; None: its own
            end. Seconds stay those of the file.
        sound: Whether its sound is heard.
        audio: A second file whose sound takes the place of its own.
    """

    path: str
    start: float = 0.0
    stop: float | None = None
    sound: bool = True
    audio: str | None = None

    def __post_init__(self) -> None:
        if not self.start >= 0:
            raise ConfigError(f"[film] start must be at least 0 seconds, got {self.start:g}")
        if self.stop is not None and not self.stop > self.start:
            raise ConfigError(
                f"[film] stop must lie behind start, got {self.start:g} to {self.stop:g}"
            )

    def open(self, options: MediaOptions) -> OpenFilm:
        """Open the files.

        Raises:
            MediaError: One can't be read.
        """
        return OpenFilm(self, options)


class OpenFilm:
    """A film being read: only its stretch is handed out, an `OpenClip`."""

    def __init__(self, film: Film, options: MediaOptions) -> None:
        from omnitide.media.reader import open_media  # brings in the media libraries

        self._film = film
        self._reader = open_media(film.path, options, audio=film.sound, sound=film.audio)
        self._cut = False

    @property
    def broken(self) -> str | None:
        """Where and why the film broke off inside its stretch, or None."""
        return None if self._cut else self._reader.broken

    @property
    def damage(self) -> str | None:
        """What could not be decoded and was passed over so far, or None."""
        return self._reader.damage

    def __iter__(self) -> Iterator[MediaChunk]:
        for chunk in self._reader:
            stop = self._film.stop
            if stop is not None and chunk.start >= stop:
                self._cut = True
                return
            if chunk.stop > self._film.start:
                part = within(chunk, self._film.start, stop)
                if part.frames or (part.samples is not None and part.seconds >= LEAST_SOUND):
                    yield part

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reader.close()


def within(chunk: MediaChunk, start: float, stop: float | None) -> MediaChunk:
    """The part of a chunk in `[start, stop)` that it touches; itself if that is all of it."""
    first = max(chunk.start, start)
    last = chunk.stop if stop is None else min(chunk.stop, stop)
    if (first, last) == (chunk.start, chunk.stop):
        return chunk
    shown = [
        (frame, second)
        for frame, second in zip(chunk.frames, chunk.frame_times, strict=True)
        if first <= second < last
    ]
    samples = chunk.samples
    if samples is not None:
        begin, end = (round((second - chunk.start) * SAMPLE_RATE) for second in (first, last))
        samples = samples[begin:end]
    return replace(
        chunk,
        start=first,
        stop=last,
        frames=tuple(frame for frame, _ in shown),
        frame_times=tuple(second for _, second in shown),
        samples=samples,
    )
