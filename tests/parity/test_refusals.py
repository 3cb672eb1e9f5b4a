"""The same bad input gives the same error on every backend, before anything changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from omnitide.backend import Backend, Pools
from omnitide.step import Step


@dataclass(frozen=True)
class Given:
    """What a bad call may use: a backend, pools of 2 layers, 2 KV heads of 8, 2 pages, and a step.

    The step's three new tokens are its live cells too.
    """

    backend: Backend
    pools: Pools
    step: Step

    def zeros(self, *shape: int) -> Any:
        return self.backend.asarray(np.zeros(shape))

    def append(self, k: tuple[int, ...], v: tuple[int, ...], layer: int = 0, **step: Any) -> None:
        changed = replace(self.step, **step)
        self.backend.append(self.pools, layer, changed, self.zeros(*k), self.zeros(*v))

    def attend(self, q: tuple[int, ...], layer: int = 0, **step: Any) -> None:
        changed = replace(self.step, **step)
        self.backend.attention(self.zeros(*q), self.pools, layer, changed, 1.0)

    def weigh(self, q: tuple[int, ...], layer: int = 0, **step: Any) -> None:
        changed = replace(self.step, **step)
        self.backend.attention_mass(self.zeros(*q), self.pools, layer, changed, 1.0)

    def spread(self, q: tuple[int, ...], layer: int = 0, **step: Any) -> None:
        changed = replace(self.step, **step)
        self.backend.attention_weights(self.zeros(*q), self.pools, layer, changed, 1.0)

    def migrate(self, source: Any, destination: Any) -> None:
        self.backend.migrate(self.pools, np.array(source), np.array(destination))


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


TABLE = np.zeros((3, 3), np.float32)
KV = (3, 2, 8)

REFUSALS: dict[str, tuple[Callable[[Given], Any], str]] = {
    "random-size": (
        lambda g: g.backend.random_normal((2, -1), 1.0, 0),
        "[random_normal] sizes, scale and seed must be at least 0, got (2, -1), 1.0 and 0",
    ),
    "random-scale": (
        lambda g: g.backend.random_normal((2,), float("nan"), 0),
        "[random_normal] sizes, scale and seed must be at least 0, got (2,), nan and 0",
    ),
    "random-seed": (
        lambda g: g.backend.random_normal((2,), 1.0, -1),
        "[random_normal] sizes, scale and seed must be at least 0, got (2,), 1.0 and -1",
    ),
    "random-words-size": (
        lambda g: g.backend.random_words((2, -1), 0),
        "[random_words] sizes and seed must be at least 0, got (2, -1) and 0",
    ),
    "random-words-seed": (
        lambda g: g.backend.random_words((2,), -1),
        "[random_words] sizes and seed must be at least 0, got (2,) and -1",
    ),
    "timed-never": (
        lambda g: g.backend.timed(lambda index: None, 0),
        "[timed] repeat must be at least 1, got 0",
    ),
    "linear-in": (
        lambda g: g.backend.linear(g.zeros(2, 3), g.zeros(4, 5)),
        "[linear] the last axis of x must have size 5, got (2, 3)",
    ),
    "linear-weight": (
        lambda g: g.backend.linear(g.zeros(2, 3), g.zeros(3)),
        "[linear] weight must have shape (any, any), got (3,)",
    ),
    "linear-bias": (
        lambda g: g.backend.linear(g.zeros(2, 3), g.zeros(4, 3), g.zeros(1)),
        "[linear] bias must have shape (4), got (1,)",
    ),
    "linear-residual": (
        lambda g: g.backend.linear(g.zeros(2, 3), g.zeros(4, 3), None, g.zeros(4)),
        "[linear] residual must have shape (2, 4), got (4,)",
    ),
    "argmax-shape": (
        lambda g: g.backend.argmax(g.zeros(2, 3)),
        "[argmax] logits must have shape (any), got (2, 3)",
    ),
    "argmax-none": (
        lambda g: g.backend.argmax(g.zeros(0)),
        "[argmax] logits must be at least one, got none",
    ),
    "log-softmax-none": (
        lambda g: g.backend.log_softmax(g.zeros(0)),
        "[log_softmax] logits must be at least one, got none",
    ),
    "project-norm": (
        lambda g: g.backend.project(g.zeros(2, 3), g.zeros(4), 1e-6, [(g.zeros(4, 3), None)]),
        "[rms_norm] the last axis of x must have size 4, got (2, 3)",
    ),
    "project-second-matrix": (
        lambda g: g.backend.project(
            g.zeros(1, 3), g.zeros(3), 1e-6, [(g.zeros(4, 3), None), (g.zeros(4, 5), None)]
        ),
        "[linear] the last axis of x must have size 5, got (1, 3)",
    ),
    "gated-mlp-up": (
        lambda g: g.backend.gated_mlp(
            g.zeros(1, 3),
            g.zeros(3),
            1e-6,
            (g.zeros(8, 3), None),
            (g.zeros(9, 3), None),
            (g.zeros(3, 8), None),
        ),
        "[swiglu] up must have shape (1, 8), got (1, 9)",
    ),
    "gated-mlp-down": (
        lambda g: g.backend.gated_mlp(
            g.zeros(1, 3),
            g.zeros(3),
            1e-6,
            (g.zeros(8, 3), None),
            (g.zeros(8, 3), None),
            (g.zeros(4, 8), None),
        ),
        "[linear] residual must have shape (1, 4), got (1, 3)",
    ),
    "rms-weight": (
        lambda g: g.backend.rms_norm(g.zeros(2, 3), g.zeros(1), 1e-6),
        "[rms_norm] the last axis of x must have size 1, got (2, 3)",
    ),
    "layer-bias": (
        lambda g: g.backend.layer_norm(g.zeros(2, 3), g.zeros(3), g.zeros(1), 1e-6),
        "[layer_norm] bias must have shape (3), got (1,)",
    ),
    "swiglu": (
        lambda g: g.backend.swiglu(g.zeros(2, 3), g.zeros(1, 3)),
        "[swiglu] up must have shape (2, 3), got (1, 3)",
    ),
    "rotate-odd": (
        lambda g: g.backend.rotate(g.zeros(3, 1, 7), TABLE, TABLE),
        "[rotate] head_dim must be even, got 7",
    ),
    "rotate-table": (
        lambda g: g.backend.rotate(g.zeros(3, 1, 8), TABLE, TABLE),
        "[rotate] cos must have shape (3, 4), got (3, 3)",
    ),
    "segments-sum": (
        lambda g: g.backend.segment_attention(*[g.zeros(5, 1, 8)] * 3, [2, 2], 1.0),
        "[segment_attention] lengths must be at least 1 and add up to 5 tokens, got a least of 2 "
        "and a sum of 4",
    ),
    "segments-empty": (
        lambda g: g.backend.segment_attention(*[g.zeros(5, 1, 8)] * 3, [5, 0], 1.0),
        "[segment_attention] lengths must be at least 1 and add up to 5 tokens, got a least of 0 "
        "and a sum of 5",
    ),
    "segments-shape": (
        lambda g: g.backend.segment_attention(
            g.zeros(5, 2, 8), g.zeros(5, 1, 8), g.zeros(5, 2, 8), [5], 1.0
        ),
        "[segment_attention] k must have shape (5, 2, 8), got (5, 1, 8)",
    ),
    "segments-keys-sum": (
        lambda g: g.backend.segment_attention(
            g.zeros(5, 1, 8), g.zeros(6, 1, 8), g.zeros(6, 1, 8), [5], 1.0, [5]
        ),
        "[segment_attention] key_lengths must be at least 1 and add up to 6 keys, got a least of 5 "
        "and a sum of 5",
    ),
    "segments-no-keys": (
        lambda g: g.backend.segment_attention(
            g.zeros(5, 1, 8), g.zeros(6, 1, 8), g.zeros(6, 1, 8), [4, 1], 1.0, [6, 0]
        ),
        "[segment_attention] key_lengths must be at least 1 and add up to 6 keys, got a least of 0 "
        "and a sum of 6",
    ),
    "segments-as-many-keys": (
        lambda g: g.backend.segment_attention(
            g.zeros(5, 1, 8), g.zeros(6, 1, 8), g.zeros(6, 1, 8), [5], 1.0, [3, 3]
        ),
        "[segment_attention] key_lengths must be one for each of 1 segments, got 2",
    ),
    "segments-values": (
        lambda g: g.backend.segment_attention(
            g.zeros(5, 1, 8), g.zeros(6, 1, 8), g.zeros(5, 1, 8), [5], 1.0, [6]
        ),
        "[segment_attention] v must have shape (6, 1, 8), got (5, 1, 8)",
    ),
    "segments-keys-shape": (
        lambda g: g.backend.segment_attention(
            g.zeros(5, 2, 8), g.zeros(6, 1, 8), g.zeros(6, 1, 8), [5], 1.0, [6]
        ),
        "[segment_attention] k must have shape (any, 2, 8), got (6, 1, 8)",
    ),
    "concat-none": (
        lambda g: g.backend.concat([]),
        "[concat] at least one array must be given, got none",
    ),
    "concat-axis": (
        lambda g: g.backend.concat([g.zeros(2, 3)], axis=2),
        "[concat] axis must be one of the 2 axes, got 2",
    ),
    "concat-shape": (
        lambda g: g.backend.concat([g.zeros(2, 3), g.zeros(2, 4)]),
        "[concat] array 1 must have shape (any, 3), got (2, 4)",
    ),
    "take-range": (
        lambda g: g.backend.take(g.zeros(4, 2), [0, 4]),
        "[take] rows must lie in [0, 4), got 0 to 4",
    ),
    "take-negative": (
        lambda g: g.backend.take(g.zeros(4, 2), [-1]),
        "[take] rows must lie in [0, 4), got -1 to -1",
    ),
    "take-float": (
        lambda g: g.backend.take(g.zeros(4, 2), [1.0]),
        "[take] rows must be ints of one axis, got float64 of shape (1,)",
    ),
    "take-axes": (
        lambda g: g.backend.take(g.zeros(4, 2), [[1]]),
        "[take] rows must be ints of one axis, got int64 of shape (1, 1)",
    ),
    "pools-size": (
        lambda g: g.backend.new_pools(1, 2, 8, 0),
        "[new_pools] layers, KV heads, head_dim and pages must be at least 1 and head_dim even, "
        "got (1, 2, 8, 0)",
    ),
    "pools-odd": (
        lambda g: g.backend.new_pools(1, 2, 7, 1),
        "[new_pools] layers, KV heads, head_dim and pages must be at least 1 and head_dim even, "
        "got (1, 2, 7, 1)",
    ),
    "pools-shrink": (
        lambda g: g.backend.grow_pools(g.pools, 1),
        "[grow_pools] num_pages must be at least the present 2, got 1",
    ),
    "append-k": (
        lambda g: g.append((3, 1, 8), KV),
        "[append] k must have shape (3, 2, 8), got (3, 1, 8)",
    ),
    "append-v": (
        lambda g: g.append(KV, (2, 2, 8)),
        "[append] v must have shape (3, 2, 8), got (2, 2, 8)",
    ),
    "append-layer": (
        lambda g: g.append(KV, KV, layer=2),
        "[append] layer must lie in [0, 2), got 2",
    ),
    "append-slot": (
        lambda g: g.append(KV, KV, query_slots=ints(1, 128, 2)),
        "[append] query_slots must lie in [0, 128), got 1 to 128",
    ),
    "append-count": (
        lambda g: g.append(KV, KV, query_slots=ints(1, 2)),
        "[append] query_slots must have shape (3), got (2,)",
    ),
    "append-twice": (
        lambda g: g.append(KV, KV, query_slots=ints(1, 2, 1)),
        "[append] query_slots must be distinct, got 2 of 3",
    ),
    "attention-count": (
        lambda g: g.attend((2, 2, 8)),
        "[attention] q must have shape (3, any, 8), got (2, 2, 8)",
    ),
    "attention-groups": (
        lambda g: g.attend((3, 3, 8)),
        "[attention] query heads must be a multiple of 2 KV heads, got 3",
    ),
    "attention-layer": (
        lambda g: g.attend((3, 2, 8), layer=-1),
        "[attention] layer must lie in [0, 2), got -1",
    ),
    "attention-slot": (
        lambda g: g.attend((3, 2, 8), slots=ints(-1, 0, 1)),
        "[attention] slots must lie in [0, 128), got -1 to 1",
    ),
    "attention-orders": (
        lambda g: g.attend((3, 2, 8), orders=ints(1, 2)),
        "[attention] orders must have shape (3), got (2,)",
    ),
    "attention-table": (
        lambda g: g.attend((3, 2, 8), sin=TABLE),
        "[attention] sin must have shape (3, 4), got (3, 3)",
    ),
    "attention-query-table": (
        lambda g: g.attend((3, 2, 8), query_cos=TABLE),
        "[attention] query_cos must have shape (3, 4), got (3, 3)",
    ),
    "mass-count": (
        lambda g: g.weigh((2, 2, 8)),
        "[attention_mass] q must have shape (3, any, 8), got (2, 2, 8)",
    ),
    "mass-layer": (
        lambda g: g.weigh((3, 2, 8), layer=2),
        "[attention_mass] layer must lie in [0, 2), got 2",
    ),
    "mass-slot": (
        lambda g: g.weigh((3, 2, 8), slots=ints(0, 1, 128)),
        "[attention_mass] slots must lie in [0, 128), got 0 to 128",
    ),
    "weights-count": (
        lambda g: g.spread((2, 2, 8)),
        "[attention_weights] q must have shape (3, any, 8), got (2, 2, 8)",
    ),
    "weights-layer": (
        lambda g: g.spread((3, 2, 8), layer=2),
        "[attention_weights] layer must lie in [0, 2), got 2",
    ),
    "weights-slot": (
        lambda g: g.spread((3, 2, 8), slots=ints(0, 1, 128)),
        "[attention_weights] slots must lie in [0, 128), got 0 to 128",
    ),
    "migrate-count": (
        lambda g: g.migrate([1, 2], [3]),
        "[migrate] destination must have shape (2), got (1,)",
    ),
    "migrate-range": (
        lambda g: g.migrate([1, 2], [3, 128]),
        "[migrate] destination must lie in [0, 128), got 3 to 128",
    ),
    "migrate-negative": (
        lambda g: g.migrate([-1, 2], [3, 4]),
        "[migrate] source must lie in [0, 128), got -1 to 2",
    ),
    "migrate-float": (
        lambda g: g.migrate([1.0], [3]),
        "[migrate] source must be ints of one axis, got float64 of shape (1,)",
    ),
    "migrate-twice": (
        lambda g: g.migrate([1, 2], [3, 3]),
        "[migrate] destination must be distinct, got 1 of 2",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_bad_input_is_refused_alike_and_changes_nothing(
    any_backend: Backend, call: Callable[[Given], Any], message: str
) -> None:
    def refuse() -> tuple[str, bool]:
        pools = any_backend.new_pools(2, 2, 8, 2)
        table = np.zeros((3, 4), np.float32)
        slots, orders = ints(0, 64, 127), ints(1, 2, 3)
        step = Step(slots, orders, table, table, slots, orders, table, table)
        given = Given(any_backend, pools, step)
        ones = any_backend.asarray(np.arange(48).reshape(3, 2, 8))
        for layer in range(2):
            # Bits of every slot, so that a change anywhere shows.
            for start in range(0, 126, 3):
                at = replace(step, query_slots=ints(start, start + 1, start + 2))
                any_backend.append(pools, layer, at, ones, ones)
            any_backend.append(
                pools, layer, replace(step, query_slots=ints(125, 126, 127)), ones, ones
            )
        before = [any_backend.to_numpy(a) for a in (*pools.keys, *pools.values)]
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the whole text is compared
            call(given)
        after = [any_backend.to_numpy(a) for a in (*pools.keys, *pools.values)]
        same = all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
        return str(error.value), same

    assert any_backend.run(refuse) == (message, True)
