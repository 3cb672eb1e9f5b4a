"""How many tokens picture and sound become, without weights."""

from __future__ import annotations

import math
from fractions import Fraction

from omnitide.config import MediaOptions
from omnitide.media.chunk import SAMPLE_RATE
from omnitide.models.mel import HOP
from omnitide.models.pictures import MAX_ASPECT
from omnitide.models.qwen2_5_omni.audio import num_audio_tokens
from omnitide.models.qwen2_5_omni.image import FACTOR, TEMPORAL_PATCH, grid_of
from omnitide.models.qwen2_5_omni.layout import Layout

MARKERS = 2
"""Tokens around a picture or film, and around sound."""


def media_tokens(
    layout: Layout,
    frames: int,
    height: int,
    width: int,
    samples: int,
    *,
    min_pixels: int,
    max_pixels: int,
) -> int:
    """Tokens of a media unit.

    Exact for a chunk that starts on the grid of mel frames (a multiple of 160 samples into the
    stream); never too small.

    Args:
        layout: Of the checkpoint.
        frames: Number of frames.
        height, width: Pixels of a frame, as decoded.
        samples: Number of 16 kHz samples.
        min_pixels, max_pixels: Bounds of the area of a frame; the lower one gives way.

    Raises:
        MediaError: A shape that `smart_resize` refuses.
    """
    total = _sound(samples)
    if frames:
        bounds = {"min_pixels": min(min_pixels, max_pixels), "max_pixels": max_pixels}
        total += layout.picture_tokens(grid_of(frames, height, width, **bounds)) + MARKERS
    return total


def largest_media_unit(options: MediaOptions, min_pixels: int) -> int:
    """Tokens that no media unit under these options exceeds, whatever the picture.

    Args:
        options: Frame rate, chunk length and largest picture.
        min_pixels: Least area of a frame; gives way to `options.max_pixels`.
    """
    seconds = Fraction(options.chunk_seconds).limit_denominator(1_000_000)
    frames = math.ceil(seconds * Fraction(options.fps).limit_denominator(1_000_000))
    steps = -(-frames // TEMPORAL_PATCH)
    cells = most_cells(min(min_pixels, options.max_pixels), options.max_pixels)
    return steps * cells + MARKERS + _sound(math.ceil(seconds * SAMPLE_RATE))


def most_cells(min_pixels: int, max_pixels: int) -> int:
    """Merged cells that no picture exceeds after `smart_resize`.

    The area sets the bound, but for two: a strip one cell high may be `MAX_ASPECT` long, and a
    picture that is grown to `min_pixels` has both sides rounded up.
    """
    cell = FACTOR * FACTOR
    shrunk_strip = math.isqrt(MAX_ASPECT * max_pixels) // FACTOR
    grown_strip = math.isqrt(MAX_ASPECT * min_pixels) // FACTOR + 1
    # Grown to r > 1 rows, a picture is higher than r - 1 cells, which bounds its width.
    rows = range(2, math.isqrt(min_pixels // cell) + 3)
    grown = max(r * math.ceil(min_pixels / (cell * (r - 1))) for r in rows)
    return max(max_pixels // cell, shrunk_strip, grown_strip, grown)


def _sound(samples: int) -> int:
    tokens = num_audio_tokens(-(-samples // HOP))
    return tokens + MARKERS if tokens else 0
