"""What is known of published checkpoints without their weights.

A family's folder has a module `catalog` with `SUPPORTED`, one sentence for people, and
`known_checkpoints()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from omnitide.config import FamilyDefaults, MediaOptions
from omnitide.model import ModelSpec
from omnitide.models import FAMILIES

CountTokens = Callable[[MediaOptions, int, int, int, int], int]
"""Options, frames, height, width and 16 kHz samples of a media unit -> its tokens."""


@dataclass(frozen=True, slots=True)
class KnownCheckpoint:
    """A published checkpoint.

    Attributes:
        spec: Its shapes; the name is the repository's.
        parameters: Weights that are loaded.
        media_tokens: The model's own arithmetic.
        defaults: Of its family.
    """

    spec: ModelSpec
    parameters: int
    media_tokens: CountTokens
    defaults: FamilyDefaults


def supported() -> dict[str, str]:
    """Family name -> what of it is supported."""
    return {
        family.name: import_module(f"omnitide.models.{family.name}.catalog").SUPPORTED
        for family in FAMILIES
    }


def known_checkpoints() -> tuple[KnownCheckpoint, ...]:
    """The known checkpoints of all families."""
    found: list[KnownCheckpoint] = []
    for family in FAMILIES:
        module = import_module(f"omnitide.models.{family.name}.catalog")
        found.extend(module.known_checkpoints())
    return tuple(found)
