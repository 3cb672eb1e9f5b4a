"""A film, a recording or a live stream, cut into timed chunks while it is read.

One clock for picture and sound: 0 is where the earlier of the two tracks starts, and both are
placed by their time stamps. Nothing but the chunk in the making is held, so a stream may be
endless; the length in its header is never relied on.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from fractions import Fraction
from types import TracebackType
from typing import Self

from omnitide.config import MediaOptions
from omnitide.errors import ConfigError
from omnitide.media.chunk import SAMPLE_RATE, Frame, MediaChunk
from omnitide.media.info import MediaInfo
from omnitide.media.picture import PictureTrack
from omnitide.media.sound import SoundTrack
from omnitide.media.source import Source
from omnitide.media.tracks import Tracks, open_tracks

PADDING = 0.05
"""A rest of fewer seconds, without a picture, is filling of the sound's codec and left out."""

OVERSIZE = 4
"""Frames are handed on with at most this many times `MediaOptions.max_pixels`.

The encoder scales down to `max_pixels` with a better filter; this bounds what waits for it.
"""


def open_media(
    source: Source,
    options: MediaOptions | None = None,
    *,
    video: bool = True,
    audio: bool = True,
    sound: Source | None = None,
) -> MediaReader:
    """Open a file or URL for reading in chunks; reads up to the first frame of each track.

    Args:
        source: A path, or a URL as `omnitide.media.source` allows.
        options: Frame rate, chunk length, pixels; None takes the defaults.
        video, audio: False leaves the track out.
        sound: A second file or URL whose sound takes the place of that of `source`. Each of the
            two starts at 0.

    Raises:
        MediaError: The source is missing, a directory, empty or no media; it has neither of the
            wanted tracks; its codec isn't supported; its length is 0; nothing can be decoded.
        ConfigError: Neither track is wanted, or `sound` is given and `audio` is False.
    """
    if not (video or audio):
        raise ConfigError("[media] picture or sound must be wanted, got neither")
    if sound is not None and not audio:
        raise ConfigError("[media] a sound file is given and sound is not wanted; drop one")
    with ExitStack() as stack:
        tracks = open_tracks(stack, source, video=video, audio=audio, sound=sound)
        return MediaReader(tracks, options or MediaOptions(), stack.pop_all())


def probe(source: Source) -> MediaInfo:
    """Facts about a file or URL, without reading it.

    Raises:
        MediaError: As `open_media`.
    """
    with open_media(source) as reader:
        return reader.info


class MediaReader:
    """Iterates over the chunks of a source, once. Made by `open_media`.

    Chunk j spans the seconds `[j, j + 1) * chunk_seconds`; the last one ends where the longer
    track ends. Its frames are those shown at the instants `k / fps` inside it, k an integer, so
    all chunks of a constant picture have equally many. There are none before the picture starts
    (one starting less than half a period after an instant is taken to be there) and after it
    ends. If the source has sound, every chunk has samples, silence before it starts and after
    it ends.

    A source that breaks off ends the iteration; `broken` then says where and why. Packets that
    can't be decoded are passed over: silence, and a picture that stands still; `damage` tells.

    Closes its files at the end, on an error, on leaving a `with` block, and when dropped.
    """

    def __init__(self, tracks: Tracks, options: MediaOptions, files: ExitStack) -> None:
        self._tracks = tracks
        self._files = files
        self._next = 0
        self._fps = Fraction(options.fps).limit_denominator(1_000_000)
        self._length = Fraction(options.chunk_seconds).limit_denominator(1_000_000)
        self._picture = self._sound = None
        if tracks.picture is not None:
            self._picture = PictureTrack(
                tracks.picture,
                tracks.picture_origin,
                early=0.5 / options.fps,
                max_pixels=options.max_pixels * OVERSIZE,
            )
        if tracks.sound is not None:
            self._sound = SoundTrack(tracks.sound, tracks.sound_origin)
        self._closed = False

    @property
    def info(self) -> MediaInfo:
        """Facts from the header and the first frames."""
        return self._tracks.info

    @property
    def broken(self) -> str | None:
        """Where and why a track broke off in what was read so far; None if none did."""
        return self._tracks.broken()

    @property
    def damage(self) -> str | None:
        """What could not be decoded and was passed over so far; None if nothing."""
        return self._tracks.damage()

    def close(self) -> None:
        """Close the files; iteration then ends. May be called again."""
        self._closed = True
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MediaChunk:
        # No generator: its frame would hold the last chunk until the next one is asked for.
        if self._closed:
            raise StopIteration
        chunk = self._read_chunk()
        if chunk is None:
            self.close()
            raise StopIteration
        self._next += 1
        return chunk

    def _read_chunk(self) -> MediaChunk | None:
        start, stop = self._next * self._length, (self._next + 1) * self._length
        frames, times = self._frames(start, stop)
        if self._sound is not None:
            self._sound.advance(round(stop * SAMPLE_RATE))
        end = self._end()
        until = float(stop) if end is None else min(float(stop), end)
        rest = math.inf if end is None else end - float(start)
        if not frames and (rest <= 0 or (rest < PADDING and self._next > 0)):
            return None
        samples = None
        if self._sound is not None:
            samples = self._sound.take(round(start * SAMPLE_RATE), round(until * SAMPLE_RATE))
        return MediaChunk(float(start), until, tuple(frames), tuple(times), samples)

    def _frames(self, start: Fraction, stop: Fraction) -> tuple[list[Frame], list[float]]:
        frames: list[Frame] = []
        times: list[float] = []
        if self._picture is None:
            return frames, times
        for index in range(math.ceil(start * self._fps), math.ceil(stop * self._fps)):
            second = float(index / self._fps)
            frame = self._picture.at(second)
            if frame is not None:
                frames.append(frame)
                times.append(second)
        self._picture.advance(float(stop))
        return frames, times

    def _end(self) -> float | None:
        """Second at which the longer track ends; None while it isn't known."""
        ends = [track.end for track in (self._picture, self._sound) if track is not None]
        known = [end for end in ends if end is not None]
        return max(known) if len(known) == len(ends) else None
