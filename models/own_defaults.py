"""What a checkpoint itself says, over its family's defaults.

Of the pictures it was made for, as published checkpoints do; and, under a key of ours, of the
retention that it was trained for or tuned on.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from omnitide.config import FamilyDefaults
from omnitide.errors import CheckpointError
from omnitide.models.headers import read_json

PREPROCESSOR = "preprocessor_config.json"
"""The file of the picture processor, as transformers names it. It may be missing."""

LEAST_PIXELS = 28 * 28

CONFIG, RETENTION = "config.json", "retention"
"""Where a checkpoint says what to keep: `"retention": {"image_sink": 0, "audio_sink": 0}`."""

KEPT = ("image_sink", "audio_sink", "text_budget")
"""What it may say there, each a number of tokens; see `FamilyDefaults`."""


def own_defaults(family: FamilyDefaults, folder: Path) -> FamilyDefaults:
    """A family's defaults, with what the checkpoint says in their place.

    Pictures are no larger than its processor makes them; published checkpoints allow more than the
    family's defaults, which then stay as they are.

    Args:
        family: Of the family.
        folder: Of the checkpoint.

    Raises:
        CheckpointError: A file is no JSON object, its "max_pixels" no number of pixels, or its
            "retention" says something else than how many tokens of `KEPT` are to stay.
    """
    kept = _own_retention(folder)
    most = min(_own_pixels(folder) or family.max_pixels, family.max_pixels)
    return replace(family, max_pixels=most, min_pixels=min(family.min_pixels, most), **kept)


def _own_pixels(folder: Path) -> int | None:
    own = read_json(folder / PREPROCESSOR, missing={}).get("max_pixels")
    if own is None or (type(own) is int and own >= LEAST_PIXELS):
        return own
    raise CheckpointError(
        f"[checkpoint] max_pixels in {folder / PREPROCESSOR} must be an integer of at least "
        f"{LEAST_PIXELS}, got {own!r}; correct it or remove the file"
    )


def _own_retention(folder: Path) -> dict[str, Any]:
    own = read_json(folder / CONFIG, missing={}).get(RETENTION)
    if own is None:
        return {}
    if isinstance(own, dict) and all(
        name in KEPT and type(value) is int and value >= 0 for name, value in own.items()
    ):
        return own
    raise CheckpointError(
        f"[checkpoint] {RETENTION} in {folder / CONFIG} must give numbers of tokens for "
        f"{', '.join(KEPT)}, got {own!r}; correct it or remove it"
    )
