"""Still pictures, then a film or a recording, as one run of chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from omnitide.config import MediaOptions
from omnitide.media.chunk import MediaChunk
from omnitide.media.reader import MediaReader, open_media
from omnitide.media.source import Source
from omnitide.media.still import read_image


class MediaStream:
    """Opened media. Close with a `with` block."""

    def __init__(
        self,
        *,
        video: Source | None = None,
        audio: Source | None = None,
        images: Sequence[Source] = (),
        options: MediaOptions | None = None,
    ) -> None:
        """Open every file, and read the pictures and the first frames of the stream.

        Args:
            video: A film; its own sound is heard unless `audio` is given.
            audio: A recording: the sound of `video`, or a stream of its own.
            images: Still pictures, shown before the stream.
            options: How the stream is cut.

        Raises:
            MediaError: A file is missing, is no media, or holds nothing.
        """
        self._pictures = [read_image(path) for path in images]
        self._reader: MediaReader | None = None
        if video is not None:
            self._reader = open_media(video, options, sound=audio)
        elif audio is not None:
            self._reader = open_media(audio, options, video=False)

    @property
    def seconds(self) -> float | None:
        """Length of the stream as its header says; None where it says nothing."""
        return None if self._reader is None else self._reader.info.seconds

    @property
    def broken(self) -> str | None:
        """Where and why the stream broke off, or None. To be asked after the last chunk."""
        return None if self._reader is None else self._reader.broken

    @property
    def damage(self) -> str | None:
        """What of the stream could not be decoded and was passed over so far, or None."""
        return None if self._reader is None else self._reader.damage

    def __iter__(self) -> Iterator[MediaChunk]:
        """All chunks, once. Pictures are let go as they are handed out."""
        while self._pictures:
            yield self._pictures.pop(0)
        if self._reader is not None:
            yield from self._reader

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._reader is not None:
            self._reader.close()
