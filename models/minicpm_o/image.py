"""Pictures to the patch vectors of the vision tower: a source image, then slices of it.

A large picture is seen twice: whole, at about `scale` x `scale` pixels, and in slices of about that
size, cut from a larger resized copy. Sizes are rounded to whole patches of 14 x 14 pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnitide.errors import ConfigError
from omnitide.media.chunk import Frame
from omnitide.models.pictures import check_frame, check_size, normalised_values, resize

PATCH = 14
"""Pixels of a patch side."""

PATCH_VALUES = 3 * PATCH * PATCH
"""Values of a patch vector, laid out [channel, row, column]."""

MEAN = STD = (0.5, 0.5, 0.5)

Size = tuple[int, int]
"""Width and height in pixels."""


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """What is made of a picture.

    Attributes:
        source: Size of the source image.
        columns, rows: Of the grid of slices; 0 and 0 where there are none.
        whole: Size to which the picture is brought before it is cut; (0, 0) where it is not.
    """

    source: Size
    columns: int = 0
    rows: int = 0
    whole: Size = (0, 0)

    @property
    def num_slices(self) -> int:
        """Slices beside the source image."""
        return self.columns * self.rows


@dataclass(frozen=True, slots=True)
class Patches:
    """A source image or a slice as the vision tower takes it.

    Attributes:
        vectors: Float32, (rows * columns, `PATCH_VALUES`), row by row.
        rows, columns: Patches.
    """

    vectors: NDArray[np.float32]
    rows: int
    columns: int


def plan_slices(width: int, height: int, max_slices: int, scale: int) -> SlicePlan:
    """Decide how a picture is resized and cut.

    The number of slices is what the picture's area asks for, or one less or more; among the grids
    with so many slices the one whose aspect is nearest to the picture's is taken.

    Args:
        width, height: Pixels of the picture.
        max_slices: Most slices; 1 means none beside the source image.
        scale: A source image or slice has about scale x scale pixels.

    Raises:
        MediaError: A side is 0, or the picture is too long (`pictures.check_size`).
        ConfigError: `max_slices` or `scale` is too small.
    """
    check_size(height, width)
    if max_slices < 1 or scale < PATCH:
        raise ConfigError(
            f"[image] max_slices must be at least 1 and scale at least {PATCH} pixels, "
            f"got {max_slices} and {scale}"
        )
    wanted = min(math.ceil(width * height / scale**2), max_slices)
    if wanted <= 1:
        return SlicePlan(_fit(width, height, scale))
    columns, rows = _best_grid(width, height, wanted, max_slices)
    slice_width, slice_height = _fit(_nearest(width, columns), _nearest(height, rows), scale)
    whole = (slice_width * columns, slice_height * rows)
    return SlicePlan(_fit(width, height, scale), columns, rows, whole)


def prepare_picture(frame: Frame, max_slices: int, scale: int) -> tuple[list[Patches], SlicePlan]:
    """Resize, cut and normalise a picture.

    Args:
        frame: uint8, (height, width, 3), RGB.
        max_slices, scale: See `plan_slices`.

    Returns:
        The source image, then the slices row by row, and the plan that they were made by.

    Raises:
        MediaError: A frame that is not uint8 RGB, or a shape that `plan_slices` refuses.
        ConfigError: As `plan_slices`.
    """
    check_frame(frame)
    height, width = frame.shape[:2]
    plan = plan_slices(width, height, max_slices, scale)
    pictures = [_resized(frame, plan.source)]
    if plan.num_slices:
        whole = _resized(frame, plan.whole)
        lines = np.split(whole, plan.rows, axis=0)
        pictures += [part for line in lines for part in np.split(line, plan.columns, axis=1)]
    return [patchify(picture) for picture in pictures], plan


def patchify(picture: Frame) -> Patches:
    """Normalise a picture whose sides are whole patches, and cut it into patch vectors."""
    rows, columns = picture.shape[0] // PATCH, picture.shape[1] // PATCH
    blocks = picture.reshape((rows, PATCH, columns, PATCH, 3))
    vectors = blocks.transpose(0, 2, 4, 1, 3).reshape(rows * columns, PATCH_VALUES)
    # The three channels are normalised alike, so one table serves them.
    return Patches(np.take(normalised_values(MEAN, STD)[0], vectors), rows, columns)


def _resized(frame: Frame, size: Size) -> Frame:
    width, height = size
    return frame if frame.shape[:2] == (height, width) else resize(frame, height, width)


def _best_grid(width: int, height: int, wanted: int, max_slices: int) -> tuple[int, int]:
    """Columns and rows; of equally good grids that with fewer slices, then with fewer columns."""
    aspect = math.log(width / height)
    counts = [n for n in (wanted - 1, wanted, wanted + 1) if 1 < n <= max_slices]
    grids = [(c, n // c) for n in counts for c in range(1, n + 1) if n % c == 0]
    return min(grids, key=lambda grid: abs(aspect - math.log(grid[0] / grid[1])))


def _fit(width: int, height: int, scale: int) -> Size:
    """Whole patches at nearly the same aspect, about scale x scale pixels."""
    aspect = width / height
    lines = int(scale / math.sqrt(aspect))
    return PATCH * _nearest(int(lines * aspect), PATCH), PATCH * _nearest(lines, PATCH)


def _nearest(length: int, parts: int) -> int:
    """length / parts, rounded (halves to the even one), at least 1."""
    return max(round(length / parts), 1)
