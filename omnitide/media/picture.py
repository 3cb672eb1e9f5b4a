"""The picture track: which frame is shown at an instant.

Invariant: the frame at an instant is the last one whose time is not after it, so frames are
doubled or left out as the two rates need, and a variable rate needs no care.
"""

from __future__ import annotations

import math

from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from omnitide.media.chunk import Frame
from omnitide.media.display import Screen
from omnitide.media.feed import Feed


class PictureTrack:
    """Frames of one video stream, asked for in ascending order of time.

    Args:
        feed: Decoded frames.
        origin: Second of the container that is 0 here.
        early: Seconds by which an instant may precede the first frame and still show it. Tracks
            of one film often start a few milliseconds apart.
        max_pixels: See `Screen`.
    """

    def __init__(
        self, feed: Feed[VideoFrame], origin: float, early: float, max_pixels: int
    ) -> None:
        assert isinstance(feed.stream, VideoStream)
        self._feed = feed
        self._origin = origin
        self._early = early
        self._screen = Screen(feed.stream.sample_aspect_ratio, max_pixels)
        # Containers round times to ticks; a frame half a tick late is on time.
        base = feed.stream.time_base
        self._slack = max(float(base) / 2 if base else 0.0, 1e-6)
        self._current: tuple[float, VideoFrame] | None = None
        self._upcoming: tuple[float, VideoFrame] | None = None
        self._pixels: Frame | None = None
        self._latest = -math.inf
        rate = feed.stream.average_rate
        self._length = float(1 / rate) if rate else 0.0

    @property
    def end(self) -> float | None:
        """Second at which the last frame stops being shown; None while it isn't known."""
        if self._upcoming is not None or not self._feed.ended:
            return None
        if self._current is None:
            return 0.0
        second, frame = self._current
        return second + (self._feed.length_of(frame) or self._length)

    def advance(self, second: float) -> None:
        """Read up to the first frame after `second`."""
        while True:
            if self._upcoming is None:
                self._upcoming = self._read()
            if self._upcoming is None or self._upcoming[0] > second + self._slack:
                return
            self._current, self._upcoming = self._upcoming, None
            self._pixels = None

    def at(self, second: float) -> Frame | None:
        """The picture shown at an instant; None before the first and after the last frame.

        Two instants that show one frame get the same array. It must not be written to.
        """
        self.advance(second)
        first = self._upcoming
        if self._current is None and first is not None and first[0] - second <= self._early:
            self._current, self._upcoming = first, None
        end = self.end
        if self._current is None or (end is not None and second >= end - self._slack):
            return None
        if self._pixels is None:
            self._pixels = self._screen.show(self._current[1])
            self._pixels.flags.writeable = False
        return self._pixels

    def _read(self) -> tuple[float, VideoFrame] | None:
        item = self._feed.read()
        if item is None:
            return None
        # Damaged time stamps may fall back; what was shown is not taken back.
        self._latest = max(self._latest, item[0] - self._origin)
        return self._latest, item[1]
