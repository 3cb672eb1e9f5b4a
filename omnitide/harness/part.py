"""A piece of a question as harnesses put it: words, a picture, a film, or sound."""

from __future__ import annotations

import tempfile
import wave
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from omnitide.config import MediaOptions
from omnitide.errors import ConfigError, MediaError
from omnitide.media.chunk import MediaChunk

MEDIA = ("image", "video", "audio")


@dataclass(frozen=True, slots=True)
class Part:
    """One piece.

    Attributes:
        kind: "text" or a name in `MEDIA`.
        value: Words; or a path; or for an image a `PIL.Image`; or for audio a mapping with `array`,
            samples in [-1, 1] of shape (num_samples,), and `sampling_rate` in hertz.
        start, stop: Seconds between which a film or sound is taken; None: its own ends.
    """

    kind: str
    value: Any
    start: float | None = None
    stop: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("text", *MEDIA):
            kinds = ", ".join(("text", *MEDIA))
            raise ConfigError(f"[harness] a part must be one of {kinds}; got {self.kind!r}")


def chunks_of(part: Part, options: MediaOptions) -> Iterator[MediaChunk]:
    """A medium as chunks of a stream.

    Raises:
        MediaError: It can't be read, or is of a kind that is not taken.
    """
    if part.kind == "image":
        yield _image(part.value)
    elif part.kind == "video":
        yield from _film(_path(part), part, options, video=True)
    elif isinstance(part.value, Mapping):
        with tempfile.TemporaryDirectory(prefix="omnitide-") as folder:
            path = Path(folder) / "sound.wav"
            _write_wave(path, part.value)
            yield from _film(str(path), part, options, video=False)
    else:
        yield from _film(_path(part), part, options, video=False)


def _path(part: Part) -> str:
    if not isinstance(part.value, str | PathLike):
        raise MediaError(
            f"[harness] {part.kind} must be a path, got {type(part.value).__name__}; decoded "
            "media lack the times that a stream needs"
        )
    return fspath(part.value).removeprefix("file://")


def _image(value: Any) -> MediaChunk:
    from omnitide.media.still import read_image, still_of

    if isinstance(value, Image.Image):
        return still_of(value)
    return read_image(_path(Part("image", value)))


def _film(path: str, part: Part, options: MediaOptions, *, video: bool) -> Iterator[MediaChunk]:
    from omnitide.evaluation.film import within
    from omnitide.media.reader import open_media  # brings in the media libraries

    start, stop = part.start or 0.0, part.stop
    with open_media(path, options, video=video) as reader:
        for chunk in reader:
            if stop is not None and chunk.start >= stop:
                return
            if chunk.stop > start:
                yield within(chunk, start, stop)
        if reader.broken is not None:
            raise MediaError(f"[harness] {path}: {reader.broken}")


def _write_wave(path: Path, sound: Mapping[str, Any]) -> None:
    """Write samples as 16-bit sound, so that the reader resamples them as it does all sound."""
    try:
        samples = np.asarray(sound["array"], np.float64)
        rate = int(sound["sampling_rate"])
    except (KeyError, TypeError, ValueError) as error:
        raise MediaError(
            f"[harness] sound must be a path, or samples with array and sampling_rate ({error})"
        ) from error
    if samples.ndim == 2:
        samples = samples.mean(axis=int(np.argmin(samples.shape)))
    if samples.ndim != 1 or not len(samples) or not np.isfinite(samples).all() or rate < 1:
        raise MediaError(
            f"[harness] sound must be finite samples of one dimension, got shape {samples.shape} "
            f"at {rate} Hz"
        )
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32_767).round().astype("<i2").tobytes())
