"""The audio tower: log-mel frames to 25 embeddings a second.

Sound is cut into blocks of 2 s (200 mel frames). Nothing crosses a block: not the convolutions,
whose edges see zeros, not the positions, which start anew, and not attention. So whole blocks may
be encoded one by one as they come.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array, Backend
from omnitide.models.layers import LayerNorm, Linear, Weights
from omnitide.models.qwen2_5_omni.config import AudioConfig
from omnitide.models.whisper import NORM_EPS, Attend, Convolutions, WhisperLayer

MAX_TIMESCALE = 10_000.0


def num_audio_tokens(num_frames: int) -> int:
    """Embeddings that the tower gives for so many mel frames: a quarter, 0 for fewer than 3."""
    return max((num_frames + 1) // 2, 0) // 2


class AudioTower:
    """Encodes log-mel frames as `mel.MelStream` and `models.mel.log_mel` give them."""

    def __init__(self, config: AudioConfig, backend: Backend, weights: Weights) -> None:
        self.config = config
        self.backend = backend
        self.convolutions = Convolutions.read(weights, "audio_tower")
        self.layers = [
            WhisperLayer.read(weights, f"audio_tower.layers.{layer}")
            for layer in range(config.num_layers)
        ]
        self.norm = LayerNorm.read(weights, "audio_tower.ln_post", NORM_EPS)
        self.project = Linear.read(weights, "audio_tower.proj")
        self.positions = backend.asarray(_sinusoids(config.block_frames // 2, config.hidden_size))

    def encode(self, mel: NDArray[np.float32]) -> Array:
        """Embeddings of mel frames that start a block.

        Args:
            mel: Shape (num_frames, num_bands).

        Returns:
            Shape (num_audio_tokens(num_frames), output_size); at least 3 frames are needed.
        """
        backend, config = self.backend, self.config
        size = config.block_frames
        blocks = [self._convolve(mel[at : at + size]) for at in range(0, len(mel), size)]
        lengths = [block.shape[0] for block in blocks]
        x = backend.concat(blocks)
        for layer in self.layers:
            x = layer(backend, x, config.num_heads, self._inside(lengths))
        pairs = x.shape[0] // 2
        x = x[: 2 * pairs].reshape((pairs, 2, config.hidden_size)).mean(axis=1)
        return self.project(backend, self.norm(backend, x))

    def _convolve(self, mel: NDArray[np.float32]) -> Array:
        """One block of frames to (ceil(num_frames / 2), hidden_size), positions added."""
        x = self.convolutions(self.backend, self.backend.asarray(mel))
        return x + self.positions[: x.shape[0]]

    def _inside(self, lengths: list[int]) -> Attend:
        """Attention inside blocks of these lengths."""
        scale = self.config.head_dim**-0.5
        return lambda q, k, v: self.backend.segment_attention(q, k, v, lengths, scale)


def _sinusoids(length: int, size: int) -> NDArray[np.float32]:
    """Position table of Whisper's encoder: sines in the first half, cosines in the second."""
    half = size // 2
    scale = MAX_TIMESCALE ** (-np.arange(half) / (half - 1))
    angles = np.arange(length)[:, None] * scale
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
