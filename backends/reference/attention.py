"""Attention over a step's live cells, in NumPy.

Invariant: only live cells are gathered, so no dead row is ever multiplied by.

The cells are in logical order, so what a query sees is a prefix of them. That one number a query
replaces the mask: whole blocks of scores need none, and what no query of a block sees is left out.

A long history is held twice at most beside the pools, as turned keys and as values, and scores are
made a block at a time in the same memory; `attention_bytes` counts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.backends.segments import equal_runs
from omnitide.pages import PAGE_SIZE, Slots
from omnitide.step import Step

Floats = NDArray[Any]

SCORES_AT_ONCE = 1 << 21
"""Scores of one block of queries; 8 MB in float32. Twice or half of it is no faster."""

TURNED_AT_ONCE = 512
"""Cells whose keys are turned at a time, so that what that takes stays in a cache."""


TURNING = 3
"""Arrays as large as these cells while their keys are turned: both halves, and the two together."""


def rotate(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Rotate the pairs (i, i + head_dim / 2).

    x (num_tokens, num_heads, head_dim); cos, sin (num_tokens, head_dim / 2). Dtype of x.
    """
    cos, sin = cos[:, None].astype(x.dtype), sin[:, None].astype(x.dtype)
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def gather(pool: Floats, slots: Slots) -> Floats:
    """A copy of the rows in `slots`, (num_slots, kv_head, head_dim)."""
    page, row = np.divmod(slots, PAGE_SIZE)
    rows: Floats = pool[page, :, row]
    return rows


def attention_bytes(
    num_cells: int, num_queries: int, kv_heads: int, group: int, head_dim: int, itemsize: int
) -> int:
    """Bytes that `paged_attention` holds at most, beside what is as large as its queries."""
    block = rows_at_once(kv_heads, num_queries * group, num_cells)
    scores = kv_heads * block * num_cells * itemsize
    # Cells that some rows of a block see and others don't are new tokens.
    hidden = block * min(num_queries, num_cells)
    row = kv_heads * head_dim * itemsize
    turning = TURNING * min(TURNED_AT_ONCE, num_cells) * row
    # The one before the other; and what packed cells are unpacked from, before either.
    passing = max(scores + hidden, turning, num_cells * kv_heads * head_dim)
    places = 2 * 4 * num_cells
    return 2 * num_cells * row + places + passing


def rows_at_once(batch: int, num_rows: int, num_cells: int) -> int:
    """Rows of a block of scores."""
    return min(max(SCORES_AT_ONCE // max(batch * num_cells, 1), 1), num_rows)


def paged_attention(q: Floats, k: Floats, v: Floats, step: Step, scale: float) -> Floats:
    """Attention of the step's queries over its cells; see `Backend.attention`.

    k, v: rows of all cells, (num_cells, kv_head, head_dim); k is turned, so it is changed.
    """
    seen = _cells_seen(step)
    seeing = np.flatnonzero(seen)
    out = np.zeros_like(q)
    if len(seeing) == 0:
        return out
    rows, keys, row_seen = _grouped(q, k, step, seen)
    mixed = attend(rows, keys, v[: keys.shape[1]].transpose(1, 0, 2), scale, row_seen)
    spread = mixed.reshape(len(keys), len(seeing), -1, q.shape[2]).transpose(1, 0, 2, 3)
    out[seeing] = spread.reshape(-1, *q.shape[1:])
    return out


def paged_mass(q: Floats, k: Floats, step: Step, scale: float) -> Floats:
    """Attention probabilities summed over queries and heads; see `Backend.attention_mass`.

    k is as in `paged_attention`.
    """
    out = np.zeros(step.num_cells, q.dtype)
    seen = _cells_seen(step)
    if not seen.any():
        return out
    rows, keys, row_seen = _grouped(q, k, step, seen)
    for _, weights in _weights(rows, keys, scale, row_seen):
        shares = 1 / weights.sum(axis=-1, keepdims=True).transpose(0, 2, 1)
        out[: weights.shape[2]] += (shares @ weights).sum(axis=(0, 1))
    return out


def paged_weights(q: Floats, k: Floats, step: Step, scale: float) -> Floats:
    """Attention probabilities one by one; see `Backend.attention_weights`.

    k is as in `paged_attention`.
    """
    seen = _cells_seen(step)
    seeing = np.flatnonzero(seen)
    num_heads = q.shape[1]
    out = np.zeros((num_heads, len(q), step.num_cells), q.dtype)
    if len(seeing) == 0:
        return out
    rows, keys, row_seen = _grouped(q, k, step, seen)
    shares = np.zeros((*rows.shape[:2], keys.shape[1]), q.dtype)
    for block, weights in _weights(rows, keys, scale, row_seen):
        shares[:, block, : weights.shape[2]] = weights / weights.sum(axis=-1, keepdims=True)
    by_head = shares.reshape(len(keys), len(seeing), -1, keys.shape[1]).transpose(0, 2, 1, 3)
    out[:, seeing, : keys.shape[1]] = by_head.reshape(num_heads, len(seeing), -1)
    return out


def _cells_seen(step: Step) -> NDArray[np.int64]:
    """How many leading cells each query sees, shape (num_queries,)."""
    return np.searchsorted(step.orders, step.query_orders, side="right")


def _grouped(
    q: Floats, k: Floats, step: Step, seen: NDArray[np.int64]
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Rotated queries that see something, keys that are seen, and how many each row sees.

    Query heads of one KV head become rows of one matrix product: (kv_head, query x group, dim) and
    (kv_head, cell, dim). Changes k, whose rows are turned.
    """
    seeing = np.flatnonzero(seen)
    seen = seen[seeing]
    keys = k[: int(seen.max())]
    for start in range(0, len(keys), TURNED_AT_ONCE):
        part = slice(start, min(start + TURNED_AT_ONCE, len(keys)))
        keys[part] = rotate(keys[part], step.cos[part], step.sin[part])
    queries = rotate(q, step.query_cos, step.query_sin)[seeing]
    count, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    group = num_heads // num_kv_heads
    grouped = queries.reshape(count, num_kv_heads, group, head_dim).transpose(1, 0, 2, 3)
    rows = grouped.reshape(num_kv_heads, count * group, head_dim)
    return rows, keys.transpose(1, 0, 2), np.repeat(seen, group)


def segment_attention(
    q: Floats,
    k: Floats,
    v: Floats,
    lengths: tuple[int, ...],
    key_lengths: tuple[int, ...],
    scale: float,
) -> Floats:
    """Full attention inside each segment; see `Backend.segment_attention`."""
    out = np.empty_like(q)
    _, num_heads, head_dim = q.shape
    for run in equal_runs(lengths, key_lengths):
        # (segment x head, token, dim): every segment and head is one matrix product of a batch.
        queries, keys, values = (
            x.reshape(run.count, -1, num_heads, head_dim)
            .transpose(0, 2, 1, 3)
            .reshape(run.count * num_heads, -1, head_dim)
            for x in (q[run.queries], k[run.keys], v[run.keys])
        )
        mixed = attend(queries, keys, values, scale)
        mixed = mixed.reshape(run.count, num_heads, run.length, head_dim)
        out[run.queries] = mixed.transpose(0, 2, 1, 3).reshape(-1, num_heads, head_dim)
    return out


def attend(
    q: Floats, k: Floats, v: Floats, scale: float, seen: NDArray[np.int64] | None = None
) -> Floats:
    """Softmax attention of a batch.

    Args:
        q: (batch, num_rows, head_dim).
        k, v: (batch, num_cells, head_dim), num_cells at least 1.
        scale: Factor of the scores.
        seen: How many leading cells each row sees, at least 1, shape (num_rows,). None: all.

    Returns:
        (batch, num_rows, head_dim).
    """
    out = np.empty_like(q)
    for rows, weights in _weights(q, k, scale, seen):
        out[:, rows] = (weights @ v[:, : weights.shape[2]]) / weights.sum(axis=-1, keepdims=True)
    return out


def _weights(
    q: Floats, k: Floats, scale: float, seen: NDArray[np.int64] | None
) -> Iterator[tuple[slice, Floats]]:
    """Blocks of rows with their exponentials of scores, (batch, rows, cells seen by any of them).

    The arguments are those of `attend`. The scores of a block are gone once the next is asked for.
    """
    batch, num_rows, _ = q.shape
    num_cells = k.shape[1]
    block = rows_at_once(batch, num_rows, num_cells)
    memory = np.empty(batch * block * num_cells, q.dtype)
    for start in range(0, num_rows, block):
        rows = slice(start, min(start + block, num_rows))
        most = num_cells if seen is None else int(seen[rows].max())
        shape = (batch, rows.stop - start, most)
        scores = memory[: prod(shape)].reshape(shape)
        np.matmul(q[:, rows] * scale, k[:, :most].transpose(0, 2, 1), out=scores)
        if seen is not None:
            # Cells that every row of the block sees need no mask.
            least = int(seen[rows].min())
            hidden = np.arange(least, most) >= seen[rows, None]
            np.copyto(scores[:, :, least:], -np.inf, where=hidden)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        yield rows, scores
