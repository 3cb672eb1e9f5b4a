"""The grounds of pictures: a bank of crops and patterns, the needle's waves, and grain."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from training.bank import Bank
from training.chance import between, uniforms
from training.grounds import (
    CROPS,
    FIRST_GRADIENT,
    FIRST_NOISE,
    FIRST_PLAIN,
    NUM_GROUNDS,
    WAVE_PHASES,
    wave_phase,
)
from training.looks import BORDER, TABLE
from training.size import FRAMES, SIZE

WIDE = SIZE + BORDER

FRAME_PHASES = WAVE_PHASES / 60
"""Phases that the waves go on in half a second."""

_GROUNDS = 10


class Backdrop:
    """All grounds on a device.

    Args:
        bank: For its photographs.
        device: Where grounds are painted.
    """

    def __init__(self, bank: Bank, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._grounds = _make_grounds(bank).to(self._device)
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


def _make_grounds(bank: Bank) -> Tensor:
    """All grounds, softened so that every shape stands out. uint8, (NUM_GROUNDS, WIDE, WIDE, 3)."""
    u = uniforms(np.arange(NUM_GROUNDS, dtype=np.int64), 12, _GROUNDS)
    pieces = [_crop(bank.photographs[i // CROPS], u[i]) for i in range(FIRST_PLAIN)]
    pieces += [_plain(u[i]) for i in range(FIRST_PLAIN, FIRST_GRADIENT)]
    pieces += [_gradient(u[i]) for i in range(FIRST_GRADIENT, FIRST_NOISE)]
    pieces += [_noise(i, u[i]) for i in range(FIRST_NOISE, NUM_GROUNDS)]
    return torch.stack(pieces).round().clamp(0, 255).to(torch.uint8)


def _crop(photograph: NDArray[np.uint8], u: NDArray[np.float64]) -> Tensor:
    """A part of a photograph, perhaps mirrored, with less contrast and its light changed."""
    size = photograph.shape[0]
    side = int(between(u[0:1], 0.4, 0.95)[0] * size)
    top, left = (int(x * (size - side + 1)) for x in u[1:3])
    part = torch.from_numpy(photograph[top : top + side, left : left + side].astype(np.float32))
    if u[3] < 0.5:
        part = part.flip(1)
    small = functional.interpolate(
        part.permute(2, 0, 1)[None], (WIDE, WIDE), mode="bilinear", antialias=True
    )[0].permute(1, 2, 0)
    contrast, light = 0.4 + 0.35 * float(u[4]), float(u[5]) * 50 - 25
    return 128 + light + (small - 128) * contrast


def _colour(u: NDArray[np.float64]) -> Tensor:
    """A pale colour of three numbers."""
    grey = 60 + 130 * u[0]
    return torch.tensor(grey + (u[:3] - 0.5) * 40, dtype=torch.float32)


def _plain(u: NDArray[np.float64]) -> Tensor:
    return _colour(u).expand(WIDE, WIDE, 3)


def _gradient(u: NDArray[np.float64]) -> Tensor:
    turn = math.tau * float(u[6])
    along = torch.linspace(-1, 1, WIDE)
    slope = along[:, None] * math.sin(turn) + along[None, :] * math.cos(turn)
    share = ((slope / math.sqrt(2) + 1) / 2)[..., None]
    return _colour(u[:3]) * share + _colour(u[3:6]) * (1 - share)


def _noise(index: int, u: NDArray[np.float64]) -> Tensor:
    """Blurred specks around a colour, coarse or fine."""
    cells = 6 + int(u[6] * 50)
    specks = np.random.default_rng(index).uniform(-1, 1, (1, 3, cells, cells)).astype(np.float32)
    smooth = functional.interpolate(torch.from_numpy(specks), (WIDE, WIDE), mode="bilinear")
    return _colour(u) + smooth[0].permute(1, 2, 0) * (10 + 25 * float(u[7]))
