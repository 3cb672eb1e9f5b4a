"""The media of a request as one run of chunks: still pictures first, then the stream."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from omnitide.cli.request import Request
from omnitide.embedded import default_clip
from omnitide.media.chunk import MediaChunk
from omnitide.media.reader import MediaReader, open_media
from omnitide.media.still import read_image


class Sources:
    """Opened media. Close with a `with` block."""

    def __init__(self, request: Request) -> None:
        """Open every file, and read the pictures and the first frames of the stream.

        Raises:
            MediaError: A file is missing, is no media, or holds nothing.
        """
        self._pictures = [read_image(path) for path in request.images]
        self._reader = _open_stream(request)

    @property
    def seconds(self) -> float | None:
        """Length of the stream as its header says; None where it says nothing."""
        return None if self._reader is None else self._reader.info.seconds

    @property
    def broken(self) -> str | None:
        """Where and why the stream broke off, or None. To be asked after the last chunk."""
        return None if self._reader is None else self._reader.broken

    def chunks(self) -> Iterator[MediaChunk]:
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


def _open_stream(request: Request) -> MediaReader | None:
    if request.video is not None:
        return open_media(request.video, request.media, sound=request.audio)
    if request.audio is not None:
        return open_media(request.audio, request.media, video=False)
    if request.model is None and not request.has_media:
        return open_media(default_clip(), request.media)
    return None
