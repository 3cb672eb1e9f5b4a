"""Stream shapes: seeded streams of units with the token layouts of real model families.

A shape and a seed give the same units each time. The first unit is the system prefix; `count` units
follow it, questions and replies counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from itertools import count as counting

import numpy as np

from omnitide.errors import ConfigError
from omnitide.simulation import minicpm, qwen
from omnitide.units import Unit

Rng = np.random.Generator


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of stream.

    Attributes:
        name: What it is chosen by.
        system: Makes its system prefix.
        endless: Makes all that follows, from a random generator.
    """

    name: str
    system: Callable[[], Unit]
    endless: Callable[[Rng], Iterator[Unit]]

    def units(self, count: int, seed: int = 0) -> Iterator[Unit]:
        """The system prefix and `count` units after it."""
        rng = np.random.default_rng(seed)
        return chain([self.system()], islice(self.endless(rng), count))


def _duplex(rng: Rng, slices: int = 0) -> Iterator[Unit]:
    """A picture and a second of sound; now and then the model speaks for some seconds."""
    left = 0
    for second in counting():
        if left == 0 and rng.random() < 0.08:
            left = int(rng.integers(2, 9))
        words = 0
        if left:
            left -= 1
            # A turn's last second is short; full seconds speak as much as a unit may.
            words = int(rng.integers(3, 18)) if left == 0 else minicpm.SPOKEN - 2
        yield minicpm.unit(float(second), slices=slices, words=words)


def _slices(rng: Rng) -> Iterator[Unit]:
    return _duplex(rng, slices=9)


def _silence(rng: Rng) -> Iterator[Unit]:
    for second in counting():
        yield minicpm.unit(float(second), frames=0)


def _asked(rng: Rng, media: Callable[[float], Unit], often: float) -> Iterator[Unit]:
    """Blocks of two seconds, some followed by a question and its reply."""
    for block in counting():
        second = 2.0 * block
        yield media(second)
        if rng.random() < often:
            yield qwen.prompt(second + 2, int(rng.integers(5, 30)))
            yield qwen.reply(second + 2, int(rng.integers(10, 90)))


def _qwen_448(rng: Rng) -> Iterator[Unit]:
    return _asked(rng, lambda second: qwen.film(second, 448), 0.15)


def _qwen_1344(rng: Rng) -> Iterator[Unit]:
    return _asked(rng, lambda second: qwen.film(second, 1344), 0.15)


def _audio(rng: Rng) -> Iterator[Unit]:
    return _asked(rng, qwen.sound, 0.05)


def _dialogue(rng: Rng) -> Iterator[Unit]:
    for turn in counting():
        yield qwen.prompt(30.0 * turn, int(rng.integers(10, 200)))
        yield qwen.reply(30.0 * turn, int(rng.integers(30, 400)))


def _mix(rng: Rng) -> Iterator[Unit]:
    """Anything a Qwen stream may hold, in any order."""
    second = 0.0
    while True:
        kind = int(rng.choice(6, p=[0.35, 0.1, 0.2, 0.1, 0.1, 0.15]))
        side = 28 * int(rng.integers(4, 25))
        seconds = float(rng.choice([1.0, 2.0, 2.0, 4.0]))
        if kind <= 1:
            yield qwen.film(second, side, seconds, sound=kind == 0)
        elif kind == 2:
            yield qwen.sound(second, seconds)
        elif kind == 3:
            yield qwen.still(second, side)
        elif kind == 4:
            yield qwen.words(second, int(rng.integers(1, 60)))
        else:
            yield qwen.prompt(second, int(rng.integers(3, 80)))
            yield qwen.reply(second, int(rng.integers(1, 150)))
        second += seconds if kind <= 2 else 0.0


SHAPES: dict[str, Shape] = {
    shape.name: shape
    for shape in (
        Shape("minicpm-duplex", minicpm.system, _duplex),
        Shape("minicpm-slices", minicpm.system, _slices),
        Shape("qwen-448", qwen.system, _qwen_448),
        Shape("qwen-1344", qwen.system, _qwen_1344),
        Shape("audio", qwen.system, _audio),
        Shape("dialogue", qwen.system, _dialogue),
        Shape("silence", minicpm.system, _silence),
        Shape("mix", qwen.system, _mix),
    )
}


def make_shape(name: str) -> Shape:
    """A shape by name.

    Raises:
        ConfigError: No shape has that name.
    """
    if name not in SHAPES:
        raise ConfigError(f"[shape] expected one of {', '.join(SHAPES)}; got {name!r}")
    return SHAPES[name]


DEFAULT_SHAPE = "qwen-448"
"""Taken where none is named."""
