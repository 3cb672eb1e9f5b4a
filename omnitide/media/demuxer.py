"""Packets of one container, handed to each track as it asks.

A track that asks pulls packets from the container; those of the other track wait in its queue.
Waiting is bounded: when a track has brought nothing for `PATIENCE` seconds of stream in which the
other did go on, it counts as silent for now and the asker gets None. A file opened once for each
track never waits, so late or badly interleaved tracks of a file cost no memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Discard
from av.video.stream import VideoStream

from omnitide.media.source import reason_of

AVStream = VideoStream | AudioStream

PATIENCE = 10.0
"""Seconds by which one track may run ahead of another one in a shared container."""


class Demuxer:
    """Reads a container for one or two streams.

    Attributes:
        ended: Nothing more comes from the container.
        failure: Why reading ended before the end, in FFmpeg's words; None if it did not.
    """

    def __init__(self, container: InputContainer, streams: Iterable[AVStream]) -> None:
        chosen = {stream.index: stream for stream in streams}
        for stream in container.streams:
            if stream.index not in chosen:
                stream.discard = Discard.all
        self.ended = False
        self.failure: str | None = None
        self._packets = container.demux(*chosen.values())
        self._queues: dict[int, deque[Packet[Any]]] = {index: deque() for index in chosen}
        self._reached: dict[int, float] = {}

    def read(self, stream: AVStream) -> Packet[Any] | None:
        """The next packet of a stream; None at the end, or if it is silent for now."""
        queue = self._queues[stream.index]
        while not queue:
            if self.ended or self._silent(stream.index):
                return None
            self._pull()
        return queue.popleft()

    def _silent(self, index: int) -> bool:
        reached = self._reached
        return index in reached and max(reached.values()) - reached[index] > PATIENCE

    def _pull(self) -> None:
        try:
            packet = next(self._packets, None)
        except FFmpegError as error:
            self.failure = reason_of(error)
            packet = None
        except IndexError:
            # Tracks that appeared after the header: PyAV trips over them once all has been read.
            packet = None
        if packet is None:
            self.ended = True
            return
        if not packet.size:
            return  # PyAV's order to flush a decoder; each track flushes its own.
        self._queues[packet.stream.index].append(packet)
        if packet.dts is not None and packet.time_base is not None:
            second = float(packet.dts * packet.time_base)
            if not self._reached:
                self._reached = dict.fromkeys(self._queues, second)
            index = packet.stream.index
            self._reached[index] = max(self._reached[index], second)
