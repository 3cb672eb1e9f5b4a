"""A small model, a short stream of known content, and a session that is watched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide import MediaOptions, Session
from omnitide.attention_map.watch import AttentionWatch
from omnitide.backends import load_backend
from omnitide.media.chunk import MediaChunk
from omnitide.models import load_model

MEDIA = MediaOptions(fps=2.0, chunk_seconds=2.0, max_pixels=56 * 56)


@pytest.fixture(autouse=True)
def _private_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def chunk() -> Callable[..., MediaChunk]:
    """Two seconds of noise that depends on the index alone: `chunk(index, picture, sound)`."""

    def make(index: int, picture: bool = True, sound: bool = True) -> MediaChunk:
        random = np.random.default_rng(index)
        start = 2.0 * index
        frames = tuple(random.integers(0, 256, (56, 56, 3), np.uint8) for _ in range(4 * picture))
        times = tuple(start + 0.5 * k for k in range(4 * picture))
        samples = (0.1 * random.standard_normal(32_000)).astype(np.float32) if sound else None
        return MediaChunk(start, start + 2.0, frames, times, samples)

    return make


@pytest.fixture(scope="session")
def model(tiny_checkpoint: Callable[..., Path]) -> Any:
    """A random Qwen2.5-Omni on the NumPy backend in float32."""
    backend = load_backend("reference", "float32")
    return backend.run(load_model, tiny_checkpoint(), backend, media=MEDIA)


@pytest.fixture
def watched(model: Any) -> Callable[..., tuple[Session, AttentionWatch]]:
    """A session with its watch: `watched(queries, layers, size, **options of Session)`."""

    def open_(
        queries: int = 10_000, layers: tuple[int, ...] = (), size: int = 64, **options: Any
    ) -> tuple[Session, AttentionWatch]:
        given = {"policy": "full", "max_tokens": 12, "largest_unit": 100} | options
        session = Session(model, **given)
        spec = model.spec
        watch = AttentionWatch(spec.num_layers, spec.num_heads, queries, layers, size)
        session.cache.watcher = watch
        return session, watch

    return open_
