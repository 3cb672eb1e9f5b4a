"""Attention over a step's live cells, in plain MLX operations.

Invariant: only live cells are gathered, so no dead row is ever multiplied by.

This path runs wherever MLX does, and for dtypes and head sizes that the shaders have no instances
for. The shaders, which read the pools in place, are launched from paged.py; backend.py chooses.
"""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from omnitide.backend import Array
from omnitide.backends.segments import equal_runs
from omnitide.pages import PAGE_SIZE
from omnitide.step import Step


@dataclass(frozen=True, slots=True)
class StepArrays:
    """A step on the device, shared by all layers. Holds no pool.

    Attributes:
        page, row: Where each live cell lies, int32, shape (num_cells,).
        cos, sin: Float32, shape (num_cells, 1, head_dim / 2).
        query_cos, query_sin: Float32, shape (num_queries, 1, head_dim / 2).
        mask: What each query sees, for `mx.fast.scaled_dot_product_attention`.
        sees: Whether each query sees anything, shape (num_queries, 1, 1). None: all do.
    """

    page: Array
    row: Array
    cos: Array
    sin: Array
    query_cos: Array
    query_sin: Array
    mask: Array | str | None
    sees: Array | None


def step_arrays(step: Step) -> StepArrays:
    """Put a step's cells on the device."""
    page, row = np.divmod(step.slots, PAGE_SIZE)
    mask: Array | str | None = None
    sees = None
    if step.is_suffix:
        # MLX aligns its causal mask with the last key, which is the last query here.
        mask = "causal" if step.num_queries > 1 else None
    elif not step.visible.all():
        mask = mx.array(step.visible)
        some = np.asarray(step.visible.any(axis=1))
        sees = None if some.all() else mx.array(some[:, None, None])
    return StepArrays(
        page=mx.array(page),
        row=mx.array(row),
        cos=mx.array(step.cos[:, None]),
        sin=mx.array(step.sin[:, None]),
        query_cos=mx.array(step.query_cos[:, None]),
        query_sin=mx.array(step.query_sin[:, None]),
        mask=mask,
        sees=sees,
    )


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotate the pairs (i, i + head_dim / 2), in float32.

    x (num_tokens, num_heads, head_dim); cos, sin (num_tokens, 1, head_dim / 2), float32.
    Same shape and dtype as x.
    """
    first, second = mx.split(x.astype(mx.float32), 2, axis=-1)
    turned = mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def paged_attention(q: Array, keys: Array, values: Array, step: StepArrays, scale: float) -> Array:
    """Attention of the step's queries over one layer's pools; see `Backend.attention`."""
    if step.page.size == 0:
        return mx.zeros_like(q)
    k = rotate(keys[step.page, :, step.row], step.cos, step.sin)
    v = values[step.page, :, step.row]
    queries = rotate(q, step.query_cos, step.query_sin)
    out = mx.fast.scaled_dot_product_attention(
        *(x.transpose(1, 0, 2)[None] for x in (queries, k, v)), scale=scale, mask=step.mask
    )
    out = out[0].transpose(1, 0, 2)
    # A row that is masked throughout comes back as the mean of the values.
    return out if step.sees is None else mx.where(step.sees, out, mx.zeros_like(out))


def paged_mass(q: Array, keys: Array, step: Step, at: StepArrays, scale: float) -> Array:
    """Attention probabilities summed over queries and heads; see `Backend.attention_mass`.

    Float32. One KV head at a time, which bounds the scores held at once.
    """
    total = mx.zeros(step.num_cells, mx.float32)
    if step.num_cells == 0 or step.num_queries == 0:
        return total
    k = rotate(keys[at.page, :, at.row], at.cos, at.sin).astype(mx.float32)
    queries = rotate(q, at.query_cos, at.query_sin).astype(mx.float32)
    group = queries.shape[1] // k.shape[1]
    # Cells are in logical order, so a query sees a prefix of them.
    seen = mx.array(np.searchsorted(step.orders, step.query_orders, side="right"))
    visible = mx.arange(step.num_cells)[None] < seen[:, None]
    for head in range(k.shape[1]):
        rows = queries[:, head * group : (head + 1) * group].transpose(1, 0, 2)
        scores = mx.where(visible, (rows * scale) @ k[:, head].T, -mx.inf)
        # A query that sees nothing gives NaN throughout, and all of it is left out.
        shares = mx.where(visible, mx.softmax(scores, axis=-1), 0.0)
        total = total + shares.sum(axis=(0, 1))
    return total


def paged_weights(q: Array, keys: Array, step: Step, at: StepArrays, scale: float) -> Array:
    """Attention probabilities one by one; see `Backend.attention_weights`. Float32."""
    if step.num_cells == 0 or step.num_queries == 0:
        return mx.zeros((q.shape[1], step.num_queries, step.num_cells), mx.float32)
    k = rotate(keys[at.page, :, at.row], at.cos, at.sin).astype(mx.float32)
    queries = rotate(q, at.query_cos, at.query_sin).astype(mx.float32).transpose(1, 0, 2)
    group = queries.shape[0] // k.shape[1]
    rows = queries.reshape(k.shape[1], group * step.num_queries, -1)
    scores = ((rows * scale) @ k.transpose(1, 2, 0)).reshape(-1, step.num_queries, step.num_cells)
    visible = mx.array(step.visible)
    scores = mx.where(visible, scores, -mx.inf)
    # A query that sees nothing gives NaN throughout, and all of it is left out.
    return mx.where(visible, mx.softmax(scores, axis=-1), 0.0)


def segment_attention(
    q: Array,
    k: Array,
    v: Array,
    lengths: tuple[int, ...],
    key_lengths: tuple[int, ...],
    scale: float,
) -> Array:
    """Full attention inside each segment; see `Backend.segment_attention`."""
    _, num_heads, head_dim = q.shape
    parts = []
    for run in equal_runs(lengths, key_lengths):
        batch = [
            x.reshape(run.count, -1, num_heads, head_dim).transpose(0, 2, 1, 3)
            for x in (q[run.queries], k[run.keys], v[run.keys])
        ]
        mixed = mx.fast.scaled_dot_product_attention(*batch, scale=scale)
        parts.append(mixed.transpose(0, 2, 1, 3).reshape(-1, num_heads, head_dim))
    return mx.concatenate(parts) if parts else mx.zeros_like(q)
