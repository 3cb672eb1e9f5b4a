"""What the benchmarks' tests share: a NumPy backend of their own, small settings, fixed times."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide.backends.reference.backend import ReferenceBackend
from omnitide.bench.ceilings import Ceilings
from omnitide.bench.settings import Settings
from omnitide.bench.shapes import make_shape
from omnitide.config import RetentionConfig


@pytest.fixture
def backend() -> ReferenceBackend:
    """A backend that a test may change."""
    return ReferenceBackend("float32", "here")


@pytest.fixture
def settings() -> Callable[..., Settings]:
    """`settings(**changes)`: the tiny shape, watermarks 300 and 200."""

    def make(**changes: Any) -> Settings:
        given = {"shape": make_shape("tiny"), "config": RetentionConfig(300, 200), "repeat": 3}
        return Settings(**(given | changes))

    return make


@pytest.fixture
def ceilings() -> Ceilings:
    """A gigabyte and 10 gigaflops a second."""
    return Ceilings(1e9, 1e10)


@pytest.fixture
def clockwork(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[int]]:
    """`clockwork(seconds)`: each timed call takes so long; returns a list of repeats asked for."""

    def wind(seconds: float) -> list[int]:
        asked: list[int] = []

        def timed(function: Callable[[int], Any], repeat: int) -> list[float]:
            asked.append(repeat)
            for index in range(repeat):
                function(index)
            return [seconds] * repeat

        monkeypatch.setattr(backend, "timed", timed)
        return asked

    return wind


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """`script(name)`: a module of the folder benchmarks/, which may import its neighbours."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module


@pytest.fixture
def turned() -> Callable[..., Any]:
    """`turned(keys, cos, sin)`: keys (cells, heads, 128) turned by the cells' angles."""

    def turn(keys: Any, cos: Any, sin: Any) -> Any:
        first, second = keys[..., :64], keys[..., 64:]
        c, s = cos[:, None], sin[:, None]
        return np.concatenate([first * c - second * s, second * c + first * s], axis=-1)

    return turn
