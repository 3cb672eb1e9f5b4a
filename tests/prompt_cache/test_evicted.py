"""After evictions: against keys that were never rotated, and against a rotation in float64.

The oracle is mlx-lm's model with a cache that keeps keys as they are before the rotation and
rotates all of them anew, from position 0, in every pass. So it knows nothing of turning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import KVCache
from mlx_lm.models.cache import make_prompt_cache as own_caches

from omnitide.mlx_lm import cache_stats, make_prompt_cache
from omnitide.mlx_lm.rotation import Rotation
from omnitide.mlx_lm.rows import Rows

HIGH, LOW, SINKS = 40, 24, 3


class QueriesOnly(nn.Module):
    """Rotates every first thing that it is given, the queries, and not the second, the keys."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.calls = 0

    def __call__(self, x: Any, offset: Any = 0) -> Any:
        self.calls += 1
        return self.inner(x, offset=offset) if self.calls % 2 else x


class UnrotatedCache:
    """Keys before the rotation; sinks and newest rows are kept."""

    def __init__(self, rotary: Any) -> None:
        self.rotary = rotary
        self.keys: Any = None
        self.values: Any = None

    @property
    def offset(self) -> int:
        return 0 if self.keys is None else int(self.keys.shape[2])

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        if self.keys is not None:
            keys = mx.concatenate([self.keys, keys], axis=2)
            values = mx.concatenate([self.values, values], axis=2)
        self.keys, self.values = keys, values
        return self.rotary(keys, offset=0), values

    def make_mask(self, N: int, **_: Any) -> Any:
        return create_causal_mask(N, self.offset)

    def cut(self) -> None:
        rows = self.offset
        if rows > HIGH:
            kept = mx.array([*range(SINKS), *range(rows - (LOW - SINKS), rows)])
            self.keys = mx.take(self.keys, kept, axis=2)
            self.values = mx.take(self.values, kept, axis=2)


def oracle_caches(model: Any) -> list[Any]:
    caches = list(own_caches(model))
    for layer, cache in enumerate(caches):
        if type(cache) is KVCache:
            attention = model.layers[layer].self_attn
            caches[layer] = UnrotatedCache(attention.rope)
            attention.rope = QueriesOnly(attention.rope)
    return caches


def chunks(count: int) -> Iterator[slice]:
    """Prefill in uneven pieces, then tokens one by one, then another prompt."""
    at = 0
    for size in (11, 13, 12, 16, *[1] * 30, 17, *[1] * 20, 15):
        yield slice(at, min(at + size, count))
        at += size


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "mistral",
        "mistral3",
        "qwen2",
        "qwen3",
        "qwen3-yarn",
        "gemma3",
        "phi3-longrope",
        "smollm3",
        "stablelm",
        "qwen3-next",
    ],
)
def test_logits_are_those_of_keys_that_were_never_rotated(
    name: str, tiny_model: Callable[..., Any], text: Callable[..., Any]
) -> None:
    model, other = tiny_model(name), tiny_model(name)
    ours = make_prompt_cache(
        model,
        policy="streaming-llm",
        high_watermark=HIGH,
        low_watermark=LOW,
        sink_tokens=SINKS,
    )
    theirs = oracle_caches(other)
    tokens = text(134)
    for piece in chunks(len(tokens)):
        ids = mx.array(tokens[piece])[None]
        got, wanted = np.array(model(ids, cache=ours)), np.array(other(ids, cache=theirs))
        for cache in theirs:
            if isinstance(cache, UnrotatedCache):
                cache.cut()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=3e-4 * np.abs(wanted).max())
        bounded = [c for c in ours if hasattr(c, "ledger")]
        straight = [c for c in theirs if isinstance(c, UnrotatedCache)]
        assert [c.offset for c in bounded] == [c.offset for c in straight]
    assert cache_stats(ours).evictions >= 5


def rotated(x: Any, positions: Any, base: float = 10000.0) -> Any:
    """Rotation of pairs (i, i + half) in float64. `x`: (rows, heads, size)."""
    half = x.shape[-1] // 2
    angles = positions[:, None, None] * base ** (-np.arange(half) / half)
    one, two = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([one * cos - two * sin, two * cos + one * sin], -1)


# Half precision: the rounding when it was written, of both of a pair, and that of the turn: 0.5 and
# 0.71 units. float32: angles of up to 63 radians are float32 too.
ALLOWED = {mx.float32: 64 * 2.0**-24, mx.float16: 1.25 * 2.0**-10, mx.bfloat16: 1.25 * 2.0**-7}


@pytest.mark.parametrize("dtype", ALLOWED)
def test_a_thousand_evictions_cost_no_more_than_one(dtype: Any) -> None:
    """Each one deletes row 5 of 64 and appends one: a key moves down by one, a thousand times."""
    random = np.random.default_rng(3)
    rotary = nn.RoPE(16)
    rotation = Rotation(rotary)
    rows, count, turned = Rows(), 64, 0
    raw = list(random.normal(size=(count, 2, 16)))

    def as_keys(x: Any) -> Any:
        return mx.array(np.stack(x).astype(np.float32)).transpose(1, 0, 2)[None]

    def take_in(new: list[Any], at: int) -> None:
        keys = rotary(as_keys(new).astype(dtype), offset=at)
        rows.append(at, keys, as_keys(new).astype(dtype))

    take_in(raw, 0)
    written = np.arange(count)
    worst = []
    for _ in range(1000):
        keep = np.delete(np.arange(count), 5)
        written = written[keep]
        shifts = (np.arange(count - 1) - written).astype(np.int32)
        rows = rows.kept(keep, turned, shifts, rotation, count)
        turned = count - 1
        raw = [*(raw[i] for i in keep), random.normal(size=(2, 16))]
        take_in(raw[-1:], count - 1)
        written = np.append(written, count - 1)
        got = np.array(rows.first(count)[0][0].astype(mx.float32)).transpose(1, 0, 2)
        true = rotated(np.stack(raw), np.arange(count))
        worst.append(np.abs(got - true).max() / np.abs(true).max())
        exact = np.array(rows.first(5)[0].astype(mx.float32))
        np.testing.assert_array_equal(
            exact, np.array(rotary(as_keys(raw[:5]).astype(dtype), offset=0).astype(mx.float32))
        )
    assert max(worst) < ALLOWED[dtype]
    assert max(worst[-300:]) < 1.3 * max(worst[100:400])  # by then every key has been turned
    values = np.array(rows.first(count)[1].astype(mx.float32))
    np.testing.assert_array_equal(values, np.array(as_keys(raw).astype(dtype).astype(mx.float32)))


def test_rows_that_do_not_move_keep_every_bit(text: Callable[..., Any]) -> None:
    random = np.random.default_rng(0)
    keys = mx.array(random.normal(size=(1, 2, 6, 8)).astype(np.float16))
    shifts = np.array([0, 0, -1, 0, -7, 5], np.int32)
    turned = np.array(Rotation(nn.RoPE(8)).turn(keys, shifts))
    same = shifts == 0
    np.testing.assert_array_equal(turned[:, :, same], np.array(keys)[:, :, same])
    assert (turned[:, :, ~same] != np.array(keys)[:, :, ~same]).any(axis=(0, 1, 3)).all()


@pytest.mark.parametrize("policy", ["turns", "omnipick", "streaming-vlm", "token-sliding", "fifo"])
def test_rows_are_the_tokens_that_are_said_to_be_kept(
    policy: str, tiny_model: Callable[..., Any], text: Callable[..., Any]
) -> None:
    """Layer 0 of a model without positions in its values: a value tells its token."""
    model, tokens = tiny_model("qwen2"), text(600)
    caches = make_prompt_cache(model, 100, low_watermark=64, policy=policy)
    for at in range(0, len(tokens), 20):
        mx.eval(model(mx.array(tokens[at : at + 20])[None], cache=caches))
        ledger = caches[0].ledger
        assert ledger.state.rows <= 100
        held = np.concatenate([ledger.state.history.cells["token"], ledger.pending.read()])
        layer = model.layers[0]
        hidden = layer.input_layernorm(model.model.embed_tokens(mx.array(held)[None]))
        wanted = layer.self_attn.v_proj(hidden).reshape(1, len(held), 2, 8).transpose(0, 2, 1, 3)
        got = caches[0].keys_and_values()[1]
        np.testing.assert_allclose(np.array(got), np.array(wanted), atol=1e-5)
        orders = ledger.state.history.cells["order"]
        assert (np.diff(orders) > 0).all()
        np.testing.assert_array_equal(tokens[orders], ledger.state.history.cells["token"])
        np.testing.assert_array_equal(held[-10:], tokens[: at + 20][-10:])
        assert ledger.state.tokens_seen == at + 20
    assert cache_stats(caches).evictions >= 5
