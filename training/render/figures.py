"""Paints shapes over grounds: one to five copies, resting or moving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omnitide.evaluation.needle.fact import COLOURS, SHAPES
from training.render.looks import Looks, colour_shift
from training.render.uniforms import between, uniforms
from training.world.script import Picture
from training.world.unit import FRAMES, SIZE

COLUMNS, ROWS = 3, 2
"""Several copies stand in cells of their own."""

CELLS = COLUMNS * ROWS
CELL = np.array([SIZE / COLUMNS, SIZE / ROWS])

NEEDLE_RADIUS = SIZE / 4
FAR = -1e4
"""Where copies stand that aren't shown."""

DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}

EDGE = 2.0
"""Width of an outline, pixels."""

MOST_TURN = 0.2
"""Shapes are turned by so much at most, radians."""

COLOUR_SHIFT = 16.0

_PLACES, _CELLS, _COLOURS = 20, 21, 22

Put = Callable[[NDArray[Any]], Tensor]
"""Brings an array to the device."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Shapes, as arrays of n pictures.

    Attributes:
        centres: x and y by frame and cell, pixels. Shape (n, FRAMES, CELLS, 2).
        radius: Half the width. Shape (n,).
        turn: Radians. Shape (n,).
        soft: Edges are smooth. Shape (n,).
        outlined: A thin line goes round. Shape (n,).
        colour, edge: RGB of the shape and of its outline. Shape (n, 3).
        shape: Index into `SHAPES`. Shape (n,).
    """

    centres: NDArray[np.float64]
    radius: NDArray[np.float64]
    turn: NDArray[np.float64]
    soft: NDArray[np.bool_]
    outlined: NDArray[np.bool_]
    colour: NDArray[np.float64]
    edge: NDArray[np.float64]
    shape: NDArray[np.int64]


def place_figures(pictures: Sequence[Picture], looks: Looks) -> Figures:
    """Where the shapes of some pictures stand and how they look."""
    needle = looks.needle
    u = uniforms(looks.seeds, 8, _PLACES)
    counts = np.array([picture.count for picture in pictures], np.int64)
    steps = np.array([DIRECTIONS.get(p.motion or "", (0, 0)) for p in pictures], float)
    steps = steps.reshape(-1, 2)
    names = [picture.text.split() for picture in pictures]
    several, moving = counts > 1, steps.any(1)
    radius = np.where(several, between(u[:, 0], 9, 13), between(u[:, 0], 13, 28))
    radius = np.where(moving, between(u[:, 0], 13, 20), radius)
    radius = np.where(needle, NEEDLE_RADIUS, radius)
    path = (
        steps[:, None, :]
        * np.arange(FRAMES)[None, :, None]
        * between(u[:, 3], 7, 11)[:, None, None]
    )
    extent = _extent(radius)[:, None]
    low, high = extent - path.min(1), SIZE - extent - path.max(1)
    alone = low + u[:, 1:3] * (high - low)
    alone = np.where(needle[:, None], SIZE / 2, alone)
    centres = np.repeat((alone[:, None] + path)[:, :, None], CELLS, 2)
    centres[several] = _in_cells(looks.seeds[several], counts[several], radius[several])
    colour = np.array([COLOURS[colour] for colour, _ in names], float).reshape(-1, 3)
    shift = np.where(needle[:, None], 0, colour_shift(looks.seeds, _COLOURS, COLOUR_SHIFT))
    light = colour.mean(1, keepdims=True) > 110
    return Figures(
        centres=centres,
        radius=radius,
        turn=np.where(needle, 0, between(u[:, 4], -MOST_TURN, MOST_TURN)),
        soft=~needle,
        outlined=~needle & (u[:, 5] < 0.5),
        colour=np.clip(colour + shift, 0, 255),
        edge=np.where(light, 25.0, 230.0).repeat(3, 1),
        shape=np.array([list(SHAPES).index(shape) for _, shape in names], np.int64),
    )


def _in_cells(
    seeds: NDArray[np.int64], counts: NDArray[np.int64], radius: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Centres of copies, each somewhere in a cell of its own; the same in all frames."""
    u = uniforms(seeds, 3 * CELLS, _CELLS)
    rank = np.argsort(np.argsort(u[:, :CELLS], 1), 1)
    corner = np.stack(np.unravel_index(np.arange(CELLS), (ROWS, COLUMNS))[::-1], 1) * CELL
    extent = _extent(radius)
    room = CELL - 2 * extent[:, None]
    spot = corner + extent[:, None, None]
    spot = spot + u[:, CELLS:].reshape(-1, CELLS, 2) * room[:, None]
    spot[rank >= counts[:, None]] = FAR
    return np.repeat(spot[:, None], FRAMES, 1)


def _extent(radius: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far a shape reaches from its centre, turned as far as may be and with its outline."""
    return radius * (np.cos(MOST_TURN) + np.sin(MOST_TURN)) + EDGE


def paint_figures(out: Tensor, figures: Figures, shown: NDArray[np.bool_]) -> None:
    """Paint shapes over pictures.

    Args:
        out: float32, shape (n, FRAMES, SIZE, SIZE, 3); mutated.
        figures: Of the same pictures.
        shown: Whether a frame has its shape, (n, FRAMES).
    """

    def put(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(out.device)

    for kind, shape in enumerate(SHAPES):
        which = np.flatnonzero(figures.shape == kind)
        if not len(which):
            continue
        radius = put(figures.radius[which].astype(np.float32))[:, None, None, None]
        x, y = _local(figures, which, put)
        inside = _depth(shape, x / radius, y / radius) * radius
        soft = put(figures.soft[which])[:, None, None, None]
        there = put(shown[which].astype(np.float32))[:, :, None, None]
        body = torch.where(soft, (inside + 0.5).clamp(0, 1), (inside >= 0).float()) * there
        line = (inside + EDGE + 0.5).clamp(0, 1) * there
        line = line * put(figures.outlined[which].astype(np.float32))[:, None, None, None]
        place = put(which)
        below = out[place]
        for share, colour in ((line, figures.edge), (body, figures.colour)):
            paint = put(colour[which].astype(np.float32))[:, None, None, None, :]
            below = torch.lerp(below, paint, share[..., None])
        out[place] = below


def _local(figures: Figures, which: NDArray[np.int64], put: Put) -> tuple[Tensor, Tensor]:
    """x and y of each pixel from the centre of its shape, turned. Shape (n, FRAMES, SIZE, SIZE)."""
    pixels = np.arange(SIZE)
    column = np.minimum(((pixels + 0.5) // CELL[0]).astype(np.int64), COLUMNS - 1)
    row = np.minimum(((pixels + 0.5) // CELL[1]).astype(np.int64), ROWS - 1)
    cell = row[:, None] * COLUMNS + column[None, :]
    centres = put(figures.centres[which].astype(np.float32))[:, :, put(cell)]
    along = put((pixels + 0.5).astype(np.float32))
    x, y = along[None, :] - centres[..., 0], along[:, None] - centres[..., 1]
    cosine = put(np.cos(figures.turn[which]).astype(np.float32))[:, None, None, None]
    sine = put(np.sin(figures.turn[which]).astype(np.float32))[:, None, None, None]
    return x * cosine + y * sine, y * cosine - x * sine


def _depth(shape: str, x: Tensor, y: Tensor) -> Tensor:
    """About how far a point lies inside a shape of radius 1; negative outside.

    The shapes are those of `omnitide.evaluation.needle.painting`.
    """
    if shape == "circle":
        return 1 - torch.sqrt(x**2 + y**2)
    box = 1 - torch.maximum(x.abs(), y.abs())
    if shape == "triangle":
        return torch.minimum(box, (y + 1 - 2 * x.abs()) / 5**0.5)
    if shape == "cross":
        return torch.minimum(box, 1 / 3 - torch.minimum(x.abs(), y.abs()))
    return box
