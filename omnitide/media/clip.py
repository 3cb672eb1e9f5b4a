"""Synthetic films: a real encoded file whose content at every moment is known.

Content is a pure function of time, painted and played piece by piece, so a long film needs no
more memory than a short one. The embedded default and the tests of the reader are made of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import OutputContainer
from av.video.stream import VideoStream
from numpy.typing import NDArray

from omnitide.errors import ConfigError
from omnitide.media.chunk import SAMPLE_RATE, Frame

_TICKS = 90_000
_NOTES = (220.0, 261.63, 293.66, 329.63, 392.0, 440.0, 523.25, 587.33, 659.25, 783.99)

Painter = Callable[[float, int, int], Frame]
"""Second, height and width -> picture."""

Player = Callable[[NDArray[np.float64]], NDArray[np.floating]]
"""Seconds (num_samples,) -> samples in [-1, 1], (num_samples,) or (channels, num_samples)."""


def paint_shapes(second: float, height: int, width: int) -> Frame:
    """A disc on a circle and a bar that sweeps, before a ground whose colour changes.

    The disc takes 8 s to go round, the bar 4 s to cross, the ground 24 s through its colours.
    """
    y, x = np.ogrid[0:height, 0:width]
    picture = np.empty((height, width, 3), np.uint8)
    for channel in range(3):
        wave = math.cos(math.tau * (second / 24 + channel / 3))
        picture[:, :, channel] = 96 + 64 * wave + 48 * (y / height)
    bar = (second / 4 % 1) * width
    picture[:, int(bar) : int(bar + max(width / 16, 1))] = (235, 235, 235)
    angle = math.tau * second / 8
    centre_y = height * (0.5 - 0.3 * math.cos(angle))
    centre_x = width * (0.5 + 0.3 * math.sin(angle))
    radius = min(height, width) * 0.14
    disc = (y - centre_y) ** 2 + (x - centre_x) ** 2 <= radius**2
    picture[disc] = ((255, 40, 40), (40, 255, 40), (40, 40, 255))[int(second / 8) % 3]
    return picture


def play_tones(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """A note a second out of ten, each faded in and out over 20 ms; peak 0.3."""
    whole = np.floor(seconds)
    part = seconds - whole
    pitch = np.take(_NOTES, (whole.astype(np.int64) * 3) % len(_NOTES))
    fade = np.clip(np.minimum(part, 1 - part) * 50, 0, 1)
    return np.asarray(0.3 * fade * np.sin(math.tau * pitch * part), np.float64)


@dataclass(frozen=True, slots=True)
class ClipPicture:
    """The picture of a film.

    Attributes:
        width, height: Pixels as stored, before rotation.
        fps: Frames a second; the last frame lasts 1 / fps.
        times: Second at which each frame is shown, ascending, for a variable frame rate.
        delay: Second at which the picture starts. The content at second s of the film is the one
            painted for s.
        stop: Second at which it ends; None for the end of the film.
        rotation: Degrees counter-clockwise by which a player turns the picture, a multiple of 90.
        paint: Content.
        codec, pixel_format, options: Of FFmpeg's encoder.
    """

    width: int = 112
    height: int = 112
    fps: float = 8.0
    times: tuple[float, ...] | None = None
    delay: float = 0.0
    stop: float | None = None
    rotation: int = 0
    paint: Painter = paint_shapes
    codec: str = "libx264"
    pixel_format: str = "yuv420p"
    options: tuple[tuple[str, str], ...] = (("preset", "ultrafast"),)


@dataclass(frozen=True, slots=True)
class ClipSound:
    """The sound of a film.

    Attributes:
        sample_rate: Hertz.
        layout: FFmpeg's name of the channels; a `play` of one channel is copied to all.
        delay: Second at which the sound starts.
        stop: Second at which it ends; None for the end of the film.
        play: Content.
        codec: Of FFmpeg's encoder.
        bit_rate: Bits a second; None takes the encoder's own.
    """

    sample_rate: int = SAMPLE_RATE
    layout: str = "mono"
    delay: float = 0.0
    stop: float | None = None
    play: Player = play_tones
    codec: str = "aac"
    bit_rate: int | None = None


def write_clip(
    path: str | Path,
    seconds: float,
    *,
    width: int = 112,
    height: int = 112,
    fps: float = 8.0,
    sample_rate: int = SAMPLE_RATE,
) -> None:
    """Encode the standard film, `paint_shapes` with `play_tones`; see `write_film`."""
    picture = ClipPicture(width=width, height=height, fps=fps)
    write_film(path, seconds, picture, ClipSound(sample_rate=sample_rate))


def write_film(
    path: str | Path,
    seconds: float,
    picture: ClipPicture | None,
    sound: ClipSound | None,
    *,
    container_options: Mapping[str, str] | None = None,
) -> None:
    """Encode a film of known content.

    Args:
        path: File to write; its extension chooses the container (".mp4", ".mkv", ".wav", ...).
        seconds: Length of the film.
        picture, sound: The two tracks; None leaves one out.
        container_options: Of FFmpeg's muxer, such as `{"movflags": "+faststart"}`.

    Raises:
        ConfigError: No track, or a length that is not positive.
        OSError: The file can't be written.
    """
    if picture is None and sound is None:
        raise ConfigError("[clip] a film needs a picture or a sound, got neither")
    if not 0 < seconds < math.inf:
        raise ConfigError(f"[clip] seconds must be above 0 and finite, got {seconds:g}")
    with av.open(str(path), "w", container_options=dict(container_options or {})) as output:
        writers: list[Iterator[float]] = []
        # Every track is declared before the first packet, for the header needs them all.
        if picture is not None:
            stop = seconds if picture.stop is None else picture.stop
            writers.append(_picture_writer(output, _add_picture(output, picture), picture, stop))
        if sound is not None:
            stop = seconds if sound.stop is None else sound.stop
            writers.append(_sound_writer(output, _add_sound(output, sound), sound, stop))
        _run_in_step(writers)


def _run_in_step(writers: list[Iterator[float]]) -> None:
    """Run the writer that is behind, until all are done: the muxer then holds little back."""
    reached = dict.fromkeys(range(len(writers)), 0.0)
    while reached:
        behind = min(reached, key=lambda index: reached[index])
        second = next(writers[behind], None)
        if second is None:
            del reached[behind]
        else:
            reached[behind] = second


def _add_picture(output: OutputContainer, picture: ClipPicture) -> VideoStream:
    rate = Fraction(picture.fps).limit_denominator(1001)
    stream = output.add_stream(picture.codec, rate=rate, options=dict(picture.options))
    assert isinstance(stream, VideoStream)
    stream.width, stream.height = picture.width, picture.height
    stream.pix_fmt = picture.pixel_format
    stream.codec_context.time_base = Fraction(1, _TICKS)
    if picture.rotation:
        stream.set_display_rotation(picture.rotation)
    return stream


def _add_sound(output: OutputContainer, sound: ClipSound) -> AudioStream:
    stream = output.add_stream(sound.codec, rate=sound.sample_rate, layout=sound.layout)
    assert isinstance(stream, AudioStream)
    if sound.bit_rate is not None:
        stream.bit_rate = sound.bit_rate
    return stream


def _picture_writer(
    output: OutputContainer, stream: VideoStream, picture: ClipPicture, stop: float
) -> Iterator[float]:
    """Encode frame after frame; yields the second reached."""
    for instant in _instants(picture, stop):
        pixels = picture.paint(instant, picture.height, picture.width)
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        frame.time_base = Fraction(1, _TICKS)
        frame.pts = round(instant * _TICKS)
        output.mux(stream.encode(frame))
        yield instant
    output.mux(stream.encode(None))


def _instants(picture: ClipPicture, stop: float) -> Iterator[float]:
    if picture.times is not None:
        yield from picture.times
        return
    rate = Fraction(picture.fps).limit_denominator(1001)
    for index in range(math.ceil((stop - picture.delay) * rate)):
        yield picture.delay + float(index / rate)


def _sound_writer(
    output: OutputContainer, stream: AudioStream, sound: ClipSound, stop: float
) -> Iterator[float]:
    """Encode a tenth of a second after the other; yields the second reached."""
    first, last = round(sound.delay * sound.sample_rate), round(stop * sound.sample_rate)
    step = sound.sample_rate // 10
    for start in range(first, last, step):
        count = min(step, last - start)
        samples = sound.play((start + np.arange(count)) / sound.sample_rate)
        channels = stream.layout.nb_channels
        planes = np.broadcast_to(np.atleast_2d(samples), (channels, count))
        packed = np.ascontiguousarray(planes.T.reshape(1, -1), np.float32)
        frame = av.AudioFrame.from_ndarray(packed, format="flt", layout=sound.layout)
        frame.sample_rate = sound.sample_rate
        frame.time_base = Fraction(1, sound.sample_rate)
        frame.pts = start
        output.mux(stream.encode(frame))
        yield (start + count) / sound.sample_rate
    output.mux(stream.encode(None))
