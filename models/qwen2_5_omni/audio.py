"""The audio tower: log-mel frames to 25 embeddings a second.

Sound is cut into blocks of 2 s (200 mel frames). Nothing crosses a block: not the convolutions,
whose edges see zeros, not the positions, which start anew, and not attention. So whole blocks may
be encoded one by one as they come.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array, Backend
from omnitide.models.layers import LayerNorm, Linear, Weights
from omnitide.models.qwen2_5_omni.config import AudioConfig

NORM_EPS = 1e-5
MAX_TIMESCALE = 10_000.0


def num_audio_tokens(num_frames: int) -> int:
    """Embeddings that the tower gives for so many mel frames: a quarter, 0 for fewer than 3."""
    return max((num_frames + 1) // 2, 0) // 2


@dataclass(frozen=True, slots=True)
class AudioLayer:
    """One block: attention inside blocks of sound, then a two-layer MLP, each after a norm."""

    attention_norm: LayerNorm
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    mlp_norm: LayerNorm
    up: Linear
    down: Linear

    @classmethod
    def read(cls, weights: Weights, name: str) -> AudioLayer:
        """The block stored under `name`."""
        return cls(
            attention_norm=LayerNorm.read(weights, f"{name}.self_attn_layer_norm", NORM_EPS),
            q=Linear.read(weights, f"{name}.self_attn.q_proj"),
            k=Linear.read(weights, f"{name}.self_attn.k_proj"),
            v=Linear.read(weights, f"{name}.self_attn.v_proj"),
            o=Linear.read(weights, f"{name}.self_attn.out_proj"),
            mlp_norm=LayerNorm.read(weights, f"{name}.final_layer_norm", NORM_EPS),
            up=Linear.read(weights, f"{name}.fc1"),
            down=Linear.read(weights, f"{name}.fc2"),
        )


class AudioTower:
    """Encodes log-mel frames as `mel.MelStream` and `mel.log_mel` give them."""

    def __init__(self, config: AudioConfig, backend: Backend, weights: Weights) -> None:
        self.config = config
        self.backend = backend
        self.conv1 = _read_conv(weights, "audio_tower.conv1")
        self.conv2 = _read_conv(weights, "audio_tower.conv2")
        self.layers = [
            AudioLayer.read(weights, f"audio_tower.layers.{layer}")
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
            x = self._attend(layer, x, lengths)
            inner = layer.up(backend, layer.mlp_norm(backend, x))
            x = layer.down(backend, backend.gelu(inner), residual=x)
        pairs = x.shape[0] // 2
        x = x[: 2 * pairs].reshape((pairs, 2, config.hidden_size)).mean(axis=1)
        return self.project(backend, self.norm(backend, x))

    def _convolve(self, mel: NDArray[np.float32]) -> Array:
        """One block of frames to (ceil(num_frames / 2), hidden_size), positions added."""
        backend = self.backend
        x = backend.asarray(mel)
        x = backend.gelu(self.conv1(backend, _unfold(backend, x, stride=1)))
        x = backend.gelu(self.conv2(backend, _unfold(backend, x, stride=2)))
        return x + self.positions[: x.shape[0]]

    def _attend(self, layer: AudioLayer, x: Array, lengths: list[int]) -> Array:
        """x plus its attention inside blocks of these lengths."""
        backend, config = self.backend, self.config
        heads = (x.shape[0], config.num_heads, config.head_dim)
        normed = layer.attention_norm(backend, x)
        q, k, v = (part(backend, normed).reshape(heads) for part in (layer.q, layer.k, layer.v))
        seen = backend.segment_attention(q, k, v, lengths, config.head_dim**-0.5)
        return layer.o(backend, seen.reshape((x.shape[0], config.hidden_size)), residual=x)


def _read_conv(weights: Weights, name: str) -> Linear:
    """A convolution of kernel 3 as a matrix product over `_unfold`ed frames."""
    kernel: Array = weights[f"{name}.weight"]
    out, into, taps = kernel.shape
    return Linear(kernel.transpose(0, 2, 1).reshape((out, taps * into)), weights[f"{name}.bias"])


def _unfold(backend: Backend, x: Array, stride: int) -> Array:
    """Each frame beside the one before and the one after, zeros beyond the edges.

    x (num_frames, size) -> (ceil(num_frames / stride), 3 * size).
    """
    zeros = backend.asarray(np.zeros((1, x.shape[1]), np.float32))
    padded = backend.concat([zeros, x, zeros])
    reach = (x.shape[0] - 1) // stride * stride + 1
    return backend.concat([padded[tap : tap + reach : stride] for tap in range(3)], axis=1)


def _sinusoids(length: int, size: int) -> NDArray[np.float32]:
    """Position table of Whisper's encoder: sines in the first half, cosines in the second."""
    half = size // 2
    scale = MAX_TIMESCALE ** (-np.arange(half) / (half - 1))
    angles = np.arange(length)[:, None] * scale
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
