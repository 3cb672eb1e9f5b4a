"""Paints the pictures of units, many at a time, on the CPU or a GPU: equal up to rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.bank.bank import Bank
from training.render.backdrop import Backdrop
from training.render.figures import Figures, paint_figures, place_figures
from training.render.lettering import Lettering, Writing, place_writing
from training.render.looks import Looks, read_looks
from training.world.script import Picture
from training.world.unit import FRAMES, SIZE

BATCH = 256
"""Pictures that are painted at a time: it bounds the memory."""

NONE, FIGURE, WRITING = 0, 1, 2

Described = dict[str, NDArray[Any]]
"""All that painting needs, in arrays whose first axis is the picture."""


def describe(pictures: Sequence[Picture]) -> Described:
    """Read pictures into arrays, with NumPy alone: the share of the work for other processes.

    Arrays of several calls can be joined along their first axis.
    """
    looks = read_looks(pictures)
    kinds = {None: NONE, "shape": FIGURE, "word": WRITING, "digits": WRITING}
    kind = np.array([kinds[picture.kind] for picture in pictures], np.int64)
    described: Described = {
        "ground": np.array([picture.ground for picture in pictures], np.int64),
        "kind": kind,
        "shown": looks.shown,
        "corner": looks.corner,
        "grain": looks.grain.astype(np.float32),
        "grain_at": looks.grain_at,
    }
    figures, writings = np.flatnonzero(kind == FIGURE), np.flatnonzero(kind == WRITING)
    figure = place_figures([pictures[i] for i in figures], _some(looks, figures))
    writing = place_writing([pictures[i] for i in writings], _some(looks, writings))
    described |= _spread("figure_", figure, figures, len(pictures))
    described |= _spread("writing_", writing, writings, len(pictures))
    return described


def _some(looks: Looks, which: NDArray[np.int64]) -> Looks:
    return Looks(**{field.name: getattr(looks, field.name)[which] for field in fields(Looks)})


def _spread(
    prefix: str, part: Figures | Writing, which: NDArray[np.int64], count: int
) -> Described:
    """The arrays of some pictures as arrays of all; zeros for the others."""
    described = {}
    for field in fields(part):
        array = getattr(part, field.name)
        single = np.float32 if array.dtype == np.float64 else array.dtype
        whole = np.zeros((count, *array.shape[1:]), single)
        whole[which] = array
        described[prefix + field.name] = whole
    return described


class Painter:
    """Paints pictures.

    Args:
        bank: Photographs and letters.
        device: Where pictures are painted and stay.
    """

    def __init__(self, bank: Bank, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self._backdrop = Backdrop(bank, device)
        self._lettering = Lettering(bank, device)

    @torch.no_grad()
    def paint(self, pictures: Sequence[Picture] | Described) -> Tensor:
        """The frames of some units.

        Args:
            pictures: Of the units, or what `describe` made of them.

        Returns:
            uint8, shape (n, FRAMES, SIZE, SIZE, 3), on the device.
        """
        described = pictures if isinstance(pictures, dict) else describe(pictures)
        count = len(described["ground"])
        out = torch.empty((count, FRAMES, SIZE, SIZE, 3), dtype=torch.uint8, device=self._device)
        for start in range(0, count, BATCH):
            stop = min(start + BATCH, count)
            batch = {name: array[start:stop] for name, array in described.items()}
            out[start:stop] = self._paint(batch)
        return out

    def _paint(self, described: Described) -> Tensor:
        out = self._backdrop.paint(
            described["ground"], described["corner"], described["grain"], described["grain_at"]
        )
        for kind in (FIGURE, WRITING):
            which = np.flatnonzero(described["kind"] == kind)
            if not len(which):
                continue
            place = torch.from_numpy(which).to(self._device)
            part, shown = out[place], described["shown"][which]
            if kind == FIGURE:
                paint_figures(part, Figures(**_of(described, "figure_", which)), shown)
            else:
                self._lettering.paint(part, Writing(**_of(described, "writing_", which)), shown)
            out[place] = part
        return out.round_().clamp_(0, 255).to(torch.uint8)


def _of(described: Described, prefix: str, which: NDArray[np.int64]) -> Described:
    """The arrays of one kind for some pictures, by the names of its fields."""
    return {
        name.removeprefix(prefix): array[which]
        for name, array in described.items()
        if name.startswith(prefix)
    }
