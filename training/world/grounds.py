"""What lies behind shapes and letters: crops of photographs, plain colours, gradients and noise.

`Picture.ground` counts the crops first, photograph by photograph, then plain colours, gradients
and noise. Negative numbers are the needle's grey waves at a phase.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Photograph:
    """A photograph that comes with scikit-image.

    Attributes:
        file: Name in `skimage/data`.
        split: The only split that sees it.
        licence: As its page in scikit-image tells it.
    """

    file: str
    split: str
    licence: str


PHOTOGRAPHS = (
    Photograph("astronaut.png", "train", "NASA, public domain"),
    Photograph("brick.png", "train", "CC0, CC0Textures"),
    Photograph("camera.png", "train", "CC0, Lav Varshney"),
    Photograph("cell.png", "train", "CC0, Paul Müller"),
    Photograph("clock_motion.png", "train", "public domain, Stefan van der Walt"),
    Photograph("hubble_deep_field.jpg", "train", "NASA, public domain"),
    Photograph("retina.jpg", "train", "CC0, Mikael Häggström"),
    Photograph("coffee.png", "tune", "CC0, Rachel Michetti"),
    Photograph("gravel.png", "tune", "CC0, CC0Textures"),
    Photograph("chelsea.png", "test", "CC0, Stefan van der Walt"),
    Photograph("grass.png", "test", "CC0, DeviantArt user linolafett"),
    Photograph("rocket.jpg", "test", "SpaceX, public domain"),
)
"""All photographs. Those of "tune" and "test" are never seen in training."""

CROPS = 32
"""Crops of each photograph."""

PATTERNS = 32
"""Plain colours; as many gradients; as many fields of noise."""

FIRST_PLAIN = len(PHOTOGRAPHS) * CROPS
FIRST_GRADIENT = FIRST_PLAIN + PATTERNS
FIRST_NOISE = FIRST_GRADIENT + PATTERNS
NUM_GROUNDS = FIRST_NOISE + PATTERNS

WAVE_PHASES = 30 * 97
"""Phases of the needle's waves: its own seeds tell 97 apart, and they go round in 30 seconds."""


def photographs_of(split: str) -> tuple[int, ...]:
    """The photographs of a split, by index."""
    return tuple(i for i, photograph in enumerate(PHOTOGRAPHS) if photograph.split == split)


def wave_ground(phase: int) -> int:
    """The `Picture.ground` of the needle's waves at a phase; any whole number."""
    return -1 - phase % WAVE_PHASES


def wave_phase(ground: int) -> int:
    """The phase of a negative `Picture.ground`."""
    return -1 - ground
