"""What a user can force of the MLX backend: two environment variables.

Importing this module imports no array library.
"""

from __future__ import annotations

import os

from omnitide.errors import BackendError, ConfigError

ATTENTION = "OMNITIDE_MLX_ATTENTION"
"""`metal`: shaders, `plain`: MLX's own operations. Not set: shaders where Metal is."""

WRITE_THROUGH = "OMNITIDE_METAL_WRITE_THROUGH"
"""`1`: shaders write into the pools, which MLX can't see. Not set: MLX's own scatter."""


def takes_shaders(has_metal: bool) -> bool:
    """Whether attention runs through the shaders.

    Raises:
        ConfigError: The variable has another value than those above.
        BackendError: Shaders are asked for where Metal is not.
    """
    asked = os.environ.get(ATTENTION, "")
    if asked not in ("", "plain", "metal"):
        raise ConfigError(f"[backend] {ATTENTION} must be plain or metal, got {asked!r}")
    if asked == "metal" and not has_metal:
        raise BackendError(
            f"[backend] {ATTENTION}=metal needs a Mac with Metal; unset it to run in plain "
            "operations"
        )
    return has_metal and asked != "plain"


def writes_through() -> bool:
    """Whether shaders are to write into the pools.

    Raises:
        ConfigError: The variable has another value than 0 or 1.
    """
    asked = os.environ.get(WRITE_THROUGH, "")
    if asked not in ("", "0", "1"):
        raise ConfigError(f"[backend] {WRITE_THROUGH} must be 0 or 1, got {asked!r}")
    return asked == "1"
