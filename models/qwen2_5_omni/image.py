"""Pictures to the patch vectors of the vision tower.

The tower sees squares of 14 x 14 pixels from two frames at a time. Four neighbouring squares merge
into one token, so patches are handed on merge block by merge block and every side is a multiple
of 28 pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from omnitide.errors import ConfigError, MediaError
from omnitide.media.chunk import Frame
from omnitide.models.pictures import check_frame, check_size, normalised_values, resize

PATCH = 14
"""Pixels of a patch side."""

MERGE = 2
"""Patches of a merge block side; one block is one token."""

TEMPORAL_PATCH = 2
"""Frames that make one step of the grid."""

FACTOR = PATCH * MERGE
"""Pixels of a merge block side."""

PATCH_VALUES = 3 * TEMPORAL_PATCH * PATCH * PATCH
"""Values of a patch vector, laid out [channel, frame, row, column]."""

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

Grid = tuple[int, int, int]
"""Steps, patch rows and patch columns of a span of frames."""


def smart_resize(
    height: int,
    width: int,
    factor: int = FACTOR,
    *,
    min_pixels: int,
    max_pixels: int,
) -> tuple[int, int]:
    """The size a picture is brought to: close to its own, in whole merge blocks.

    Each side goes to the nearest multiple of `factor` (halves to the even one). An area above
    `max_pixels` is shrunk by rounding the sides down, one below `min_pixels` is grown by rounding
    up, both at the aspect of the picture; no side falls below one `factor`. The result is
    the one of transformers' Qwen2-VL image processor wherever that one is at least a block wide.
    A very long picture may end above `max_pixels`, because of the least side.

    Args:
        height, width: Pixels.
        factor: Pixels; both results are multiples of it.
        min_pixels, max_pixels: Bounds of the area.

    Returns:
        Height and width in pixels.

    Raises:
        MediaError: A side is 0, or the longer one is more than 200 times the shorter one.
        ConfigError: The bounds are the wrong way round.
    """
    check_size(height, width)
    if min_pixels > max_pixels:
        raise ConfigError(
            f"[image] min_pixels {min_pixels:,} is above max_pixels {max_pixels:,}; "
            "raise --max-pixels"
        )
    rows, columns = round(height / factor), round(width / factor)
    if rows * columns * factor * factor > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        rows = math.floor(height / shrink / factor)
        columns = math.floor(width / shrink / factor)
    elif rows * columns * factor * factor < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        rows = math.ceil(height * grow / factor)
        columns = math.ceil(width * grow / factor)
    return max(rows, 1) * factor, max(columns, 1) * factor


def grid_of(num_frames: int, height: int, width: int, *, min_pixels: int, max_pixels: int) -> Grid:
    """The grid `prepare_frames` gives for frames of this count and size, without any pixels."""
    rows, columns = smart_resize(height, width, min_pixels=min_pixels, max_pixels=max_pixels)
    return -(-num_frames // TEMPORAL_PATCH), rows // PATCH, columns // PATCH


def prepare_frames(
    frames: Sequence[Frame], *, min_pixels: int, max_pixels: int
) -> tuple[NDArray[np.float32], Grid]:
    """Resize, normalise and cut frames of one size into patch vectors.

    Frames are taken two by two; an odd last one, and so a still picture, is paired with itself.

    Args:
        frames: At least one, uint8, (height, width, 3), RGB, oldest first.
        min_pixels, max_pixels: Bounds of the area of a frame (see `smart_resize`).

    Returns:
        Patches, float32, (steps * rows * columns, `PATCH_VALUES`), and the grid
        (steps, rows, columns) in patches. Order of the patches: step, block row, block column,
        row in the block, column in the block.

    Raises:
        MediaError: No frame, a frame that is not uint8 RGB, frames of two sizes, or a shape that
            `smart_resize` refuses.
    """
    if not frames:
        raise MediaError("[image] at least one frame is needed, got none")
    for frame in frames:
        check_frame(frame)
        if frame.shape != frames[0].shape:
            raise MediaError(
                "[image] frames of one span must have one size, "
                f"got {frames[0].shape[:2]} and {frame.shape[:2]}"
            )
    height, width = frames[0].shape[:2]
    rows, columns = smart_resize(height, width, min_pixels=min_pixels, max_pixels=max_pixels)
    resized = [resize(frame, rows, columns) for frame in frames]
    if len(resized) % TEMPORAL_PATCH:
        resized.append(resized[-1])
    return _patchify(np.stack(resized))


def _patchify(frames: Frame) -> tuple[NDArray[np.float32], Grid]:
    """Frames (n, height, width, 3), n even, sides whole blocks -> patches and grid."""
    steps = frames.shape[0] // TEMPORAL_PATCH
    rows, columns = frames.shape[1] // PATCH, frames.shape[2] // PATCH
    blocks = frames.reshape(
        (steps, TEMPORAL_PATCH, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH, 3)
    )
    # step, block row, block column, row and column in it | channel, frame, pixel row and column
    vectors = blocks.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    vectors = vectors.reshape(-1, 3, TEMPORAL_PATCH * PATCH * PATCH)
    table = normalised_values(CLIP_MEAN, CLIP_STD)
    channels = [np.take(table[c], vectors[:, c]) for c in range(3)]
    patches = np.stack(channels, axis=1).reshape(-1, PATCH_VALUES)
    return patches, (steps, rows, columns)
