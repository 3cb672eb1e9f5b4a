"""What the looks of some pictures mean: places, sizes, colours and so on, as plain arrays.

Everything is drawn on the CPU from the seeds, so that every device paints the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.render.uniforms import between, uniforms
from training.world.script import Picture
from training.world.unit import FRAMES, SIZE

NEEDLE_SHARE = 0.4
"""Share of pictures of shapes and letters that look exactly like the needle's."""

GRAIN = 12.0
"""Greatest grain, in steps of 256, as the needle's."""

PARTLY_SHARE = 0.2
"""Share of other resting pictures whose fact shows in two of the four frames alone."""

BORDER = 8
"""Pixels by which a ground is larger than a picture, for its shaking."""

TABLE = 1 << 20
"""Entries of the table of grain."""

_GENERAL, _FRAMES = 1, 2


@dataclass(frozen=True, slots=True)
class Looks:
    """What concerns every picture.

    Attributes:
        needle: The fact looks like the needle's. Shape (n,).
        shown: The fact is there, by frame. Shape (n, FRAMES).
        grain: Strength of the grain. Shape (n,).
        grain_at: Where the grain is read in its table. Shape (n, FRAMES).
        corner: Row and column at which the ground is read. Shape (n, FRAMES, 2).
        seeds: Of the looks. Shape (n,).
    """

    needle: NDArray[np.bool_]
    shown: NDArray[np.bool_]
    grain: NDArray[np.float64]
    grain_at: NDArray[np.int64]
    corner: NDArray[np.int64]
    seeds: NDArray[np.int64]


def read_looks(pictures: Sequence[Picture]) -> Looks:
    """The looks of some pictures."""
    seeds = np.array([picture.look for picture in pictures], np.int64)
    resting = np.array([picture.motion is None for picture in pictures], bool)
    single = np.array([picture.count == 1 for picture in pictures], bool)
    waves = np.array([picture.ground < 0 for picture in pictures], bool)
    u = uniforms(seeds, 5, _GENERAL)
    needle = (u[:, 0] < NEEDLE_SHARE) & resting & single
    partly = (u[:, 1] < PARTLY_SHARE) & resting & ~needle
    late = u[:, 1] < PARTLY_SHARE / 2
    second = np.arange(FRAMES) >= FRAMES // 2
    shown = ~partly[:, None] | (late[:, None] == second[None, :])
    grain = np.where(waves, GRAIN, u[:, 2] * GRAIN)
    frames = uniforms(seeds, 3 * FRAMES, _FRAMES)
    # The ground rests at a place and shakes a little around it.
    shake = u[:, None, 3:5] * 0.75 + frames[:, FRAMES:].reshape(-1, FRAMES, 2) * 0.25
    corner = (shake * (BORDER + 1)).astype(np.int64)
    grain_at = (frames[:, :FRAMES] * (TABLE - SIZE * SIZE)).astype(np.int64)
    return Looks(needle, shown, grain, grain_at, corner, seeds)


def colour_shift(seeds: NDArray[np.int64], stream: int, most: float) -> NDArray[np.float64]:
    """A small shift of each colour channel. Shape (n, 3)."""
    return between(uniforms(seeds, 3, stream), -most, most)
