"""What the session tests share: a small model, a stream of known content, a session factory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide import MediaOptions, RetentionConfig, Session
from omnitide.backends import load_backend
from omnitide.media.chunk import MediaChunk
from omnitide.models import load_model

MEDIA = MediaOptions(fps=2.0, chunk_seconds=2.0, max_pixels=56 * 56)
TIGHT = RetentionConfig(high_watermark=300, low_watermark=200, recent_units=1, text_budget=40)


def make_chunk(index: int, picture: bool = True, sound: bool = True) -> MediaChunk:
    """Two seconds of noise that depends on `index` alone; 62 tokens with picture and sound."""
    random = np.random.default_rng(index)
    start = 2.0 * index
    frames = tuple(random.integers(0, 256, (56, 56, 3), np.uint8) for _ in range(4 * picture))
    times = tuple(start + 0.5 * k for k in range(4 * picture))
    samples = (0.1 * random.standard_normal(32_000)).astype(np.float32) if sound else None
    return MediaChunk(start, start + 2.0, frames, times, samples)


@pytest.fixture(autouse=True)
def _private_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs that a session measures are kept away from those of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def chunk() -> Callable[..., MediaChunk]:
    """`chunk(index, picture=True, sound=True)`."""
    return make_chunk


@pytest.fixture(scope="session")
def model(tiny_checkpoint: Callable[..., Path]) -> Any:
    """A random Qwen2.5-Omni on the NumPy backend in float32."""
    backend = load_backend("reference", "float32")
    return backend.run(load_model, tiny_checkpoint(), backend, media=MEDIA)


@pytest.fixture
def open_session(model: Any) -> Callable[..., Session]:
    """A session with tight watermarks: `open_session(**options of Session)`."""

    def open_(**options: Any) -> Session:
        given = {"retention": TIGHT, "max_tokens": 12, "largest_unit": 100} | options
        return Session(model, **given)

    return open_
