"""The size of a unit: pictures and samples."""

from __future__ import annotations

from omnitide.media.chunk import SAMPLE_RATE

SIZE = 112
"""Width and height of a picture, pixels."""

FRAMES = 4
"""Pictures of a unit."""

SECONDS = 2
"""Length of a unit."""

SAMPLES = SECONDS * SAMPLE_RATE
"""Samples of a unit."""
