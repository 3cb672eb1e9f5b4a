"""Paints words and numbers over grounds, on a bar or on a softened ground."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from omnitide.evaluation.needle.fact import DIGITS, WORDS
from training.bank.bank import Bank
from training.render.looks import Looks, colour_shift
from training.render.uniforms import between, uniforms
from training.world.script import Picture
from training.world.unit import FRAMES, SIZE

SMALLEST = 0.8
"""Least size of letters against the needle's."""

SHRINK = 0.03
"""Letters shrink by so much of their size from frame to frame at most."""

HIGHEST = 22
"""No bar is higher than twice so many pixels, however it is turned."""

_PLACES, _BARS = 30, 31

Put = Callable[[NDArray[Any]], Tensor]
"""Brings an array to the device."""


@dataclass(frozen=True, slots=True)
class Writing:
    """Words and numbers, as arrays of n pictures.

    Attributes:
        style: Which style of the bank, in parts of their number. Shape (n,).
        text: Index of the word in `WORDS`, or the five digits. Shape (n, DIGITS).
        number: It is a number. Shape (n,).
        size: Against the needle's. Shape (n, FRAMES).
        turn: Radians. Shape (n,).
        centre: x and y, pixels. Shape (n, 2).
        bar: There is a bar; where there is none, all of the ground is softened. Shape (n,).
        whole: The bar goes across the whole picture. Shape (n,).
        ink, paper: RGB of the letters, and of the bar or what the ground is softened to. (n, 3).
    """

    style: NDArray[np.float64]
    text: NDArray[np.int64]
    number: NDArray[np.bool_]
    size: NDArray[np.float64]
    turn: NDArray[np.float64]
    centre: NDArray[np.float64]
    bar: NDArray[np.bool_]
    whole: NDArray[np.bool_]
    ink: NDArray[np.float64]
    paper: NDArray[np.float64]


def place_writing(pictures: Sequence[Picture], looks: Looks) -> Writing:
    """Where the letters of some pictures stand and how they look."""
    needle = looks.needle
    u = uniforms(looks.seeds, 9, _PLACES)
    number = np.array([picture.kind == "digits" for picture in pictures], bool)
    text = np.zeros((len(pictures), DIGITS), np.int64)
    for row, picture in enumerate(pictures):
        text[row] = [int(c) for c in picture.text] if number[row] else WORDS.index(picture.text)
    size = np.where(needle, 1.0, between(u[:, 1], SMALLEST, 1))
    shrinking = np.where(needle, 0.0, between(u[:, 6], -SHRINK, 0))
    sizes = size[:, None] + shrinking[:, None] * np.arange(FRAMES)
    # Letters are nearly as wide as the picture at size 1, and may go as near to its edges.
    room = np.stack([SIZE / 2 * (1 - size), SIZE / 2 - HIGHEST * size], 1)
    centre = SIZE / 2 + (2 * u[:, 2:4] - 1) * np.maximum(room, 0)
    centre = np.where(needle[:, None], SIZE / 2, centre)
    dark = u[:, 4] < 0.5
    shift = np.abs(colour_shift(looks.seeds, _BARS, 45))
    ink = np.where(dark[:, None], shift, 255 - shift[:, ::-1])
    paper = np.where(dark[:, None], 255 - shift[:, ::-1], shift)
    black, white = np.zeros(3), np.full(3, 255.0)
    return Writing(
        style=np.where(needle, 0, u[:, 0]),
        text=text,
        number=number,
        size=sizes,
        turn=np.where(needle, 0, between(u[:, 5], -0.06, 0.06)),
        centre=centre,
        bar=needle | (u[:, 7] < 0.6),
        whole=needle | (u[:, 8] < 0.5),
        ink=np.where(needle[:, None], black, ink),
        paper=np.where(needle[:, None], white, paper),
    )


class Lettering:
    """All letters of the bank on a device."""

    def __init__(self, bank: Bank, device: torch.device | str) -> None:
        self._words = torch.from_numpy(bank.words).to(device)
        self._digits = torch.from_numpy(bank.digits).to(device)
        self._word_bars = torch.from_numpy(bank.word_bars).to(device)
        self._digit_bars = torch.from_numpy(bank.digit_bars).to(device)

    def paint(self, out: Tensor, writing: Writing, shown: NDArray[np.bool_]) -> None:
        """Paint letters over pictures.

        Args:
            out: float32, shape (n, FRAMES, SIZE, SIZE, 3); mutated.
            writing: Of the same pictures.
            shown: Whether a frame has its letters, (n, FRAMES).
        """

        def put(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(out.device)

        style = np.minimum(writing.style * len(self._words), len(self._words) - 1)
        strips, half = self._strips(put(style.astype(np.int64)), writing, put)
        x, y = _local(writing, put)
        there = put(shown.astype(np.float32))[:, :, None, None]
        ink = _read(strips, x, y) * there
        bar = put(writing.bar)[:, None, None, None]
        narrow = ~put(writing.whole)[:, None, None, None]
        edge = torch.where(narrow, SIZE / 2 - x.abs(), torch.full_like(x, SIZE))
        # A bar is hard, as the needle's; where there is none the ground fades by two thirds.
        inside = ((half[:, None, None, None] - y.abs() >= 0) & (edge >= 0)).float()
        paper = torch.where(bar, inside, torch.full_like(x, 2 / 3)) * there
        for share, colour in ((paper, writing.paper), (ink, writing.ink)):
            paint = put(colour.astype(np.float32))[:, None, None, None, :]
            out.lerp_(paint, share[..., None])

    def _strips(self, style: Tensor, writing: Writing, put: Put) -> tuple[Tensor, Tensor]:
        """The coverage of each text, (n, STRIP, SIZE), 0 to 1, and half its bar's height, (n,)."""
        text, number = put(writing.text), put(writing.number)
        words = self._words[style, text[:, 0] % len(WORDS)].float()
        places = torch.arange(DIGITS, device=style.device)
        digits = self._digits[style[:, None], text % 10, places].float().sum(1).clamp(max=255)
        half = torch.where(
            number, self._digit_bars[style], self._word_bars[style, text[:, 0] % len(WORDS)]
        )
        return torch.where(number[:, None, None], digits, words) / 255, half


def _local(writing: Writing, put: Put) -> tuple[Tensor, Tensor]:
    """x and y of each pixel from the middle of the text, in its own size and turn."""
    along = torch.arange(SIZE, device=put(writing.style).device) + 0.5
    centre = put(writing.centre.astype(np.float32))[:, None, None, None]
    size = put(writing.size.astype(np.float32))[:, :, None, None]
    x, y = along[None, :] - centre[..., 0], along[:, None] - centre[..., 1]
    cosine = put(np.cos(writing.turn).astype(np.float32))[:, None, None, None]
    sine = put(np.sin(writing.turn).astype(np.float32))[:, None, None, None]
    return (x * cosine + y * sine) / size, (y * cosine - x * sine) / size


def _read(strips: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The coverage at places of the strips, (n, FRAMES, SIZE, SIZE)."""
    count, height, width = strips.shape
    grid = torch.stack([x * (2 / width), y * (2 / height)], -1)
    grid = grid.reshape(count, FRAMES * SIZE, SIZE, 2)
    read = functional.grid_sample(strips[:, None], grid, mode="bilinear", align_corners=False)
    return read.view(count, FRAMES, SIZE, SIZE)
