"""What the session tests share: a small model, a stream of known content, a session factory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
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


def make_second(index: int, picture: bool = True, sound: bool = True) -> MediaChunk:
    """A second of noise that depends on `index` alone."""
    random = np.random.default_rng(index)
    frames = (random.integers(0, 256, (28, 28, 3), np.uint8),) * picture
    samples = (0.1 * random.standard_normal(16_000)).astype(np.float32) if sound else None
    return MediaChunk(index, index + 1.0, frames, (float(index),) * picture, samples)


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
def second() -> Callable[..., MediaChunk]:
    """`second(index, picture=True, sound=True)`."""
    return make_second


@pytest.fixture(scope="session")
def model(tiny_checkpoint: Callable[..., Path]) -> Any:
    """A random Qwen2.5-Omni on the NumPy backend in float32."""
    backend = load_backend("reference", "float32")
    return backend.run(load_model, tiny_checkpoint(), backend, media=MEDIA)


FAMILIES = ("qwen2_5_omni", "minicpm_o 4.5", "minicpm_o 2.6")


@dataclass(frozen=True, slots=True)
class Family:
    """A small random model of a family.

    Attributes:
        model: On the NumPy backend in float32.
        seconds: Of a chunk.
        tokens: Of a chunk with picture and sound.
    """

    model: Any
    seconds: float
    tokens: int


def remember_media(owner: Any) -> None:
    """Let a model encode each chunk of a stream once, however many sessions follow it.

    What it gives is a function of the chunk and of the stream before it, and is never changed.
    """
    encode, known = owner.encode_media, {}

    def encode_once(chunk: MediaChunk, stream: Any) -> Any:
        shown = chunk.start, chunk.stop, len(chunk.frames), chunk.samples is None
        before = stream if shown[0] else None  # all streams begin alike
        key = (id(before), *shown)
        if key not in known:
            known[key] = (*encode(chunk, stream), before)
        return known[key][:2]

    owner.encode_media = encode_once


@pytest.fixture(scope="session")
def families(model: Any, minicpm_checkpoint: Callable[..., Path]) -> Callable[[str], Family]:
    """`families(name)`, a name of `FAMILIES`."""
    backend = model.backend

    @cache
    def load(name: str) -> Family:
        version = name.rpartition(" ")[2]
        if version == name:
            return Family(model, 2.0, 62)
        media = MediaOptions(fps=1.0, chunk_seconds=1.0)
        folder = minicpm_checkpoint(version=version)
        found = backend.run(load_model, folder, backend, media=media)
        remember_media(found)
        if found.duplex is not None:
            remember_media(found.duplex)
        return Family(found, 1.0, {"4.5": 66 + 12, "2.6": 1 + 66 + 27}[version])

    return load


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest, families: Callable[[str], Family]) -> Family:
    """Every family, and both releases of MiniCPM-o."""
    return families(request.param)


@pytest.fixture
def family_chunk(family: Family) -> Callable[..., MediaChunk]:
    """A chunk of the family's length: `family_chunk(index, picture=True, sound=True)`."""

    def make(index: int, picture: bool = True, sound: bool = True) -> MediaChunk:
        if family.seconds == 2.0:
            return make_chunk(index, picture, sound)
        return make_second(index, picture, sound)

    return make


@pytest.fixture
def open_family(family: Family, open_session: Callable[..., Session]) -> Callable[..., Session]:
    """A session of the family with tight watermarks: `open_family(**options of Session)`."""
    return partial(open_session, family.model)


@pytest.fixture
def open_session(model: Any) -> Callable[..., Session]:
    """A session with tight watermarks: `open_session(another model, **options of Session)`."""

    def open_(of: Any = None, **options: Any) -> Session:
        given = {"retention": TIGHT, "max_tokens": 12, "largest_unit": 100} | options
        return Session(of or model, **given)

    return open_
