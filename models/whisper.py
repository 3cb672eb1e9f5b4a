"""Layers of Whisper's encoder, which the audio towers of several families are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from omnitide.backend import Array, Backend
from omnitide.models.layers import LayerNorm, Linear, Weights

NORM_EPS = 1e-5

STRIDE = 2
"""Mel frames of a frame behind the convolutions."""

Attend = Callable[[Array, Array, Array], Array]
"""Attention of q, k and v, each (num_frames, num_heads, head_dim), to the shape of q."""


@dataclass(frozen=True, slots=True)
class Convolutions:
    """Two convolutions of kernel 3, GELU after each; the second one halves the frames."""

    first: Linear
    second: Linear

    @classmethod
    def read(cls, weights: Weights, name: str) -> Convolutions:
        """The layers stored as `<name>.conv1` and `<name>.conv2`."""
        return cls(_read_conv(weights, f"{name}.conv1"), _read_conv(weights, f"{name}.conv2"))

    def __call__(self, backend: Backend, mel: Array) -> Array:
        """mel (num_frames, num_bands) -> (ceil(num_frames / 2), size); zeros beyond both edges."""
        x = backend.gelu(self.first(backend, _unfold(backend, mel, 1)))
        return backend.gelu(self.second(backend, _unfold(backend, x, STRIDE)))


@dataclass(frozen=True, slots=True)
class WhisperLayer:
    """One block: attention, then a two-layer MLP, each after a norm."""

    attention_norm: LayerNorm
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    mlp_norm: LayerNorm
    up: Linear
    down: Linear

    @classmethod
    def read(cls, weights: Weights, name: str) -> WhisperLayer:
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

    def __call__(self, backend: Backend, x: Array, num_heads: int, attend: Attend) -> Array:
        """x (num_frames, size); same shape out. `attend` says what sees what."""
        normed = self.attention_norm(backend, x)
        heads = (x.shape[0], num_heads, x.shape[1] // num_heads)
        q, k, v = (part(backend, normed).reshape(heads) for part in (self.q, self.k, self.v))
        x = self.o(backend, attend(q, k, v).reshape(x.shape), residual=x)
        inner = self.up(backend, self.mlp_norm(backend, x))
        return self.down(backend, backend.gelu(inner), residual=x)


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
