"""Units as Qwen2.5-Omni lays them out: the family's own layout code on made-up sizes.

Questions and replies are units of their own, in the chat template's turns.
"""

from __future__ import annotations

from functools import cache

from omnitide.models.qwen2_5_omni.config import parse_config
from omnitide.models.qwen2_5_omni.image import grid_of
from omnitide.models.qwen2_5_omni.layout import Layout
from omnitide.models.qwen2_5_omni.presets import PRESETS
from omnitide.units import Role, Unit, UnitBuilder, UnitKind

WORD = 1000
"""Stands for any word; retention never looks at it."""

IM_START, IM_END = 151644, 151645
SYSTEM_WORDS = 35
"""Tokens of the system message that speech output needs."""

AUDIO_TOKENS_PER_SECOND = 25
FPS = 2


@cache
def layout() -> Layout:
    """The position rules of the published checkpoints (all sizes share them)."""
    return Layout.of(parse_config(next(iter(PRESETS.values()))))


def system() -> Unit:
    """The system message and the opening of the user's turn."""
    builder = UnitBuilder().text([IM_START, WORD, WORD], Role.BOUNDARY).text([WORD] * SYSTEM_WORDS)
    builder.text([IM_END, WORD, IM_START, WORD, WORD], Role.BOUNDARY)
    return builder.build(UnitKind.SYSTEM)


def film(second: float, side: int, seconds: float = 2.0, sound: bool = True) -> Unit:
    """Seconds of a square film of `side` pixels at two frames a second."""
    frames = max(round(seconds * FPS), 1)
    area = side * side
    grid = grid_of(frames, side, side, min_pixels=min(area, 56 * 56), max_pixels=area)
    builder = UnitBuilder()
    if sound:
        tokens = round(seconds * AUDIO_TOKENS_PER_SECOND)
        layout().film_with_sound(builder, grid, 2 / FPS, tokens)
    else:
        layout().film(builder, grid, 2 / FPS)
    return builder.build(UnitKind.MEDIA, second, seconds)


def sound(second: float, seconds: float = 2.0) -> Unit:
    """Seconds of sound alone."""
    builder = layout().sound(UnitBuilder(), round(seconds * AUDIO_TOKENS_PER_SECOND))
    return builder.build(UnitKind.MEDIA, second, seconds)


def still(second: float, side: int) -> Unit:
    """A square still picture of `side` pixels."""
    area = side * side
    grid = grid_of(1, side, side, min_pixels=min(area, 56 * 56), max_pixels=area)
    return layout().still(UnitBuilder(), grid).build(UnitKind.MEDIA, second)


def words(second: float, count: int) -> Unit:
    """Words in the user's turn."""
    return UnitBuilder().text([WORD] * count).build(UnitKind.TEXT, second)


def prompt(second: float, count: int) -> Unit:
    """A question of `count` words, and the opening of the assistant's turn."""
    builder = UnitBuilder().text([WORD] * count)
    builder.text([IM_END, WORD, IM_START, WORD, WORD], Role.BOUNDARY)
    return builder.build(UnitKind.PROMPT, second)


def reply(second: float, count: int) -> Unit:
    """A reply of `count` words, its end and the opening of the user's turn."""
    builder = UnitBuilder().text([WORD] * count).text([IM_END], Role.BOUNDARY)
    builder.text([WORD, IM_START, WORD, WORD], Role.BOUNDARY)
    return builder.build(UnitKind.REPLY, second)
