"""8-bit mu-law: sound in one byte a sample, finer where it is faint."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MU = 255.0


def encode(samples: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Codes of samples in [-1, 1]."""
    clipped = np.clip(samples.astype(np.float64), -1, 1)
    bent = np.sign(clipped) * np.log1p(MU * np.abs(clipped)) / np.log1p(MU)
    return np.round((bent + 1) / 2 * MU).astype(np.uint8)


def decoded() -> NDArray[np.float32]:
    """The sample of each of the 256 codes."""
    bent = np.arange(256) / MU * 2 - 1
    samples = np.sign(bent) * np.expm1(np.abs(bent) * np.log1p(MU)) / MU
    return samples.astype(np.float32)
