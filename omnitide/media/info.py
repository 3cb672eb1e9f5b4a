"""What is known of a film before it is read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MediaInfo:
    """Facts from the header and the first frames of a source.

    Attributes:
        seconds: Length by the header; None where it states none, as for a live stream. A hint:
            headers of broken files lie.
        has_picture, has_sound: Which tracks are read.
        width, height: Pixels as a viewer sees the picture, turned and with square pixels; None
            without a picture.
        fps: Mean frame rate of the source; None without a picture, or where it isn't known.
        sample_rate, channels: Of the source; None without sound.
    """

    seconds: float | None
    has_picture: bool
    has_sound: bool
    width: int | None = None
    height: int | None = None
    fps: float | None = None
    sample_rate: int | None = None
    channels: int | None = None
