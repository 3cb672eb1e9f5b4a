"""From a decoded frame to the pixels a viewer sees: RGB, square pixels, the right way up."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import cast

import numpy as np
from av.sidedata.sidedata import SideDataContainer, Type
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from omnitide.media.chunk import Frame

Matrix = tuple[int, int, int, int]
"""a, b, c, d of a display matrix: a stored pixel (x, y) is shown at (a x + c y, b x + d y)."""

MAX_PIXEL_ASPECT = 100
"""Largest ratio of a pixel's sides that is believed."""

UPRIGHT: Matrix = (1, 0, 0, 1)


def display_matrix(frame: VideoFrame) -> Matrix:
    """The linear part of a frame's display matrix, each value -1, 0 or 1.

    Cameras write quarter turns and mirror images; any other angle goes to the nearest quarter.
    """
    # At run time this is a mapping by type; PyAV's stub knows one key of it only.
    data = cast(SideDataContainer, frame.side_data).get(Type.DISPLAYMATRIX)
    if data is None:
        return UPRIGHT
    a, b, _, c, d = np.frombuffer(bytes(data), np.int32)[:5].tolist()
    if a == b == c == d == 0:
        return UPRIGHT
    if abs(a) >= abs(b):
        return (-1 if a < 0 else 1), 0, 0, (-1 if d < 0 else 1)
    return 0, (-1 if b < 0 else 1), (-1 if c < 0 else 1), 0


def orient(pixels: NDArray[np.uint8], matrix: Matrix) -> Frame:
    """Turn and mirror stored pixels (height, width, 3) as the matrix says."""
    a, b, c, d = matrix
    if a == 0:
        pixels = pixels.swapaxes(0, 1)
    if a + c < 0:
        pixels = pixels[:, ::-1]
    if b + d < 0:
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def stored_size(frame: VideoFrame, pixel_aspect: Fraction | None) -> tuple[int, int]:
    """Width and height of a frame before it is turned, once its pixels are made square."""
    aspect = pixel_aspect if pixel_aspect else Fraction(1)
    if not 1 <= max(aspect, 1 / aspect) <= MAX_PIXEL_ASPECT:
        aspect = Fraction(1)  # a damaged header; FFmpeg could not scale by it
    return max(round(frame.width * aspect), 1), frame.height


def shown_size(frame: VideoFrame, pixel_aspect: Fraction | None) -> tuple[int, int]:
    """Width and height of a frame as a viewer sees it."""
    width, height = stored_size(frame, pixel_aspect)
    return (height, width) if display_matrix(frame)[0] == 0 else (width, height)


def within(size: tuple[int, int], max_pixels: int) -> tuple[int, int]:
    """A size of the same aspect with at most `max_pixels` pixels, or the size itself."""
    width, height = size
    if width * height <= max_pixels:
        return size
    shrink = math.sqrt(max_pixels / (width * height))
    return max(math.floor(width * shrink), 1), max(math.floor(height * shrink), 1)


class Screen:
    """Converts the frames of one stream, all to the size of the first.

    Args:
        pixel_aspect: Width of a stored pixel over its height; None or 0 for square.
        max_pixels: Larger frames are scaled down to at most as many.
    """

    def __init__(self, pixel_aspect: Fraction | None, max_pixels: int) -> None:
        self._pixel_aspect = pixel_aspect
        self._max_pixels = max_pixels
        self._size: tuple[int, int] | None = None
        self._reformatter = VideoReformatter()

    def show(self, frame: VideoFrame) -> Frame:
        """The pixels of a frame: uint8, (height, width, 3), a copy of its own."""
        matrix = display_matrix(frame)
        if self._size is None:
            shown = shown_size(frame, self._pixel_aspect)
            self._size = within(shown, self._max_pixels)
        width, height = self._size if matrix[0] else self._size[::-1]
        converted = self._reformatter.reformat(
            frame, width, height, "rgb24", interpolation=Interpolation.BICUBIC
        )
        return orient(np.asarray(converted.to_ndarray(), np.uint8), matrix)
