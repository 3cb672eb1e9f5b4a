"""The resampler: a picture of any number of patches to a fixed number of tokens.

One cross-attention. Its queries are learned; the place of a patch is added to its key alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array, Backend
from omnitide.models.layers import LayerNorm, Linear, Weights
from omnitide.models.minicpm_o.config import LAYER_NORM_EPS, ResamplerConfig
from omnitide.models.minicpm_o.image import Patches
from omnitide.models.minicpm_o.names import FUSED

LONGEST_WAVE = 10_000.0
"""Ratio of the slowest to the fastest frequency of places, nearly."""


class Resampler:
    """Learned queries over the states of each picture's patches."""

    def __init__(self, config: ResamplerConfig, backend: Backend, weights: Weights) -> None:
        """Lay the output matrix out. Call on the backend's thread."""
        self.config = config
        self.backend = backend
        size, eps = config.hidden_size, LAYER_NORM_EPS
        self.q, self.k, self.v = _read_projections(weights, size)
        self.query: Array = weights["resampler.query"]
        self.into = Linear.read(weights, "resampler.kv_proj")
        self.query_norm = LayerNorm.read(weights, "resampler.ln_q", eps)
        self.patch_norm = LayerNorm.read(weights, "resampler.ln_kv", eps)
        self.o = Linear.read(weights, "resampler.attn.out_proj")
        self.output_norm = LayerNorm.read(weights, "resampler.ln_post", eps)
        # Stored (in, out), unlike every other matrix.
        into_decoder: Array = weights["resampler.proj"]
        stored = backend.to_numpy(into_decoder)
        self.output = Linear(backend.asarray(np.ascontiguousarray(stored.T)))

    def encode(self, states: Array, pictures: Sequence[Patches]) -> Array:
        """Tokens of each picture, shape (num_pictures * num_queries, hidden_size).

        Args:
            states: Of all patches, as `VisionTower.encode` gives them.
            pictures: What they were made from.
        """
        backend, config = self.backend, self.config
        size, heads = config.hidden_size, config.num_heads
        patches = self.patch_norm(backend, self.into(backend, states))
        places = np.concatenate([place_table(p.rows, p.columns, size) for p in pictures])
        k = self.k(backend, patches + backend.asarray(places))
        v = self.v(backend, patches)
        queries = self.q(backend, self.query_norm(backend, self.query))
        rows = np.tile(np.arange(config.num_queries), len(pictures))
        q, k, v = (
            x.reshape((x.shape[0], heads, size // heads))
            for x in (backend.take(queries, rows), k, v)
        )
        seen = backend.segment_attention(
            q,
            k,
            v,
            [config.num_queries] * len(pictures),
            (size // heads) ** -0.5,
            [len(picture.vectors) for picture in pictures],
        )
        out = self.o(backend, seen.reshape((len(rows), size)))
        return self.output(backend, self.output_norm(backend, out))


def _read_projections(weights: Weights, size: int) -> tuple[Linear, Linear, Linear]:
    """Projections to q, k and v, which lie in one matrix or in three."""
    if FUSED[0] not in weights:
        q, k, v = (Linear.read(weights, f"resampler.attn.{part}_proj") for part in "qkv")
        return q, k, v
    fused: Array = weights[FUSED[0]]
    bias: Array = weights[FUSED[1]]
    thirds = [slice(part * size, (part + 1) * size) for part in range(3)]
    q, k, v = (Linear(fused[third], bias[third]) for third in thirds)
    return q, k, v


def place_table(rows: int, columns: int, size: int) -> NDArray[np.float32]:
    """What is added to the key of each patch, row by row, float32, (rows * columns, size).

    The first half of the values encodes the column, the second the row: each is sines of all
    frequencies, then cosines.
    """
    count = size // 4
    frequency = LONGEST_WAVE ** (-np.arange(count) / count)
    row, column = np.divmod(np.arange(rows * columns), columns)
    column_angles, row_angles = column[:, None] * frequency, row[:, None] * frequency
    parts = [f(angles) for angles in (column_angles, row_angles) for f in (np.sin, np.cos)]
    return np.concatenate(parts, axis=1).astype(np.float32)
