"""What a checkpoint itself says of the pictures it was made for, over its family's defaults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from omnitide.config import FamilyDefaults
from omnitide.errors import CheckpointError
from omnitide.models.headers import read_json

PREPROCESSOR = "preprocessor_config.json"
"""The file of the picture processor, as transformers names it. It may be missing."""

LEAST_PIXELS = 28 * 28


def own_defaults(family: FamilyDefaults, folder: Path) -> FamilyDefaults:
    """A family's defaults, with pictures no larger than the checkpoint's processor makes them.

    Published checkpoints allow more than the family's defaults, which then stay as they are.

    Args:
        family: Of the family.
        folder: Of the checkpoint.

    Raises:
        CheckpointError: The file is no JSON object, or its "max_pixels" no number of pixels.
    """
    own = read_json(folder / PREPROCESSOR, missing={}).get("max_pixels")
    if own is None:
        return family
    if type(own) is not int or own < LEAST_PIXELS:
        raise CheckpointError(
            f"[checkpoint] max_pixels in {folder / PREPROCESSOR} must be an integer of at least "
            f"{LEAST_PIXELS}, got {own!r}; correct it or remove the file"
        )
    most = min(own, family.max_pixels)
    return replace(family, max_pixels=most, min_pixels=min(family.min_pixels, most))
