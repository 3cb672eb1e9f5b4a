"""Taking a pass apart: each operation counts once, with its part, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from omnitide.backends.reference.backend import ReferenceBackend
from omnitide.bench.backbone import Backbone
from omnitide.bench.filled import FilledCache
from omnitide.bench.left import after, media
from omnitide.bench.settings import Settings
from omnitide.bench.shapes import make_shape
from omnitide.bench.split import PARTS, TimedBackend
from omnitide.model import EncodedUnit

Make = Callable[..., Settings]
LAYERS = 3


def test_parts_add_up_operation_by_operation(
    backend: ReferenceBackend,
    settings: Make,
    clockwork: Callable[..., list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clockwork(1.0)
    model = Backbone(make_shape("tiny"), backend, 0)
    cache = FilledCache(model, after(settings(), "full", "predictive", 64, 200), 64, 0)
    timer, stand_in = TimedBackend.around(backend)
    cache.use(model.on(stand_in))
    state = cache.state
    plain = backend.forward_pass
    monkeypatch.setattr(backend, "forward_pass", None)  # would replay what it recorded
    unit = EncodedUnit(media(64), model.embeddings(64))
    timed = cache.append(unit)
    # Appending and attending in each layer; the norm with q, k and v, the output and the MLP in
    # each layer, the query of the last one apart, and the vocabulary.
    assert timer.seconds == {
        "attention": 2.0 * LAYERS,
        "matrix": 3.0 * LAYERS + 2,
        "migration": 0.0,
    }
    cache.use(model)
    cache.state = state
    monkeypatch.setattr(backend, "forward_pass", plain)
    np.testing.assert_array_equal(cache.append(unit), timed)
    assert timer.seconds["attention"] == 2.0 * LAYERS


def test_a_migration_is_a_part(
    backend: ReferenceBackend, settings: Make, clockwork: Callable[..., list[int]]
) -> None:
    clockwork(0.5)
    model = Backbone(make_shape("tiny"), backend, 0)
    cache = FilledCache(model, after(settings(), "omnipick", "eager", 64, 1000), 64, 0)
    timer, stand_in = TimedBackend.around(backend)
    cache.use(model.on(stand_in))
    unit = EncodedUnit(media(64), model.embeddings(64))
    while cache.state.rows_moved == 0:
        cache.append(unit)
        cache.evict()
    assert timer.seconds["migration"] >= 0.5
    cache.check_integrity()


def test_all_else_is_the_backends_own(backend: ReferenceBackend) -> None:
    timer, _ = TimedBackend.around(backend)
    assert (timer.name, timer.dtype, timer.device) == ("reference", "float32", "here")
    assert timer.rms_norm == backend.rms_norm
    assert set(PARTS.values()) == {"attention", "matrix", "migration"}
    assert all(callable(getattr(backend, name)) for name in PARTS)
