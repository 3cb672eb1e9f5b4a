"""What every family does to pictures: check them, resize them, normalise their values.

Each family has its own rule for the size that a picture is brought to.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from omnitide.errors import MediaError
from omnitide.media.chunk import Frame

MAX_ASPECT = 200
"""Largest ratio of the two sides."""

Colour = tuple[float, float, float]
"""One number for each of red, green and blue."""


def check_size(height: int, width: int) -> None:
    """Require a picture that has pixels and is not all too long.

    Raises:
        MediaError: A side is 0, or the longer one is more than `MAX_ASPECT` times the shorter one.
    """
    if min(height, width) < 1:
        raise MediaError(f"[image] a picture must have pixels, got {width} x {height}")
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise MediaError(
            f"[image] the longer side must be at most {MAX_ASPECT} times the shorter one, "
            f"got {width} x {height}; crop the picture"
        )


def check_frame(frame: Frame) -> None:
    """Require uint8 RGB of shape (height, width, 3).

    Raises:
        MediaError: Another dtype or shape.
    """
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise MediaError(
            "[image] a frame must be uint8 of shape (height, width, 3), "
            f"got {frame.dtype} {frame.shape}"
        )


def resize(frame: Frame, height: int, width: int) -> Frame:
    """Pillow's bicubic, which the families' checkpoints were trained with."""
    picture = Image.fromarray(np.ascontiguousarray(frame))
    return np.asarray(picture.resize((width, height), resample=Image.Resampling.BICUBIC))


@cache
def normalised_values(mean: Colour, std: Colour) -> NDArray[np.float32]:
    """What each of the 256 values of a channel becomes, float32, (3, 256), read-only.

    Rounded to float32 after the division by 255 and after each step of the normalisation, as the
    processors that the checkpoints were trained with do.
    """
    scaled = (np.arange(256, dtype=np.float64) * (1 / 255)).astype(np.float32)
    offset, divisor = np.array(mean, np.float32)[:, None], np.array(std, np.float32)[:, None]
    table = ((scaled - offset) / divisor).astype(np.float32)
    table.flags.writeable = False
    return table
