"""Attention over a step's live cells, in plain MLX operations.

Invariant: only live cells are gathered, so no dead row is ever multiplied by.

This path runs wherever MLX does, and for dtypes and head sizes that the shaders have no instances
for. The shaders, which read the pools in place, are launched from paged.py; backend.py chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from omnitide.backend import Array
from omnitide.backends.segments import equal_runs
from omnitide.pages import PAGE_SIZE
from omnitide.rotary import Table
from omnitide.step import Step

SCORES_AT_ONCE = 1 << 19
"""Scores that are made at once where attention is not fused; 2 MB in float32."""

SCORE_ARRAYS = 3
"""Scores, masked scores and their softmax: MLX puts one in another's place, unless its host thread
runs ahead of what computes."""

TURNED_AT_ONCE = 1024
"""Cells whose keys are turned at a time."""

TURNING = 5
"""Arrays as large as the cells that are turned, while they are: themselves, four products of their
halves, two sums of these, and what is put together of them; two would do if all were let go at
once."""


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
        cos=_table(step.cos),
        sin=_table(step.sin),
        query_cos=_table(step.query_cos),
        query_sin=_table(step.query_sin),
        mask=mask,
        sees=sees,
    )


def _table(angles: Table) -> Array:
    """On the device, with an axis for the heads; of a view MLX would hold the gaps as well."""
    return mx.array(np.ascontiguousarray(angles, np.float32)[:, None])


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotate the pairs (i, i + head_dim / 2), in float32.

    x (num_tokens, num_heads, head_dim); cos, sin (num_tokens, 1, head_dim / 2), float32.
    Same shape and dtype as x.
    """
    first, second = mx.split(x.astype(mx.float32), 2, axis=-1)
    turned = mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)


def gather(pool: Array, step: StepArrays, part: slice = slice(None)) -> Array:
    """A pool's rows of a part of the live cells, (num_kv_heads, num_cells, ...).

    In this order, because a product over each head's cells would first copy any other.
    """
    heads = mx.arange(pool.shape[1])[:, None]
    return pool[step.page[part][None], heads, step.row[part][None]]


def turned_keys(read: Callable[[slice], Array], step: StepArrays, *, fused: bool) -> Array:
    """Turned keys of the live cells, (num_kv_heads, num_cells, head_dim).

    Args:
        read: Gives the keys of a part of the cells, not turned.
        step: The step, with at least one cell.
        fused: As in `paged_attention`. If not, the keys are computed here, a part at a time: all
            that turning takes would else be as large as the history, several times.
    """
    count = step.page.size
    cos, sin = step.cos.transpose(1, 0, 2), step.sin.transpose(1, 0, 2)
    parts = []
    for start in range(0, count, count if fused else TURNED_AT_ONCE):
        part = slice(start, count if fused else min(start + TURNED_AT_ONCE, count))
        parts.append(rotate(read(part), cos[:, part], sin[:, part]))
        if not fused:
            mx.eval(parts[-1])
    keys = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=1)
    if not fused:
        mx.eval(keys)
    return keys


def paged_attention(
    q: Array, keys: Array, values: Array, step: StepArrays, scale: float, *, fused: bool
) -> Array:
    """Attention of the step's queries over its cells; see `Backend.attention`.

    Args:
        q: (num_queries, num_heads, head_dim), not yet turned, at least one query.
        keys: Turned, (num_kv_heads, num_cells, head_dim), at least one cell.
        values: Likewise.
        step: The step.
        scale: Factor of the scores.
        fused: Whether MLX attends without holding the scores.
    """
    queries = rotate(q, step.query_cos, step.query_sin).transpose(1, 0, 2)
    most = q.shape[0] if fused else rows_at_once(q.shape[1], step.page.size)
    out = _in_pieces(queries[None], keys[None], values[None], scale, step.mask, most)
    out = out[0].transpose(1, 0, 2)
    # A row that is masked throughout comes back as the mean of the values.
    return out if step.sees is None else mx.where(step.sees, out, mx.zeros_like(out))


def attention_bytes(
    num_cells: int,
    num_queries: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    itemsize: int,
    *,
    packed: bool,
    fused: bool,
) -> int:
    """Bytes that a step's arrays, `turned_keys` and `paged_attention` hold at most.

    Beside what is as large as the queries. `packed` is whether the pools have 8 bits.
    """
    values = num_cells * num_kv_heads * head_dim
    keys = values * itemsize
    half = itemsize < 4  # then more is held: turning and unpacking are done in float32
    angles = 4 * num_cells * head_dim
    places = 4 * 2 * (num_kv_heads + 1) * num_cells  # page and row of each cell, for each head
    part = num_cells if fused else min(TURNED_AT_ONCE, num_cells)
    turning = (TURNING + half + (packed and half)) * 4 * part * num_kv_heads * head_dim
    queries = TURNING * 4 * num_queries * num_heads * head_dim if half else 0
    unpacking = values * (5 if half else 1) if packed else 0
    rows = 0 if fused else min(rows_at_once(num_heads, num_cells), num_queries)
    # The mask is the same for all heads.
    scores = (SCORE_ARRAYS * num_heads * itemsize + 1) * rows * num_cells
    # Parts of the keys are put together while they are held; then they are let go.
    attending = queries + scores + unpacking + (turning if fused else 0)
    return angles + places + max(keys + turning, 2 * keys + attending)


def rows_at_once(batch: int, num_keys: int) -> int:
    """Queries whose scores are held at once where attention is not fused."""
    return max(SCORES_AT_ONCE // (batch * num_keys), 1)


def _in_pieces(
    q: Array, k: Array, v: Array, scale: float, mask: Array | str | None, most: int
) -> Array:
    """MLX's attention, `most` queries at a time; q, k and v (batch, heads, rows, head_dim).

    Each piece is computed before the next begins: else their scores would be held together.
    """
    attend = mx.fast.scaled_dot_product_attention
    count, num_keys = q.shape[2], k.shape[2]
    if count <= most:
        return attend(q, k, v, scale=scale, mask=mask)
    pieces = []
    for start in range(0, count, most):
        stop = min(start + most, count)
        seen, hides = num_keys, mask
        if isinstance(mask, str):
            # Causal: the last query of the piece sees no key beyond its own.
            seen = num_keys - count + stop
        elif mask is not None:
            hides = mask[start:stop]
        piece = attend(q[:, :, start:stop], k[:, :, :seen], v[:, :, :seen], scale=scale, mask=hides)
        mx.eval(piece)
        pieces.append(piece)
    return mx.concatenate(pieces, axis=2)


def paged_mass(
    q: Array, keys: Array, step: Step, at: StepArrays, scale: float, *, fused: bool
) -> Array:
    """Attention probabilities summed over queries and heads; see `Backend.attention_mass`.

    Float32; keys and `fused` as in `paged_attention`. One KV head at a time, which bounds the
    scores that are held at once, and its keys in float32; where MLX holds scores of attention too,
    few of its queries.
    """
    total = mx.zeros(step.num_cells, mx.float32)
    if step.num_cells == 0 or step.num_queries == 0:
        return total
    queries = rotate(q, at.query_cos, at.query_sin).astype(mx.float32)
    group = queries.shape[1] // len(keys)
    # Cells are in logical order, so a query sees a prefix of them.
    seen = mx.array(np.searchsorted(step.orders, step.query_orders, side="right"))
    cells = mx.arange(step.num_cells)
    count = step.num_queries
    # Scores, masked scores and shares are held together.
    most = count if fused else max(rows_at_once(group, step.num_cells) // 3, 1)
    for head in range(len(keys)):
        rows = queries[:, head * group : (head + 1) * group].transpose(1, 0, 2)
        of_head = keys[head].astype(mx.float32)
        for start in range(0, count, most):
            part = slice(start, min(start + most, count))
            visible = cells[None] < seen[part, None]
            scores = (rows[:, part] * scale) @ of_head.T
            scores = mx.where(visible, scores, -mx.inf)
            # A query that sees nothing gives NaN throughout, and all of it is left out.
            shares = mx.where(visible, mx.softmax(scores, axis=-1), 0.0)
            total = total + shares.sum(axis=(0, 1))
            if not fused:
                mx.eval(total)
    return total


def paged_weights(q: Array, keys: Array, step: Step, at: StepArrays, scale: float) -> Array:
    """Attention probabilities one by one; see `Backend.attention_weights`.

    Float32; keys as in `paged_attention`.
    """
    if step.num_cells == 0 or step.num_queries == 0:
        return mx.zeros((q.shape[1], step.num_queries, step.num_cells), mx.float32)
    keys = keys.astype(mx.float32)
    queries = rotate(q, at.query_cos, at.query_sin).astype(mx.float32).transpose(1, 0, 2)
    group = queries.shape[0] // len(keys)
    rows = queries.reshape(len(keys), group * step.num_queries, -1)
    scores = (rows * scale) @ keys.transpose(0, 2, 1)
    scores = scores.reshape(-1, step.num_queries, step.num_cells)
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
    *,
    fused: bool,
) -> Array:
    """Full attention inside each segment; see `Backend.segment_attention`.

    `fused` is as in `paged_attention`.
    """
    _, num_heads, head_dim = q.shape
    parts = []
    for run in equal_runs(lengths, key_lengths):
        queries, keys, values = (
            x.reshape(run.count, -1, num_heads, head_dim).transpose(0, 2, 1, 3)
            for x in (q[run.queries], k[run.keys], v[run.keys])
        )
        most = run.length if fused else rows_at_once(run.count * num_heads, run.key_length)
        mixed = _in_pieces(queries, keys, values, scale, None, most)
        parts.append(mixed.transpose(0, 2, 1, 3).reshape(-1, num_heads, head_dim))
    return mx.concatenate(parts) if parts else mx.zeros_like(q)
