"""With the full history, greedy replies equal a plain loop over transformers, token for token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide import Session
from omnitide.media.chunk import MediaChunk
from omnitide.models.qwen2_5_omni.image import prepare_frames
from omnitide.models.qwen2_5_omni.mel import MelStream


class PlainLoop:
    """transformers over the whole sequence for every token: no cache, positions of its own."""

    def __init__(self, thinker: Any, chunks: list[MediaChunk]) -> None:
        import torch

        self.torch, self.thinker = torch, thinker
        pixels, grids, mels = [], [], []
        stream = MelStream()
        for chunk in chunks:
            patches, grid = prepare_frames(chunk.frames, min_pixels=56 * 56, max_pixels=56 * 56)
            mel, stream = stream.push(chunk.samples)
            pixels.append(torch.from_numpy(patches))
            grids.append(grid)
            mels.append(mel.T)
        features = np.zeros((len(mels), 128, max(m.shape[1] for m in mels)), np.float32)
        mask = np.zeros((len(mels), features.shape[2]), np.int64)
        for index, mel in enumerate(mels):
            features[index, :, : mel.shape[1]] = mel
            mask[index, : mel.shape[1]] = 1
        self.media = {
            "pixel_values_videos": torch.cat(pixels),
            "video_grid_thw": torch.tensor(grids),
            "input_features": torch.from_numpy(features),
            "feature_attention_mask": torch.from_numpy(mask),
            "video_second_per_grid": torch.ones(len(chunks)),
            "use_audio_in_video": True,
        }

    def next_token(self, ids: list[int]) -> int:
        torch = self.torch
        with torch.no_grad():
            out = self.thinker(
                input_ids=torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                use_cache=False,
                **self.media,
            )
        return int(out.logits[0, -1].argmax())

    def reply(self, ids: list[int], count: int) -> list[int]:
        said: list[int] = []
        while len(said) < count:
            said.append(self.next_token([*ids, *said]))
        return said


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_greedy_replies_equal_a_plain_loop(
    tiny_checkpoint: Callable[..., Path],
    transformers_thinker: Callable[[Path], Any],
    open_session: Callable[..., Session],
    chunk: Callable[..., MediaChunk],
) -> None:
    chunks = [chunk(index) for index in range(4)]
    thinker = transformers_thinker(tiny_checkpoint())
    session = open_session(policy="full")

    for piece in chunks[:3]:
        session.append_media(piece)
    first = [r.token for r in session.ask("What do you see?", max_tokens=8)]
    session.append_media(chunks[3])
    session.append_text("Listen.")
    second = [r.token for r in session.ask("And what do you hear?", max_tokens=8)]

    ids = session.cache.history.cells["token"].tolist()
    at = find(ids, first)
    loop = PlainLoop(thinker, chunks[:3])
    assert loop.reply(ids[:at], 8) == first
    at = find(ids, second, at + 8)
    assert PlainLoop(thinker, chunks).reply(ids[:at], 8) == second


def find(ids: list[int], part: list[int], start: int = 0) -> int:
    """Where `part` begins in `ids`, from `start` on."""
    for at in range(start, len(ids)):
        if ids[at : at + len(part)] == part:
            return at
    raise AssertionError("the reply is not in the history")
