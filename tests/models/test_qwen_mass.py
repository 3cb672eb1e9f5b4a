"""Attention mass of a bounded cache against the attention probabilities that transformers returns.

Of the full history they are summed over layers, heads and queries; H2O must keep by them, and what
it keeps must go on from there: the question's probabilities come from transformers' own cache, cut
to the same cells and turned to their new positions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backend import Backend
from omnitide.cache import BoundedCache
from omnitide.capacity import bounded_capacity
from omnitide.config import RetentionConfig
from omnitide.layouts import make_layout
from omnitide.media.chunk import MediaChunk
from omnitide.policies import make_policy

LOW = 90


def _stream(model: Any) -> list[Any]:
    """A system prefix, pictures with sound, sound, and a question."""
    random = np.random.default_rng(8)
    frames = tuple(random.integers(0, 256, (4, 112, 112, 3), dtype=np.uint8))
    samples = (0.1 * random.standard_normal(32_000)).astype(np.float32)
    film = MediaChunk(0, 2, frames, (0, 0.5, 1, 1.5), samples)
    units, stream = [model.encode_system("Watch.")], model.new_stream()
    for chunk in (film, MediaChunk(2, 4, samples=samples[::-1].copy())):
        unit, stream = model.encode_media(chunk, stream)
        units.append(unit)
    return [*units, model.encode_prompt("What now?")]


def _followed(model: Any) -> dict[str, Any]:
    """Mass and cells before and after an eviction and after the question. Backend's thread."""
    *units, question = _stream(model)
    prefix, total = len(units[0].unit), sum(len(unit.unit) for unit in units)
    config = RetentionConfig(total - 1, LOW)
    capacity = bounded_capacity(config, prefix, total, 1)
    cache = BoundedCache(model, make_policy("h2o"), make_layout("paper"), config, capacity)
    for unit in units:
        cache.append(unit)
    before = cache.state
    evicted = cache.evict()
    assert evicted is not None
    after = cache.state
    cache.append(question)
    return {
        "before": before,
        "after": after,
        "asked": cache.state,
        "keep": evicted.retention.keep,
        "prefix": prefix,
        "embeddings": np.concatenate(
            [model.backend.to_numpy(unit.embeddings) for unit in (*units, question)]
        ),
    }


def _summed(attentions: Any) -> NDArray[np.float64]:
    """Over layers, heads and queries: shape (num_cells,)."""
    return np.sum([layer.numpy().astype(np.float64).sum((0, 1, 2)) for layer in attentions], 0)


def _transformers_masses(
    thinker: Any, found: dict[str, Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mass of the full history, and what the question adds to the cells that were kept and its."""
    import torch
    from transformers import DynamicCache
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import rotate_half

    language_model = thinker.model.language_model
    before, keep = found["before"].history.cells["position"], found["keep"]
    after = found["asked"].history.cells["position"]
    count, kept = len(before), int(keep.sum())

    def shaped(positions: NDArray[np.int32]) -> Any:
        return torch.from_numpy(positions.T.astype(np.int64)[:, None].copy())

    hidden = torch.from_numpy(found["embeddings"])[None]
    with torch.no_grad():
        cache = DynamicCache(config=thinker.config.text_config)
        first = language_model(
            inputs_embeds=hidden[:, :count],
            position_ids=shaped(before),
            cache=cache,
            use_cache=True,
            output_attentions=True,
        )
        chosen = torch.from_numpy(np.flatnonzero(keep))
        cos, sin = language_model.rotary_emb(hidden, shaped(before[keep]))
        new_cos, new_sin = language_model.rotary_emb(hidden, shaped(after[:kept]))
        for layer in cache.layers:
            keys = layer.keys[:, :, chosen]
            raw = keys * cos[:, None] - rotate_half(keys) * sin[:, None]
            layer.keys = raw * new_cos[:, None] + rotate_half(raw) * new_sin[:, None]
            layer.values = layer.values[:, :, chosen]
        second = language_model(
            inputs_embeds=hidden[:, count:],
            position_ids=shaped(after[kept:]),
            cache=cache,
            use_cache=True,
            output_attentions=True,
        )
    return _summed(first.attentions), _summed(second.attentions)


def test_mass_is_what_transformers_attends_with(
    tiny_checkpoint: Callable[..., Path],
    transformers_thinker: Any,
    load: Any,
    any_backend: Backend,
    assert_close: Any,
) -> None:
    folder = tiny_checkpoint()
    found = any_backend.run(_followed, load(folder, any_backend))
    mass, added = _transformers_masses(transformers_thinker(folder), found)
    assert len(added) == len(found["asked"].history) > LOW
    assert_close(found["before"].mass, mass)

    # The prefix, the newest half of the room beside it, and the heaviest of what lies between.
    prefix, total = found["prefix"], len(mass)
    heavy = (LOW - prefix) // 2
    recent = total - (LOW - prefix - heavy)
    ranked = sorted(range(prefix, recent), key=lambda i: -mass[i])
    kept = sorted([*range(prefix), *ranked[:heavy], *range(recent, total)])
    assert np.flatnonzero(found["keep"]).tolist() == kept
    assert_close(found["after"].mass, mass[kept])

    expected = np.concatenate([mass[kept], np.zeros(len(added) - len(kept))]) + added
    assert_close(found["asked"].mass, expected)


@pytest.mark.parametrize("pieces", [1, 7, 100])
def test_mass_does_not_depend_on_the_pieces_of_a_prefill(
    pieces: int,
    tiny_checkpoint: Callable[..., Path],
    load: Any,
    reference: Backend,
    assert_close: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = load(tiny_checkpoint(), reference)
    whole = _followed(model)
    monkeypatch.setattr(reference, "prefill_step", pieces)
    cut = _followed(model)
    assert cut["keep"].tolist() == whole["keep"].tolist()
    assert_close(cut["asked"].mass, whole["asked"].mass)
