"""A hundred thousand tokens in flat memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step

from omnitide.mlx_lm import BoundedKVCache, cache_stats, make_prompt_cache

HIGH, LOW, STEP = 256, 192, 128


@pytest.mark.parametrize(("name", "count"), [("llama", 100_000), ("gemma3", 10_000)])
def test_a_long_text(
    name: str, count: int, tiny_model: Callable[..., Any], text: Callable[..., Any]
) -> None:
    model = tiny_model(name)
    caches = make_prompt_cache(model, HIGH, low_watermark=LOW)
    bounded = [c for c in caches if isinstance(c, BoundedKVCache)]
    active: list[int] = []
    peaks: list[int] = []
    sizes: list[int] = []
    ledgers: list[int] = []

    def progress(done: int, _: int) -> None:
        active.append(mx.get_active_memory())
        peaks.append(mx.get_peak_memory())
        mx.reset_peak_memory()
        sizes.append(sum(c.nbytes for c in caches))
        ledgers.append(len(bounded[0].ledger.state.history._buffer))
        assert all(c.size() <= HIGH for c in bounded)

    tokens = text(count)
    reply = generate_step(
        mx.array(tokens),
        model,
        max_tokens=300,
        prompt_cache=caches,
        prefill_step_size=STEP,
        prompt_progress_callback=progress,
    )
    replied = [t for t, _ in reply]
    stats = cache_stats(caches)
    assert len(replied) == 300
    assert stats.tokens_seen == count + 300
    assert stats.tokens_kept <= HIGH
    assert stats.evictions >= count // (2 * STEP)

    early, late = slice(5, 30), slice(-30, -5)  # all of them prefill
    assert max(active[late]) <= 1.05 * max(active[early])
    assert max(peaks[late]) <= 1.05 * max(peaks[early])
    assert max(sizes[late]) <= 1.05 * max(sizes[early])
    assert max(ledgers[late]) <= 1.05 * max(ledgers[early])
    assert len(bounded[0].ledger.state.history.units) < 100
    # Newest tokens are those that were said last.
    held = bounded[0].ledger.pending.read()
    np.testing.assert_array_equal(held[-8:], [*tokens.tolist(), *replied][-8:])
