"""What the model tests share: a loader, a bare cache to run passes over, the comparator."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backend import Backend
from omnitide.backends import BackendInfo, describe_backends, load_backend
from omnitide.config import MediaOptions
from omnitide.history import History
from omnitide.models import load_model
from omnitide.pages import PageTable
from omnitide.step import Step
from omnitide.units import Unit


@pytest.fixture(scope="session")
def reference() -> Backend:
    """The NumPy backend in float32."""
    return load_backend("reference", "float32")


@cache
def _loaded(name: str) -> Backend:
    return load_backend(name, "float32")


@pytest.fixture(params=[pytest.param(info, id=info.name) for info in describe_backends()])
def any_backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend of the registry in float32."""
    info: BackendInfo = request.param
    if not info.available:
        reason = f"{info.name} is not available: {info.note}"
        if info.name in os.environ.get("OMNITIDE_REQUIRE_BACKENDS", "").split(","):
            pytest.fail(reason)
        pytest.skip(reason)
    return _loaded(info.name)


@pytest.fixture(scope="session")
def load() -> Callable[..., Any]:
    """The model of a folder on a backend: `load(folder, backend, media=None)`."""

    @cache
    def load_once(folder: Path, backend: Backend, media: MediaOptions | None = None) -> Any:
        return backend.run(load_model, folder, backend, media=media)

    return load_once


class BareCache:
    """History, page table and pools without policy or session; slots are taken out of order."""

    def __init__(self, model: Any, num_pages: int = 16) -> None:
        spec = model.spec
        self.model = model
        self.history = History()
        self.table = PageTable(num_pages)
        self.pools = model.backend.new_pools(
            spec.num_layers, spec.num_kv_heads, spec.head_dim, num_pages
        )
        # Neither order nor position must lean on the slot, so slots come in a random order.
        self.free = np.random.default_rng(0).permutation(len(self.table.live)).astype(np.int32)

    def prefill(self, unit: Unit, embeddings: Any, piece: int | None = None) -> NDArray[Any]:
        """Append a unit in passes of `piece` tokens; logits of all its tokens."""
        model, backend = self.model, self.model.backend
        count, start = len(unit), len(self.history)
        slots, self.free = self.free[:count], self.free[count:]
        self.history = self.history.append(unit, slots)
        rows = []
        for at in range(0, count, piece or count):
            stop = min(at + (piece or count), count)
            step = self.step(start + at, start + stop)
            hidden = model.decoder.forward_hidden(embeddings[at:stop], self.pools, step)
            rows.append(backend.to_numpy(model.decoder.logits(hidden)))
        return np.concatenate(rows)

    def step(self, start: int, stop: int) -> Step:
        """A pass whose new tokens are cells [start, stop)."""
        cells = self.history.cells[:stop]
        cos, sin = self.model.spec.rotary.tables(cells["position"])
        orders = cells["order"].astype(np.int32)
        new = slice(start, stop)
        return Step(
            cells["slot"], orders, cos, sin, cells["slot"][new], orders[new], cos[new], sin[new]
        )

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Evict the cells where `mask` is false and fill their rows with NaN."""
        freed = self.history.cells["slot"][~mask]
        self.history = self.history.keep(mask)
        if not len(freed):
            return
        spec, backend = self.model.spec, self.model.backend
        orders = np.arange(len(freed), dtype=np.int32)
        cos, sin = spec.rotary.tables(np.zeros((len(freed), 3), np.int32))
        step = Step(freed, orders, cos, sin, freed, orders, cos, sin)
        poison = backend.asarray(
            np.full((len(freed), spec.num_kv_heads, spec.head_dim), np.nan, np.float32)
        )
        for layer in range(spec.num_layers):
            backend.append(self.pools, layer, step, poison, poison)


@pytest.fixture
def bare_cache() -> type[BareCache]:
    """A cache of any model: `bare_cache(model)`. Use it on the backend's thread."""
    return BareCache


@pytest.fixture
def assert_close() -> Callable[..., None]:
    """Same shape, finite, and within a tolerance of the largest value that is right.

    2e-5 is ten times what float32 and another order of sums make of these small models.
    """

    def check(got: Any, want: Any, tolerance: float = 2e-5) -> None:
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        assert got.shape == want.shape
        assert np.isfinite(got).all()
        error, largest = np.abs(got - want).max(), np.abs(want).max()
        assert largest > 1e-3
        assert error <= tolerance * largest, f"off by {error:.3g}, largest value {largest:.3g}"

    return check
