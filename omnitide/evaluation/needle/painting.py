"""The pictures of made-up streams: a quiet ground that always moves a little, and facts on it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from omnitide.evaluation.needle.fact import COLOURS
from omnitide.media.chunk import Frame

GRAIN = 12
"""Greatest deviation of the ground's grain, in steps of 256."""


def paint_ground(second: float, size: int, seed: int) -> Frame:
    """Soft grey waves and grain, without letters, figures or outlines. Shape (size, size, 3).

    Args:
        second: Of the stream; the waves go round in half a minute.
        size: Width and height, pixels.
        seed: Tells streams apart.
    """
    random = np.random.default_rng([seed, round(second * 1000)])
    turn = math.tau * (second / 30 + seed % 97 / 97)
    across = np.linspace(0, math.pi, size)
    waves = np.sin(across[None, :] + turn) + np.cos(across[:, None] * 2 - turn)
    grain = random.integers(-GRAIN, GRAIN + 1, (size, size))
    grey = np.clip(128 + 24 * waves + grain, 0, 255).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def paint_words(ground: Frame, words: str) -> Frame:
    """Words in black on a white bar across the middle, as large as they fit."""
    size = ground.shape[1]
    picture = Image.fromarray(ground)
    draw = ImageDraw.Draw(picture)
    height = size // 2
    while True:
        font = ImageFont.load_default(height)
        left, top, right, bottom = draw.textbbox((0, 0), words, font=font)
        if right - left <= 0.9 * size or height <= 8:
            break
        height -= max(height // 16, 1)
    middle = size / 2
    half = (bottom - top) / 2 + size * 0.05
    draw.rectangle((0, middle - half, size, middle + half), fill=(255, 255, 255))
    place = (middle - (left + right) / 2, middle - (top + bottom) / 2)
    draw.text(place, words, fill=(0, 0, 0), font=font)
    return np.asarray(picture)


def paint_shape(ground: Frame, name: str) -> Frame:
    """A shape such as "red circle" in the middle, half as wide as the picture."""
    colour, shape = name.split()
    size = ground.shape[1]
    y, x = (np.mgrid[0:size, 0:size] + 0.5 - size / 2) / (size / 4)
    out = ground.copy()
    out[_inside(shape, x, y)] = COLOURS[colour]
    return out


def _inside(shape: str, x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Where a shape lies; x and y run from -2 to 2, the shape from -1 to 1."""
    box = np.maximum(np.abs(x), np.abs(y)) <= 1
    inside = {
        "circle": x**2 + y**2 <= 1,
        "square": box,
        "triangle": box & (2 * np.abs(x) <= y + 1),
        "cross": box & (np.minimum(np.abs(x), np.abs(y)) <= 1 / 3),
    }
    return inside[shape]
