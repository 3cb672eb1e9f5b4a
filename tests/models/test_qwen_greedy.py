"""Greedy replies against a plain loop over transformers, token for token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide.backend import Backend
from omnitide.media.chunk import MediaChunk
from omnitide.models.qwen2_5_omni.image import prepare_frames
from omnitide.models.qwen2_5_omni.mel import MelStream

NUM_TOKENS = 24


def _ours(model: Any, bare_cache: Any, chunk: MediaChunk) -> tuple[list[int], Any]:
    """Reply tokens, and those of the conversation before them. Call on the backend's thread."""
    cache = bare_cache(model)
    media, _ = model.encode_media(chunk, model.new_stream())
    logits = np.empty(0)
    for unit in (model.encode_system(None), media, model.encode_prompt("What do you see?")):
        logits = cache.prefill(unit.unit, unit.embeddings)[-1]
    asked = cache.history.cells["token"].copy()
    reply: list[int] = []
    while len(reply) < NUM_TOKENS:
        token = int(logits.argmax())
        unit = model.reply_unit([token], len(reply))
        logits = cache.prefill(unit, model.embed([token]))[-1]
        reply.append(token)
    return reply, asked


def _theirs(thinker: Any, tokens: Any, chunk: MediaChunk, media: Any) -> list[int]:
    """The same by transformers alone, from pixels and mel to positions and cache."""
    import torch

    patches, grid = prepare_frames(
        chunk.frames, min_pixels=media.min_pixels, max_pixels=media.max_pixels
    )
    assert chunk.samples is not None
    mel, _ = MelStream().push(chunk.samples)
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    with torch.no_grad():
        out = thinker(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values_videos=torch.from_numpy(patches),
            video_grid_thw=torch.tensor([grid]),
            video_second_per_grid=torch.tensor([1.0]),
            input_features=torch.from_numpy(mel.T.copy())[None],
            feature_attention_mask=torch.ones(1, len(mel), dtype=torch.long),
            use_audio_in_video=True,
            use_cache=True,
        )
        following = ids.shape[1] + int(thinker.model.rope_deltas)
        reply = [int(out.logits[0, -1].argmax())]
        while len(reply) < NUM_TOKENS:
            out = thinker(
                input_ids=torch.tensor([reply[-1:]]),
                cache=out.cache,
                use_cache=True,
                position_ids=torch.full((3, 1, 1), following + len(reply) - 1),
            )
            reply.append(int(out.logits[0, -1].argmax()))
    return reply


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_greedy_reply(
    seed: int,
    tiny_checkpoint: Callable[..., Path],
    transformers_thinker: Any,
    load: Any,
    any_backend: Backend,
    bare_cache: Any,
) -> None:
    folder = tiny_checkpoint(seed)
    model, thinker = load(folder, any_backend), transformers_thinker(folder)
    random = np.random.default_rng(seed)
    frames = tuple(random.integers(0, 256, (4, 120, 200, 3), dtype=np.uint8))
    samples = (0.1 * random.standard_normal(32_000)).astype(np.float32)
    chunk = MediaChunk(0, 2, frames, (0, 0.5, 1, 1.5), samples)
    reply, asked = any_backend.run(_ours, model, bare_cache, chunk)
    assert len(set(reply)) > 1
    assert reply == _theirs(thinker, asked, chunk, model.defaults)
