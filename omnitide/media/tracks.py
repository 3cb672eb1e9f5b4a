"""Choosing, opening and starting the tracks of one or two sources."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.codec.context import ThreadType
from av.container import InputContainer
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from omnitide.errors import MediaError
from omnitide.media.demuxer import Demuxer
from omnitide.media.display import shown_size
from omnitide.media.feed import Feed
from omnitide.media.info import MediaInfo
from omnitide.media.source import Source, is_regular_file, name_of, open_container

_NO_FILM = Disposition.attached_pic | Disposition.timed_thumbnails

S = TypeVar("S", VideoStream, AudioStream)
AnyFeed = Feed[VideoFrame] | Feed[AudioFrame]


@dataclass(frozen=True, slots=True)
class Tracks:
    """The tracks of a film, decoded up to their first frame.

    Attributes:
        picture, sound: None where there is nothing to read.
        picture_origin, sound_origin: Second of the feed's container that is 0 on the clock.
        lost: Tracks that are there but gave nothing.
        info: Facts.
    """

    picture: Feed[VideoFrame] | None
    sound: Feed[AudioFrame] | None
    picture_origin: float
    sound_origin: float
    lost: tuple[AnyFeed, ...]
    info: MediaInfo

    def broken(self) -> str | None:
        """Where and why a track broke off; None if none did."""
        return _joined(feed.broken(origin) for feed, origin in self._feeds())

    def damage(self) -> str | None:
        """What could not be decoded of any track so far; None if nothing."""
        return _joined(feed.damage(origin) for feed, origin in self._feeds())

    def _feeds(self) -> list[tuple[AnyFeed, float]]:
        """Every feed with the start of its track."""
        feeds: list[tuple[AnyFeed, float]] = [(feed, 0.0) for feed in self.lost]
        if self.picture is not None:
            feeds.append((self.picture, self.picture_origin))
        if self.sound is not None:
            feeds.append((self.sound, self.sound_origin))
        return feeds


def open_tracks(
    stack: ExitStack, source: Source, *, video: bool, audio: bool, sound: Source | None
) -> Tracks:
    """Open the picture of a source, and the sound of it or of a second source.

    Args:
        stack: Gets every container that is opened, to close it.
        source, video, audio, sound: See `open_media`.

    Raises:
        MediaError: See `open_media`.
    """
    main = stack.enter_context(open_container(source))
    beside = None if sound is None else stack.enter_context(open_container(sound))
    seen = _choose(list(main.streams.video), source) if video else None
    heard = None
    if audio:
        heard = _choose(list((beside or main).streams.audio), source if sound is None else sound)
    _check_found(source, sound, seen is not None, heard is not None, video, audio)

    if seen is not None and heard is not None and beside is None and is_regular_file(source):
        # One container for each track where it can be had: then neither waits for the other.
        again = stack.enter_context(open_container(source))
        heard = next(stream for stream in again.streams.audio if stream.index == heard.index)
    if seen is not None and is_regular_file(source):
        # Decoding whole frames in parallel holds some back, which a live stream should not.
        seen.thread_type = ThreadType.AUTO
    picture, hearing = _feeds(seen, heard)
    feeds: list[AnyFeed] = [feed for feed in (picture, hearing) if feed is not None]
    for feed in feeds:
        feed.prime()
    lost = tuple(feed for feed in feeds if feed.first is None and feed.ended)
    _check_started(source, feeds, lost)

    origin = _origin(main, [feed for feed in feeds if beside is None or feed is picture])
    kept_picture = None if picture in lost else picture
    kept_sound = None if hearing in lost else hearing
    return Tracks(
        picture=kept_picture,
        sound=kept_sound,
        picture_origin=origin,
        sound_origin=origin if beside is None else _origin(beside, feeds[-1:]),
        lost=lost,
        info=_info(main, beside, kept_picture, kept_sound),
    )


def _choose(streams: Sequence[S], source: Source) -> S | None:
    """The default track of a kind, or the first; cover pictures are none."""
    tracks = [stream for stream in streams if not stream.disposition & _NO_FILM]
    if not tracks:
        return None
    chosen = next((t for t in tracks if t.disposition & Disposition.default), tracks[0])
    if chosen.codec_context is None:
        what = "picture" if chosen.type == "video" else "sound"
        raise MediaError(
            f"[media] the {what} of {name_of(source)} is coded in a way that this FFmpeg can't "
            "decode; convert it, to H.264 and AAC for example"
        )
    return chosen


def _check_found(
    source: Source, sound: Source | None, seen: bool, heard: bool, video: bool, audio: bool
) -> None:
    if sound is not None and not heard:
        raise MediaError(f"[media] {name_of(sound)} has no sound; leave it out")
    if sound is not None and not seen:
        raise MediaError(
            f"[media] {name_of(source)} has no picture to go with the sound of {name_of(sound)}; "
            "give one of them alone"
        )
    if not seen and not heard:
        missing = "neither picture nor sound" if video and audio else "no sound"
        raise MediaError(
            f"[media] {name_of(source)} has {missing if audio else 'no picture'}; "
            "give a film or a recording"
        )


def _feeds(
    seen: VideoStream | None, heard: AudioStream | None
) -> tuple[Feed[VideoFrame] | None, Feed[AudioFrame] | None]:
    streams = [stream for stream in (seen, heard) if stream is not None]
    containers = {id(stream.container): stream.container for stream in streams}
    demuxers = {
        key: Demuxer(container, [s for s in streams if id(s.container) == key])
        for key, container in containers.items()
        if isinstance(container, InputContainer)
    }
    return (
        None if seen is None else Feed(demuxers[id(seen.container)], seen, "picture"),
        None if heard is None else Feed(demuxers[id(heard.container)], heard, "sound"),
    )


def _check_started(source: Source, feeds: Sequence[AnyFeed], lost: Sequence[AnyFeed]) -> None:
    if len(lost) < len(feeds):
        return
    troubles = _joined(text for feed in feeds for text in (feed.broken(0.0), feed.damage(0.0)))
    if troubles:
        raise MediaError(
            f"[media] nothing of {name_of(source)} can be decoded ({troubles}); "
            "fetch or record it again"
        )
    raise MediaError(
        f"[media] {name_of(source)} has a length of 0, without a frame or a sample; "
        "fetch or record it again"
    )


def _origin(container: InputContainer, feeds: Sequence[AnyFeed]) -> float:
    """Where the first of all tracks of a container starts, in its own seconds.

    Tracks that are read tell by their first frame, the others by the header.
    """
    starts = [feed.first for feed in feeds if feed.first is not None]
    read = {feed.stream.index for feed in feeds}
    others: list[VideoStream | AudioStream] = [*container.streams.video, *container.streams.audio]
    for stream in others:
        film = not stream.disposition & _NO_FILM
        if film and stream.index not in read and stream.start_time is not None:
            starts.append(float(stream.start_time * (stream.time_base or 0)))
    return min(starts, default=0.0)


def _info(
    main: InputContainer,
    beside: InputContainer | None,
    picture: Feed[VideoFrame] | None,
    sound: Feed[AudioFrame] | None,
) -> MediaInfo:
    lengths = [c.duration for c in (main, beside) if c is not None and c.duration is not None]
    width = height = fps = rate = channels = None
    if picture is not None and isinstance(picture.stream, VideoStream):
        stream = picture.stream
        frame = picture.peek()
        width, height = stream.width, stream.height
        if frame is not None:
            width, height = shown_size(frame, stream.sample_aspect_ratio)
        fps = float(stream.average_rate) if stream.average_rate else None
    if sound is not None and isinstance(sound.stream, AudioStream):
        rate, channels = sound.stream.rate, sound.stream.channels
    return MediaInfo(
        seconds=max(lengths) / 1_000_000 if lengths else None,
        has_picture=picture is not None,
        has_sound=sound is not None,
        width=width,
        height=height,
        fps=fps,
        sample_rate=rate,
        channels=channels,
    )


def _joined(told: Iterable[str | None]) -> str | None:
    return "; ".join(text for text in told if text is not None) or None
