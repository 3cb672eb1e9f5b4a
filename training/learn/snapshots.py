"""Checkpoints of a run: written whole or not at all, so that a run can be stopped at any time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

FILE = "checkpoint.pt"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Write a state in place of the one before."""
    part = folder / f"{FILE}.part"
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(folder / FILE)


def read(folder: Path) -> dict[str, Any]:
    """The newest state of a run, on the CPU.

    Raises:
        OSError: There is none.
    """
    state: dict[str, Any] = torch.load(folder / FILE, map_location="cpu", weights_only=True)
    return state
