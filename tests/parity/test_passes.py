"""Passes of one stream, one after the other: what a backend keeps between passes is right.

A backend may keep keys turned by their angles, and may record a pass to replay it. So a small
stream goes through long and one-token passes, evictions that lay positions out anew, migrations and
growing pools, twice, with each pass compared to an oracle that keeps a list of cells only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backend import Array, Backend, Pools
from omnitide.pages import PAGE_SIZE
from omnitide.rotary import Rotary
from omnitide.step import Step

Floats = NDArray[np.float64]

LAYERS, HEADS, KV_HEADS, HEAD_DIM, OUT = 2, 4, 2, 64, 24
HIDDEN = HEADS * HEAD_DIM
SCALE = HEAD_DIM**-0.5
ROTARY = Rotary(HEAD_DIM, 1e6, None)


@dataclass
class Stream:
    """The oracle's state: cells in logical order, and whatever the next step needs.

    Attributes:
        slots, positions: Of each cell, shape (num_cells,) and (num_cells, 3).
        keys, values: Of each layer, (num_cells, KV_HEADS, HEAD_DIM).
        rotation: Number of times that positions were laid out anew.
    """

    weights: dict[str, Floats]
    slots: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    positions: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 3), np.int32))
    keys: list[Floats] = field(
        default_factory=lambda: [np.empty((0, KV_HEADS, HEAD_DIM)) for _ in range(LAYERS)]
    )
    values: list[Floats] = field(
        default_factory=lambda: [np.empty((0, KV_HEADS, HEAD_DIM)) for _ in range(LAYERS)]
    )
    rotation: int = 0

    def step(self, count: int, known: bool) -> Step:
        orders = np.arange(len(self.slots), dtype=np.int32)
        cos, sin = ROTARY.tables(self.positions)
        new = slice(len(orders) - count, None)
        return Step(
            self.slots,
            orders,
            cos,
            sin,
            self.slots[new],
            orders[new],
            cos[new],
            sin[new],
            rotation=self.rotation if known else None,
        )

    def forward(self, x: Floats, slots: Any, positions: Any) -> Floats:
        """What the backend is to give for x, in float64."""
        self.slots = np.concatenate([self.slots, slots]).astype(np.int32)
        self.positions = np.concatenate([self.positions, positions]).astype(np.int32)
        count, total = len(x), len(self.slots)
        cos, sin = (part.astype(np.float64)[:, None] for part in ROTARY.tables(self.positions))

        def turned(rows: Floats, at: slice) -> Floats:
            half = HEAD_DIM // 2
            a, b = rows[..., :half], rows[..., half:]
            c, s = cos[at], sin[at]
            return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)

        for layer in range(LAYERS):
            q = (x @ self.weights[f"q{layer}"].T).reshape(count, HEADS, HEAD_DIM)
            k = (x @ self.weights[f"k{layer}"].T).reshape(count, KV_HEADS, HEAD_DIM)
            v = (x @ self.weights[f"v{layer}"].T).reshape(count, KV_HEADS, HEAD_DIM)
            self.keys[layer] = np.concatenate([self.keys[layer], k])
            self.values[layer] = np.concatenate([self.values[layer], v])
            q, k = turned(q, slice(total - count, None)), turned(self.keys[layer], slice(None))
            mixed = np.empty_like(q)
            hidden = np.arange(total) > np.arange(total - count, total)[:, None]
            for head in range(HEADS):
                kv = head // (HEADS // KV_HEADS)
                scores = np.where(hidden, -np.inf, q[:, head] @ k[:, kv].T * SCALE)
                shares = np.exp(scores - scores.max(axis=1, keepdims=True))
                shares /= shares.sum(axis=1, keepdims=True)
                mixed[:, head] = shares @ self.values[layer][:, kv]
            x = x + mixed.reshape(count, -1)
        return np.asarray(x[-1] @ self.weights["out"].T)

    def evict(self, keep: NDArray[np.int64], rng: np.random.Generator) -> None:
        self.slots = self.slots[keep]
        self.positions = rng.integers(0, 9_000, (len(keep), 3)).astype(np.int32)
        self.keys = [part[keep] for part in self.keys]
        self.values = [part[keep] for part in self.values]
        self.rotation += 1


@pytest.mark.parametrize("known", [True, False], ids=["angles-known", "angles-unknown"])
def test_passes_of_a_stream_match_oracle(
    backend: Backend,
    known: bool,
    rounded: Callable[..., Any],
    tolerance: Callable[[str], float],
    assert_matches: Callable[..., None],
) -> None:
    rng = np.random.default_rng(5)
    kv = KV_HEADS * HEAD_DIM
    sizes = {f"{part}{i}": HIDDEN if part == "q" else kv for part in "qkv" for i in range(LAYERS)}
    weights = {
        name: rounded(rng.standard_normal((rows, HIDDEN)) * HIDDEN**-0.5, backend.dtype)
        for name, rows in (sizes | {"out": OUT}).items()
    }
    device = backend.run(lambda: {name: backend.asarray(w) for name, w in weights.items()})
    # One forward function for the whole stream, as a model's is: what was recorded is replayed.
    passes = Passes(backend, device)
    pools = backend.run(backend.new_pools, LAYERS, KV_HEADS, HEAD_DIM, 5)
    stream, pages = Stream(weights), 5

    def go_on(count: int) -> None:
        free = np.setdiff1d(np.arange(pages * PAGE_SIZE), stream.slots)
        slots = rng.permutation(free)[:count]
        positions = rng.integers(0, 9_000, (count, 3))
        x = rounded(rng.standard_normal((count, HIDDEN)), backend.dtype)
        want = stream.forward(x, slots, positions)
        step = stream.step(count, known)
        # Several tokens come instead of the one that was prepared.
        likely = step if count == 1 else replace(step, query_orders=step.query_orders + 1)
        backend.run(backend.prepare, pools, likely)
        got = backend.run(
            lambda: backend.to_numpy(
                backend.forward_pass(passes.forward, backend.asarray(x), pools, step)
            )
        )
        # Two layers and the sum of three terms: each is rounded to the dtype.
        assert_matches(got, want, backend.dtype, 2 * tolerance(backend.dtype))

    for _ in range(2):
        for count in (40, 1, 1, 20, 1):
            go_on(count)
        stream.evict(np.flatnonzero(rng.random(len(stream.slots)) < 0.6), rng)
        for count in (1, 1, 17, 1):
            go_on(count)
        # Three rows move, and are then seen where they went.
        free = np.setdiff1d(np.arange(pages * PAGE_SIZE), stream.slots)[:3].astype(np.int32)
        backend.run(backend.migrate, pools, stream.slots[:3], free)
        stream.slots = np.concatenate([free, stream.slots[3:]])
        go_on(1)
        pages += 1
        backend.run(backend.grow_pools, pools, pages)
        go_on(1)
        go_on(1)


class Passes:
    """A small decoder of the stream's weights, made of the backend's operations."""

    def __init__(self, backend: Backend, weights: dict[str, Array]) -> None:
        self.backend, self.weights = backend, weights

    def forward(self, x: Array, pools: Pools, step: Step) -> Array:
        backend, weights = self.backend, self.weights
        for layer in range(LAYERS):
            q, k, v = (
                backend.linear(x, weights[f"{part}{layer}"]).reshape((x.shape[0], -1, HEAD_DIM))
                for part in "qkv"
            )
            backend.append(pools, layer, step, k, v)
            seen = backend.attention(q, pools, layer, step, SCALE)
            x = x + seen.reshape((x.shape[0], HIDDEN))
        return backend.linear(x[-1:], weights["out"]).reshape((-1,))
