"""The three patterns that the paper's retention design rests on, measured head by head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnitide.attention_map.classes import BOUNDARY, audio_classes, image_classes
from omnitide.attention_map.shares import Shares
from omnitide.config import RetentionConfig

Floats = NDArray[np.float64]

NEAR = slice(0, 2)
"""Distances that count as recent: the query's own unit and the one before."""

PAST = slice(1, None)
"""Distances of other units than the query's own."""


@dataclass(frozen=True, slots=True)
class Head:
    """A head that shows a pattern most.

    Attributes:
        pattern: "sinks", "recent" or "modality".
        layer: Number of the layer.
        head: Number of the head.
        value: Share of the pattern, in [0, 1]; for "modality" how many times as much a token of
            sound gets as one of a picture, both measured against even attention.
    """

    pattern: str
    layer: int
    head: int
    value: float


def sinks(shares: Shares, config: RetentionConfig) -> Floats:
    """Share of attention on boundaries and sinks of other units, shape (num_layers, num_heads)."""
    first = [*image_classes(0, config.image_sink), *audio_classes(0, config.audio_sink)]
    return shares.of([BOUNDARY, *first], PAST)[0]


def recent(shares: Shares) -> Floats:
    """Share of attention on the own unit and the one before, shape (num_layers, num_heads)."""
    return shares.of(distances=NEAR)[0]


def asymmetry(shares: Shares) -> Floats:
    """How many times as much a token of sound gets as one of a picture, (num_layers, num_heads).

    NaN where there is no sound, no picture, or no attention on them.
    """
    sound, even_sound = shares.of(audio_classes())
    picture, even_picture = shares.of(image_classes())
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = (sound / even_sound[:, None]) / (picture / even_picture[:, None])
    out: Floats = np.where((ratio > 0) & np.isfinite(ratio), ratio, np.nan)
    return out


def strongest(shares: Shares, layers: list[int], config: RetentionConfig) -> tuple[Head, ...]:
    """For each pattern the head that shows it most, the first of equals.

    Args:
        shares: Of the layers that were looked at.
        layers: Their numbers.
        config: Whose sink lengths count as sinks.
    """
    uneven = asymmetry(shares)
    found = []
    for name, values, strength in (
        ("sinks", sinks(shares, config), sinks(shares, config)),
        ("recent", recent(shares), recent(shares)),
        ("modality", uneven, np.abs(np.log(uneven))),
    ):
        if np.isnan(strength).all():
            continue
        layer, head = np.unravel_index(int(np.nanargmax(strength)), strength.shape)
        found.append(Head(name, layers[int(layer)], int(head), float(values[layer, head])))
    return tuple(found)
