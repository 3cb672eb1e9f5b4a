"""Decoded frames of one stream with their times, whatever state the stream is in.

Invariant: no error of a decoder or of the container leaves a feed. What could be decoded is handed
out in order, the rest is counted; `broken` and `damage` say what happened.
"""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction
from typing import Any, Generic, TypeVar

from av.audio.frame import AudioFrame
from av.error import FFmpegError
from av.packet import Packet
from av.video.frame import VideoFrame

from omnitide.media.demuxer import AVStream, Demuxer

MAX_JUMP = 3600.0
"""Seconds by which time may leap ahead from one frame to the next."""

MAX_RETURN = 10.0
"""Seconds by which time may fall back."""

_SHORTFALL = 0.25
_CLOCK = re.compile(r"(\d+):(\d\d):(\d\d\.\d+)")

F = TypeVar("F", VideoFrame, AudioFrame)


class Feed(Generic[F]):
    """Reads and decodes one stream, a frame at a time.

    Attributes:
        stream: The stream.
        kind: "picture" or "sound", for messages.
        ended: No frame follows.
        first: Time of the first frame in seconds of the container; None before there is one.
    """

    def __init__(self, demuxer: Demuxer, stream: AVStream, kind: str) -> None:
        self.stream = stream
        self.kind = kind
        self.ended = False
        self.first: float | None = None
        self._demuxer = demuxer
        self._frames: deque[F] = deque()
        self._flushed = False
        self._time = 0.0
        self._length = 0.0
        self._damaged = 0
        self._damaged_at = 0.0
        self._leap: str | None = None
        # Asked now: a stream may not be touched once its container is closed.
        self._announced_end = _announced_end(stream)
        self._stream_tick = stream.time_base or Fraction(0)

    def prime(self) -> float | None:
        """Decode up to the first frame, which `read` hands out later, and return its time."""
        self._fill()
        if self._frames and self.first is None:
            self.first = self._time = self._time_of(self._frames[0])
        return self.first

    def read(self) -> tuple[float, F] | None:
        """The next frame and its time in seconds of the container.

        Returns:
            None if the stream is over (`ended`), or silent for now.
        """
        self._fill()
        if not self._frames:
            return None
        frame = self._frames.popleft()
        time = self._time_of(frame)
        if self.first is None:
            self.first = time
        elif not self._time - MAX_RETURN <= time <= self._time + MAX_JUMP:
            self._leap = f"time leaps by {time - self._time:+.1f} s"
            self._frames.clear()
            self.ended = True
            return None
        self._time, self._length = time, self.length_of(frame)
        return time, frame

    def peek(self) -> F | None:
        """The frame that `read` hands out next, as far as it is decoded."""
        return self._frames[0] if self._frames else None

    def length_of(self, frame: F) -> float:
        """Seconds for which a frame lasts by its own account; 0 where it has none."""
        return float(frame.duration * self._tick(frame)) if frame.duration else 0.0

    def broken(self, origin: float) -> str | None:
        """Where, counted from `origin`, and why the stream broke off; None if it did not."""
        why = self._why_broken()
        if why is None:
            return None
        reached = max(self._time + self._length - origin, 0.0)
        return f"{self.kind} broke off at {reached:.1f} s: {why}"

    def damage(self, origin: float) -> str | None:
        """What could not be decoded so far, with times counted from `origin`; None: nothing."""
        if not self._damaged:
            return None
        place = max(self._damaged_at - origin, 0.0)
        packets = "1 packet" if self._damaged == 1 else f"{self._damaged} packets"
        return f"{packets} of {self.kind} damaged, the first at {place:.1f} s"

    def _why_broken(self) -> str | None:
        if self._leap is not None:
            return self._leap
        if not self.ended:
            return None
        if self._demuxer.failure is not None:
            return self._demuxer.failure
        end = self._announced_end
        short = end is not None and self._time + self._length < end - _SHORTFALL
        return "its header announces more" if short else None

    def _fill(self) -> None:
        while not self._frames and not self.ended:
            packet = None if self._flushed else self._demuxer.read(self.stream)
            if packet is not None:
                self._decode(packet)
            elif self._flushed:
                self.ended = True
            elif self._demuxer.ended:
                self._flushed = True
                self._decode(None)
            else:
                return

    def _decode(self, packet: Packet[Any] | None) -> None:
        try:
            self._frames.extend(self.stream.decode(packet))  # type: ignore[arg-type]
        except FFmpegError:
            if not self._damaged:
                self._damaged_at = self._time
                if packet is not None and packet.pts is not None and packet.time_base:
                    self._damaged_at = float(packet.pts * packet.time_base)
            self._damaged += 1

    def _time_of(self, frame: F) -> float:
        """A frame's own time; without one it follows the frame before."""
        if frame.pts is not None:
            return float(frame.pts * self._tick(frame))
        return self._time + self._length

    def _tick(self, frame: F) -> Fraction:
        """Seconds of a tick. PyAV leaves it out of the frames that a flushed decoder gives."""
        return frame.time_base or self._stream_tick


def _announced_end(stream: AVStream) -> float | None:
    """End of a stream by its header, where a container states it for each track. Seconds."""
    names = stream.container.format.name.split(",")
    if "mov" in names and stream.duration:
        return float((stream.duration + (stream.start_time or 0)) * (stream.time_base or 0))
    clock = _CLOCK.fullmatch(stream.metadata.get("DURATION", ""))
    if "matroska" in names and clock is not None:
        hours, minutes, seconds = clock.groups()
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    return None
