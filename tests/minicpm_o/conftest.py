"""The golden data: a tiny random model and what the published code made of it.

`tests/golden/minicpm_o/MANIFEST.md` names every array, its tolerance and the quirks behind it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from omnitide.models.minicpm_o.config import MiniCPMConfig, parse_config

Golden = Callable[[str], Mapping[str, NDArray[Any]]]

FOLDER = Path(__file__).parent.parent / "golden" / "minicpm_o"


@pytest.fixture(scope="session")
def golden_folder() -> Path:
    """The folder of the golden data; it is also a checkpoint without a tokenizer."""
    return FOLDER


@pytest.fixture(scope="session")
def golden() -> Golden:
    """The arrays of a case by name: `golden("01_image_grid_table")["table"]`."""

    @cache
    def read(name: str) -> Mapping[str, NDArray[Any]]:
        with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}

    return read


@pytest.fixture(scope="session")
def golden_weights() -> dict[str, NDArray[np.float32]]:
    """The tensors of the tiny model by canonical name: the published one without "llm."."""
    stored = load_file(FOLDER / "model.safetensors")
    return {name.removeprefix("llm."): tensor for name, tensor in stored.items()}


@pytest.fixture(scope="session")
def golden_config() -> MiniCPMConfig:
    """The configuration of the tiny model."""
    return parse_config(json.loads((FOLDER / "config.json").read_text()))


@pytest.fixture(scope="session")
def golden_tokens() -> dict[str, int]:
    """Tiny id of every added token by its text."""
    table = json.loads((FOLDER / "token_map.json").read_text())["tokens_real_tiny"]
    return {text: tiny for text, (_, tiny) in table.items()}


@pytest.fixture(scope="session")
def long_wave(golden: Golden) -> NDArray[np.float32]:
    """33 s of sound: the longest clip again and again, each time of another loudness."""
    clip = golden("05_audio_7.0s_wave_mel")["wav_i16"].astype(np.float32) / 32768
    gains = golden("07_audio_long")["gains"]
    return np.concatenate([np.clip(clip * gain, -1, 1) for gain in gains])[: 33 * 16_000]
