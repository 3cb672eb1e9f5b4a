"""Paints the pictures of units, many at a time, on the CPU or a GPU: equal up to rounding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from training.backdrop import Backdrop
from training.bank import Bank
from training.figures import paint_figures, place_figures
from training.lettering import Lettering, place_writing
from training.looks import read_looks
from training.script import Picture
from training.size import FRAMES, SIZE

BATCH = 256
"""Pictures that are painted at a time: it bounds the memory."""


class Painter:
    """Paints pictures.

    Args:
        bank: Photographs and letters.
        device: Where pictures are painted and stay.
    """

    def __init__(self, bank: Bank, device: torch.device | str = "cpu") -> None:
        self._bank = bank
        self._device = torch.device(device)
        self._backdrop = Backdrop(bank, device)
        self._lettering = Lettering(bank, device)

    @torch.no_grad()
    def paint(self, pictures: Sequence[Picture]) -> Tensor:
        """The frames of some units.

        Returns:
            uint8, shape (n, FRAMES, SIZE, SIZE, 3), on the device.
        """
        out = torch.empty(
            (len(pictures), FRAMES, SIZE, SIZE, 3), dtype=torch.uint8, device=self._device
        )
        for start in range(0, len(pictures), BATCH):
            batch = pictures[start : start + BATCH]
            out[start : start + len(batch)] = self._paint(batch)
        return out

    def _paint(self, pictures: Sequence[Picture]) -> Tensor:
        looks = read_looks(pictures)
        grounds = np.array([picture.ground for picture in pictures], np.int64)
        out = self._backdrop.paint(grounds, looks)
        for kinds in (("shape",), ("word", "digits")):
            which = [i for i, picture in enumerate(pictures) if picture.kind in kinds]
            if not which:
                continue
            some = [pictures[i] for i in which]
            their, shown = read_looks(some), looks.shown[which]
            place = torch.tensor(which, device=self._device)
            part = out[place]
            if kinds == ("shape",):
                paint_figures(part, place_figures(some, their), shown)
            else:
                self._lettering.paint(part, place_writing(some, their, self._bank), shown)
            out[place] = part
        return out.round_().clamp_(0, 255).to(torch.uint8)
