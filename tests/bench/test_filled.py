"""A cache begun in the middle of a stream: what it takes over, and that it goes on from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omnitide.backends.reference.backend import ReferenceBackend
from omnitide.bench.backbone import Backbone
from omnitide.bench.filled import FilledCache
from omnitide.bench.left import after, just_before_a_cut, media
from omnitide.bench.settings import Settings
from omnitide.bench.shapes import make_shape
from omnitide.model import EncodedUnit
from omnitide.pages import PAGE_SIZE

Make = Callable[..., Settings]


@pytest.fixture
def poisoned(backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch) -> ReferenceBackend:
    """A backend whose new pools hold NaN."""
    plain = backend.new_pools

    def new_pools(*sizes: int) -> Any:
        pools = plain(*sizes)
        for array in (*pools.keys, *pools.values):
            array[:] = np.nan
        return pools

    monkeypatch.setattr(backend, "new_pools", new_pools)
    return backend


@pytest.mark.parametrize("layout", ["predictive", "native"])
def test_exactly_the_live_cells_are_filled(
    poisoned: ReferenceBackend, settings: Make, layout: str
) -> None:
    left = just_before_a_cut(settings(stream="audio"), "omnipick", layout, 300)
    cache = FilledCache(Backbone(make_shape("tiny"), poisoned, 0), left, 64, 5)
    page, row = np.divmod(np.arange(cache.pools.num_pages * PAGE_SIZE), PAGE_SIZE)
    live = np.isin(page * PAGE_SIZE + row, left.history.cells["slot"])
    for array in (*cache.pools.keys, *cache.pools.values):
        rows = array[page, :, row]
        assert np.isfinite(rows[live]).all()
        assert np.isnan(rows[~live]).all()
        # Random, so no two are equal.
        assert len(np.unique(rows[live].reshape(300, -1), axis=0)) == 300
    assert not np.array_equal(cache.pools.keys[0], cache.pools.values[0], equal_nan=True)
    assert cache.state.history is left.history
    cache.check_integrity()


def test_the_stream_goes_on_and_is_cut(poisoned: ReferenceBackend, settings: Make) -> None:
    left = after(settings(), "omnipick", "predictive", 64, 1000)
    model = Backbone(make_shape("tiny"), poisoned, 0)
    cache = FilledCache(model, left, 64, 5)
    for _ in range(6):
        logits = cache.append(EncodedUnit(media(64), model.embeddings(64)))
        cache.evict()
        # NaN in a dead row, or in a live one that was not filled, would show.
        assert np.isfinite(logits).all()
    assert cache.state.evictions > 0
    assert len(cache.history) <= 300
    cache.check_integrity()


def test_a_full_history_needs_no_growth(backend: ReferenceBackend, settings: Make) -> None:
    left = after(settings(), "full", "predictive", 64, 1000)
    model = Backbone(make_shape("tiny"), backend, 0)
    cache = FilledCache(model, left, 192, 5)
    pages = cache.pools.num_pages
    assert pages <= (1000 + 192) // PAGE_SIZE + 10
    for _ in range(3):
        cache.append(EncodedUnit(media(64), model.embeddings(64)))
    assert cache.pools.num_pages == pages
    assert len(cache.history) == 1192
