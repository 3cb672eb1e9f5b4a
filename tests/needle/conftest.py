"""A small model for made-up streams, and a stand-in for a speech tool."""

from __future__ import annotations

import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide.backends import load_backend
from omnitide.evaluation.needle import sound
from omnitide.evaluation.runner import MEDIA
from omnitide.models import load_model


@pytest.fixture(autouse=True)
def _private_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def model(tiny_checkpoint: Callable[..., Path]) -> Any:
    """A random Qwen2.5-Omni on the NumPy backend in float32, cut a second at a time."""
    backend = load_backend("reference", "float32")
    return backend.run(load_model, tiny_checkpoint(), backend, media=MEDIA)


@pytest.fixture
def speech(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Sets what is on the PATH: `speech(script)`, a shell script named espeak-ng, or nothing.

    Beside it lies tone.wav, a second of 440 Hz at 22,050 Hz. $4 is the file to write, $5 the words.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    time = np.arange(22_050) / 22_050
    with wave.open(str(folder / "tone.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(22_050)
        file.writeframes((16_000 * np.sin(2 * np.pi * 440 * time)).astype("<i2").tobytes())

    def install(script: str | None) -> None:
        sound.say.cache_clear()
        tool = folder / "espeak-ng"
        tool.unlink(missing_ok=True)
        if script is not None:
            tool.write_text(f"#!/bin/sh\ncd {folder}\n{script}\n")
            tool.chmod(0o755)
        path = f"{folder}:/bin:/usr/bin"
        monkeypatch.setenv("PATH", path if script is not None else str(folder))

    return install
