"""The file of `--plot`, opened before the work that is drawn and gone if that fails."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any


def open_picture(path: str | None) -> Any:
    """The picture to draw, as a context; None in it if there is none.

    Raises:
        ConfigError: matplotlib is missing, or the file can't be written.
    """
    if path is None:
        return nullcontext()
    from omnitide.simulation.picture import Picture  # needs matplotlib

    return Picture(path)
