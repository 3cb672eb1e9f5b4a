"""An evicted cache against transformers' of the same cells at positions worked out by hand.

What survives keeps the K and V that it had, which saw the evicted tokens; so the oracle is not a
fresh prefill but transformers' own cache: keys are turned back by its own rotary embedding, cut,
and turned to where they belong.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backend import Backend
from omnitide.media.chunk import MediaChunk

QUESTION = "What now?"


@pytest.fixture
def pair(tiny_checkpoint: Callable[..., Path], transformers_thinker: Any, load: Any) -> Any:
    def make(backend: Backend) -> tuple[Any, Any]:
        folder = tiny_checkpoint()
        return load(folder, backend), transformers_thinker(folder)

    return make


def _stream(model: Any) -> list[Any]:
    """A system prefix and three chunks: pictures with sound, a still picture, sound."""
    random = np.random.default_rng(5)
    frames = tuple(random.integers(0, 256, (4, 112, 168, 3), dtype=np.uint8))
    samples = (0.1 * random.standard_normal(32_000)).astype(np.float32)
    chunks = [
        MediaChunk(0, 2, frames, (0, 0.5, 1, 1.5), samples),
        MediaChunk(2, 4, frames[:1], (2,), still=True),
        MediaChunk(4, 6, samples=samples[::-1].copy()),
    ]
    units, stream = [model.encode_system("Watch.")], model.new_stream()
    for chunk in chunks:
        unit, stream = model.encode_media(chunk, stream)
        units.append(unit)
    return units


def _evicted(model: Any, bare_cache: Any, keep: NDArray[np.bool_]) -> tuple[Any, Any, Any, Any]:
    """Cells before and after the eviction, logits of a question, embeddings. Backend's thread."""
    cache = bare_cache(model)
    units = _stream(model)
    for unit in units:
        cache.prefill(unit.unit, unit.embeddings)
    before = cache.history.cells.copy()
    cache.keep(keep)
    asked = model.encode_prompt(QUESTION)
    logits = cache.prefill(asked.unit, asked.embeddings)
    embeddings = [model.backend.to_numpy(unit.embeddings) for unit in (*units, asked)]
    return before, cache.history.cells, logits, np.concatenate(embeddings)


def _transformers(
    thinker: Any,
    embeddings: NDArray[np.float32],
    before: NDArray[np.int32],
    keep: NDArray[np.bool_],
    after: NDArray[np.int32],
) -> Any:
    """Logits of the tokens behind the cut ones.

    `before` are the positions of the cached tokens, (n, 3); `after` those of the kept and the new.
    """
    import torch
    from transformers import DynamicCache
    from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import rotate_half

    language_model = thinker.model.language_model

    def shaped(positions: NDArray[np.int32]) -> Any:
        return torch.from_numpy(positions.T.astype(np.int64)[:, None].copy())

    count, kept = len(before), int(keep.sum())
    hidden = torch.from_numpy(embeddings)[None]
    with torch.no_grad():
        cache = DynamicCache(config=thinker.config.text_config)
        language_model(
            inputs_embeds=hidden[:, :count],
            position_ids=shaped(before),
            cache=cache,
            use_cache=True,
        )
        chosen = torch.from_numpy(np.flatnonzero(keep))
        cos, sin = language_model.rotary_emb(hidden, shaped(before[keep]))
        new_cos, new_sin = language_model.rotary_emb(hidden, shaped(after[:kept]))
        for layer in cache.layers:
            keys = layer.keys[:, :, chosen]
            raw = keys * cos[:, None] - rotate_half(keys) * sin[:, None]
            layer.keys = raw * new_cos[:, None] + rotate_half(raw) * new_sin[:, None]
            layer.values = layer.values[:, :, chosen]
        out = language_model(
            inputs_embeds=hidden[:, count:],
            position_ids=shaped(after[kept:]),
            cache=cache,
            use_cache=True,
        )
        return thinker.lm_head(out.last_hidden_state)[0].numpy()


def _lengths(model: Any) -> list[int]:
    return [len(unit.unit) for unit in _stream(model)]


def test_a_whole_unit_is_evicted(
    pair: Any, any_backend: Backend, bare_cache: Any, assert_close: Any
) -> None:
    model, thinker = pair(any_backend)
    system, film, *rest = any_backend.run(_lengths, model)
    keep = np.ones(system + film + sum(rest), np.bool_)
    keep[system : system + film] = False
    before, cells, logits, embeddings = any_backend.run(_evicted, model, bare_cache, keep)

    # The film is 2 s long: 50 positions of sound and one at each end. All behind it moves by 52.
    positions = before["position"]
    assert positions[system + film].tolist() == (positions[system] + 52).tolist()
    after = positions[keep]
    after[system:] -= 52
    # The sound at the end was the last: its closing marker is the greatest position.
    new = np.arange(len(logits))[:, None] + after[-1] + 1
    after = np.concatenate([after, new])

    np.testing.assert_array_equal(cells["position"], after)
    assert_close(logits, _transformers(thinker, embeddings, positions, keep, after))
    # The paper's rule for text, a position a token, would be far off here.
    by_tokens = after.copy()
    by_tokens[system:] += 52 - film
    wrong = _transformers(thinker, embeddings, positions, keep, by_tokens)
    assert np.abs(wrong - logits).max() > 1e-2 * np.abs(logits).max()


def test_the_sinks_of_a_unit_stay(
    pair: Any, any_backend: Backend, bare_cache: Any, assert_close: Any
) -> None:
    model, thinker = pair(any_backend)
    system, film, *rest = any_backend.run(_lengths, model)
    keep = np.ones(system + film + sum(rest), np.bool_)
    # 112 x 168 pixels twice are 2 x 4 x 6 picture tokens, then 50 of sound: keep 5 of each, and
    # the markers at both ends.
    keep[system + 2 + 5 : system + 2 + 48] = False
    keep[system + 2 + 48 + 5 : system + 2 + 48 + 50] = False
    before, cells, logits, embeddings = any_backend.run(_evicted, model, bare_cache, keep)

    # Five picture tokens reach column 4, five of sound reach 4: the step now takes 5 positions
    # where it took 50.
    after = before["position"][keep]
    after[system + 2 + 10 :] -= 45
    new = np.arange(len(logits))[:, None] + after[-1] + 1
    after = np.concatenate([after, new])

    np.testing.assert_array_equal(cells["position"], after)
    want = _transformers(thinker, embeddings, before["position"], keep, after)
    assert_close(logits, want)


def test_nothing_evicted_changes_nothing(
    pair: Any, reference: Backend, bare_cache: Any, assert_close: Any
) -> None:
    model, thinker = pair(reference)
    keep = np.ones(sum(_lengths(model)), np.bool_)
    before, cells, logits, embeddings = _evicted(model, bare_cache, keep)
    after = cells["position"]
    assert_close(logits, _transformers(thinker, embeddings, before["position"], keep, after))
