"""The vision tower: patches of frame pairs to one embedding for each 2 x 2 of them.

Nothing crosses a grid step (a pair of frames), so a film may be encoded pair by pair. Inside a
step most layers attend in square windows: patches are put in window order once, on the host, and
the merged cells are put back at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array, Backend
from omnitide.models.layers import GatedMLP, Linear, RMSNorm, Weights
from omnitide.models.qwen2_5_omni.config import VISION_ROPE_THETA, VisionConfig
from omnitide.models.qwen2_5_omni.image import Grid

NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class VisionLayer:
    """One block: attention inside segments, then the gated MLP, each after a norm."""

    attention_norm: RMSNorm
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    mlp: GatedMLP

    @classmethod
    def read(cls, weights: Weights, name: str) -> VisionLayer:
        """The block stored under `name`."""
        return cls(
            attention_norm=RMSNorm.read(weights, f"{name}.norm1", NORM_EPS),
            q=Linear.read(weights, f"{name}.attn.q"),
            k=Linear.read(weights, f"{name}.attn.k"),
            v=Linear.read(weights, f"{name}.attn.v"),
            o=Linear.read(weights, f"{name}.attn.proj"),
            mlp=GatedMLP.read(
                weights, f"{name}.mlp", RMSNorm.read(weights, f"{name}.norm2", NORM_EPS)
            ),
        )


class VisionTower:
    """Encodes patch vectors as `image.prepare_frames` gives them."""

    def __init__(self, config: VisionConfig, backend: Backend, weights: Weights) -> None:
        self.config = config
        self.backend = backend
        # A convolution whose stride is its kernel is a matrix product over flattened patches.
        kernel: Array = weights["visual.patch_embed.proj.weight"]
        self.patch_embed = Linear(kernel.reshape((config.hidden_size, config.patch_values)))
        self.layers = [
            VisionLayer.read(weights, f"visual.blocks.{layer}")
            for layer in range(config.num_layers)
        ]
        self.merge_norm = RMSNorm.read(weights, "visual.merger.ln_q", NORM_EPS)
        self.merge_in = Linear.read(weights, "visual.merger.mlp.0")
        self.merge_out = Linear.read(weights, "visual.merger.mlp.2")

    def encode(self, patches: NDArray[np.float32], grid: Grid) -> Array:
        """Embeddings of a span of frames.

        Args:
            patches: Shape (steps * rows * columns, patch_values), merge block by merge block.
            grid: Steps, patch rows and patch columns.

        Returns:
            Shape (num_patches / 4, output_size): step by step, row by row.
        """
        config, backend = self.config, self.backend
        steps, rows, columns = grid
        cell = config.merge_size**2
        order, windows = window_order(
            rows // config.merge_size, columns // config.merge_size, config.window_cells
        )
        cells = (np.arange(steps)[:, None] * len(order) + order).reshape(-1)
        in_window_order = (cells[:, None] * cell + np.arange(cell)).reshape(-1)
        cos, sin = _rotary_tables(config, rows, columns)
        turns = in_window_order % (rows * columns)
        cos, sin = cos[turns], sin[turns]
        inside_windows = [size * cell for size in windows] * steps
        inside_steps = [rows * columns] * steps

        x = self.patch_embed(backend, backend.asarray(patches[in_window_order]))
        for index, layer in enumerate(self.layers):
            whole = index in config.full_attention_layers
            lengths = inside_steps if whole else inside_windows
            x = self._attend(layer, x, cos, sin, lengths)
            x = layer.mlp(backend, x)
        merged = self.merge_norm(backend, x).reshape((len(cells), cell * config.hidden_size))
        merged = self.merge_out(backend, backend.gelu(self.merge_in(backend, merged)))
        return backend.take(merged, np.argsort(cells))

    def _attend(
        self,
        layer: VisionLayer,
        x: Array,
        cos: NDArray[np.float32],
        sin: NDArray[np.float32],
        lengths: list[int],
    ) -> Array:
        """x plus its attention inside segments of these lengths."""
        backend, config = self.backend, self.config
        heads = (x.shape[0], config.num_heads, config.head_dim)
        parts = layer.attention_norm.project(backend, x, layer.q, layer.k, layer.v)
        q, k, v = (part.reshape(heads) for part in parts)
        q, k = backend.rotate(q, cos, sin), backend.rotate(k, cos, sin)
        seen = backend.segment_attention(q, k, v, lengths, config.head_dim**-0.5)
        return layer.o(backend, seen.reshape((x.shape[0], config.hidden_size)), residual=x)


def window_order(rows: int, columns: int, side: int) -> tuple[NDArray[np.int64], list[int]]:
    """Merged cells of one grid step, window by window.

    Windows go row by row from the upper left corner; those at the right and lower edge are cut.

    Args:
        rows, columns: Merged cells.
        side: Merged cells on a side of a window.

    Returns:
        Index of each cell in its step, in window order, shape (rows * columns,), and the number of
        cells of each window.
    """
    row, column = np.divmod(np.arange(rows * columns), columns)
    window = row // side * -(-columns // side) + column // side
    return np.argsort(window, kind="stable"), np.bincount(window).tolist()


def _rotary_tables(
    config: VisionConfig, rows: int, columns: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines of one grid step's patches, each (rows * columns, head_dim / 2).

    The first half of the pairs turns by the patch's row, the second by its column.
    """
    merge = config.merge_size
    index = np.arange(rows * columns).reshape(rows // merge, merge, columns // merge, merge)
    # From row-major order to merge block by merge block, as patches come.
    row, column = np.divmod(index.transpose(0, 2, 1, 3).reshape(-1), columns)
    count = config.head_dim // 4
    frequency = VISION_ROPE_THETA ** (-np.arange(count) / count)
    angles = np.concatenate([row[:, None] * frequency, column[:, None] * frequency], axis=1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
