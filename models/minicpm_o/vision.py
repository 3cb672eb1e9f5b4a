"""The vision tower (SigLIP NaViT): patches of pictures of any shape to one state for each patch.

Pictures go through together, each a segment of its own: none sees another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array, Backend
from omnitide.models.layers import LayerNorm, Linear, Weights
from omnitide.models.minicpm_o.config import VisionConfig
from omnitide.models.minicpm_o.image import PATCH_VALUES, Patches

_EIGHT = 8  # float32 values of a vector register, where the positions of training were computed


@dataclass(frozen=True, slots=True)
class VisionLayer:
    """One block: attention inside segments, then the MLP, each after a norm."""

    attention_norm: LayerNorm
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    mlp_norm: LayerNorm
    fc1: Linear
    fc2: Linear

    @classmethod
    def read(cls, weights: Weights, name: str, eps: float) -> VisionLayer:
        """The block stored under `name`."""
        return cls(
            attention_norm=LayerNorm.read(weights, f"{name}.layer_norm1", eps),
            q=Linear.read(weights, f"{name}.self_attn.q_proj"),
            k=Linear.read(weights, f"{name}.self_attn.k_proj"),
            v=Linear.read(weights, f"{name}.self_attn.v_proj"),
            o=Linear.read(weights, f"{name}.self_attn.out_proj"),
            mlp_norm=LayerNorm.read(weights, f"{name}.layer_norm2", eps),
            fc1=Linear.read(weights, f"{name}.mlp.fc1"),
            fc2=Linear.read(weights, f"{name}.mlp.fc2"),
        )


class VisionTower:
    """Encodes pictures as `image.prepare_picture` gives them."""

    def __init__(self, config: VisionConfig, backend: Backend, weights: Weights) -> None:
        self.config = config
        self.backend = backend
        # A convolution whose stride is its kernel is a matrix product over flattened patches.
        kernel: Array = weights["vpm.embeddings.patch_embedding.weight"]
        self.patch_embed = Linear(
            kernel.reshape((config.hidden_size, PATCH_VALUES)),
            weights["vpm.embeddings.patch_embedding.bias"],
        )
        self.positions = weights["vpm.embeddings.position_embedding.weight"]
        self.layers = [
            VisionLayer.read(weights, f"vpm.encoder.layers.{layer}", config.layer_norm_eps)
            for layer in range(config.num_layers)
        ]
        self.norm = LayerNorm.read(weights, "vpm.post_layernorm", config.layer_norm_eps)

    def encode(self, pictures: Sequence[Patches]) -> Array:
        """States of all patches, shape (num_patches, hidden_size), picture by picture.

        Args:
            pictures: At least one source image or slice.
        """
        lengths = [len(picture.vectors) for picture in pictures]
        x = self.embed(pictures)
        for layer in self.layers:
            x = self._attend(layer, x, lengths)
            inner = self.backend.gelu_tanh(layer.fc1(self.backend, layer.mlp_norm(self.backend, x)))
            x = layer.fc2(self.backend, inner, residual=x)
        return self.norm(self.backend, x)

    def embed(self, pictures: Sequence[Patches]) -> Array:
        """Input of the first block: each patch and its position, (num_patches, hidden_size)."""
        backend, side = self.backend, self.config.table_side
        vectors = np.concatenate([picture.vectors for picture in pictures])
        places = [position_ids(picture.rows, picture.columns, side) for picture in pictures]
        positions = backend.take(self.positions, np.concatenate(places))
        return self.patch_embed(backend, backend.asarray(vectors), residual=positions)

    def _attend(self, layer: VisionLayer, x: Array, lengths: list[int]) -> Array:
        """x plus its attention inside segments of these lengths."""
        backend, config = self.backend, self.config
        heads = (x.shape[0], config.num_heads, config.head_dim)
        normed = layer.attention_norm(backend, x)
        q, k, v = (part(backend, normed).reshape(heads) for part in (layer.q, layer.k, layer.v))
        seen = backend.segment_attention(q, k, v, lengths, config.head_dim**-0.5)
        return layer.o(backend, seen.reshape((x.shape[0], config.hidden_size)), residual=x)


def position_ids(rows: int, columns: int, side: int) -> NDArray[np.int64]:
    """Row of the square table of learned positions for each patch, row by row.

    Args:
        rows, columns: Patches of the picture, any number.
        side: Positions on a side of the table.

    Returns:
        Shape (rows * columns,); where a side has more patches than the table, positions repeat.
    """
    row, column = buckets(rows, side), buckets(columns, side)
    return (row[:, None] * side + column).reshape(-1)


def buckets(count: int, side: int) -> NDArray[np.int64]:
    """Which of `side` equal parts of a picture's side each of `count` patches begins in.

    Patch i begins at i / count, part k at k / side. Where both are equal, rounding decides, and
    the checkpoints were trained with the rounding of one library: a float32 step, eight starts at a
    time, each from the float32 start of its eight.

    Returns:
        Shape (count,), from 0 to side - 1, rising.
    """
    index, step = np.arange(count), float(np.float32(1) / np.float32(count))
    first = index // _EIGHT * _EIGHT
    starts = ((first * step).astype(np.float32) + (index - first) * step).astype(np.float32)
    inner = ((1 + np.arange(side - 1)) * (1 / side)).astype(np.float32)
    return np.searchsorted(inner, starts, side="right")
