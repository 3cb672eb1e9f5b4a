"""The grounds of pictures: a bank of crops and patterns, the needle's waves, and grain."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.bank.bank import Bank
from training.render.looks import BORDER, TABLE
from training.render.uniforms import between, uniforms
from training.world.grounds import (
    CROPS,
    FIRST_GRADIENT,
    FIRST_NOISE,
    FIRST_PLAIN,
    NUM_GROUNDS,
    WAVE_PHASES,
    wave_phase,
)
from training.world.unit import FRAMES, SIZE

WIDE = SIZE + BORDER

FRAME_PHASES = WAVE_PHASES / 60
"""Phases that the waves go on in half a second."""

Array = NDArray[Any]

_GROUNDS = 10


class Backdrop:
    """All grounds on a device.

    Args:
        bank: For its photographs.
        device: Where grounds are painted.
    """

    def __init__(self, bank: Bank, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._grounds = torch.from_numpy(_make_grounds(bank)).to(self._device)
        grain = np.random.default_rng(0).uniform(-1, 1, TABLE).astype(np.float32)
        self._grain = torch.from_numpy(grain).to(self._device)

    def paint(
        self,
        grounds: NDArray[np.int64],
        corner: NDArray[np.int64],
        grain: NDArray[np.float32],
        grain_at: NDArray[np.int64],
    ) -> Tensor:
        """The grounds of some pictures with their grain.

        Args:
            grounds: `Picture.ground` of each, shape (n,).
            corner, grain, grain_at: As in `Looks`.

        Returns:
            float32, shape (n, FRAMES, SIZE, SIZE, 3).
        """
        out = torch.empty(len(grounds), FRAMES, SIZE, SIZE, 3, device=self._device)
        banked, waved = np.flatnonzero(grounds >= 0), np.flatnonzero(grounds < 0)
        if len(banked):
            out[self._index(banked)] = self._read(grounds[banked], corner[banked])
        if len(waved):
            out[self._index(waved)] = self._waves(grounds[waved])[..., None]
        out += self._speckle(grain, grain_at)[..., None]
        return out

    def _index(self, places: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(places).to(self._device)

    def _read(self, grounds: NDArray[np.int64], corner: NDArray[np.int64]) -> Tensor:
        first = self._index(corner)
        along = torch.arange(SIZE, device=self._device)
        rows = first[:, :, 0, None, None] + along[:, None]
        columns = first[:, :, 1, None, None] + along[None, :]
        which = self._index(grounds)[:, None, None, None]
        return self._grounds[which, rows, columns].float()

    def _waves(self, grounds: NDArray[np.int64]) -> Tensor:
        """The waves of `omnitide.evaluation.needle.painting.paint_ground`, without grain."""
        phase = wave_phase(grounds)[:, None] + np.arange(FRAMES) * FRAME_PHASES
        turn = self._index(math.tau * phase / WAVE_PHASES)[:, :, None]
        across = torch.linspace(0, math.pi, SIZE, dtype=torch.float64, device=self._device)
        waves = torch.sin(across + turn)[:, :, None, :]
        waves = waves + torch.cos(across * 2 - turn)[:, :, :, None]
        return (128 + 24 * waves).float()

    def _speckle(self, grain: NDArray[np.float32], grain_at: NDArray[np.int64]) -> Tensor:
        first = self._index(grain_at)
        places = first[:, :, None] + torch.arange(SIZE * SIZE, device=self._device)
        strength = self._index(grain)[:, None, None]
        return (self._grain[places] * strength).view(*first.shape, SIZE, SIZE)


def _make_grounds(bank: Bank) -> Array:
    """All grounds, softened so that every shape stands out. uint8, (NUM_GROUNDS, WIDE, WIDE, 3)."""
    u = uniforms(np.arange(NUM_GROUNDS, dtype=np.int64), 12, _GROUNDS)
    out = np.empty((NUM_GROUNDS, WIDE, WIDE, 3), np.uint8)
    for i in range(NUM_GROUNDS):
        if i < FIRST_PLAIN:
            ground = _crop(bank.photographs[i // CROPS], u[i])
        elif i < FIRST_GRADIENT:
            ground = np.broadcast_to(_colour(u[i]), (WIDE, WIDE, 3))
        elif i < FIRST_NOISE:
            ground = _gradient(u[i])
        else:
            ground = _noise(i, u[i])
        out[i] = np.clip(np.round(ground), 0, 255)
    return out


def _crop(photograph: Array, u: Array) -> Array:
    """A part of a photograph, perhaps mirrored, with less contrast and its light changed."""
    size = photograph.shape[0]
    side = int(between(u[:1], 0.4, 0.95)[0] * size)
    top, left = (int(x * (size - side + 1)) for x in u[1:3])
    part = photograph[top : top + side, left : left + side]
    if u[3] < 0.5:
        part = part[:, ::-1]
    contrast, light = 0.4 + 0.35 * u[4], u[5] * 50 - 25
    return 128 + light + (_resize(part) - 128) * contrast


def _resize(picture: Array) -> Array:
    """A square picture at the size of grounds, linear between its pixels. (WIDE, WIDE, 3)."""
    for _ in range(2):
        at = np.linspace(0, len(picture) - 1, WIDE)
        low = np.minimum(at.astype(np.int64), len(picture) - 2)
        share = (at - low).astype(np.float32)[:, None, None]
        # Rows first; turned over, the columns come next.
        rows = picture[low] * (1 - share) + picture[low + 1] * share
        picture = rows.swapaxes(0, 1)
    return picture


def _colour(u: Array) -> Array:
    """A pale colour of three numbers. Shape (3,)."""
    return 60 + 130 * u[0] + (u[:3] - 0.5) * 40


def _gradient(u: Array) -> Array:
    """From one pale colour to another, in any direction."""
    turn = math.tau * u[6]
    along = np.linspace(-1, 1, WIDE)
    slope = along[:, None] * math.sin(turn) + along[None, :] * math.cos(turn)
    share = ((slope / math.sqrt(2) + 1) / 2)[..., None]
    return _colour(u[:3]) * share + _colour(u[3:6]) * (1 - share)


def _noise(index: int, u: Array) -> Array:
    """Blurred specks around a colour, coarse or fine."""
    cells = 6 + int(u[6] * 50)
    specks = np.random.default_rng(index).uniform(-1, 1, (cells, cells, 3)).astype(np.float32)
    return _colour(u) + _resize(specks) * (10 + 25 * u[7])
