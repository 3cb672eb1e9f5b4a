"""The audio tower in PyTorch, batched over blocks of 2 s. Parameters carry transformers' names."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from training.settings import BANDS, Settings

BLOCK_FRAMES = 200
"""Mel frames of a block; nothing crosses it."""

MAX_TIMESCALE = 10_000.0


class AudioAttention(nn.Module):
    """Attention among the frames of a block; the keys have no bias."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(size, size)
        self.k_proj = nn.Linear(size, size, bias=False)
        self.v_proj = nn.Linear(size, size)
        self.out_proj = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        blocks, frames, size = x.shape
        weight = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        none = torch.zeros_like(self.q_proj.bias)
        bias = torch.cat([self.q_proj.bias, none, self.v_proj.bias])
        q, k, v = (
            part.view(blocks, frames, self.heads, -1).transpose(1, 2)
            for part in linear(x, weight, bias).chunk(3, dim=-1)
        )
        seen = scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out_proj(seen.transpose(1, 2).reshape(blocks, frames, size))
        return out


class AudioLayer(nn.Module):
    """A block of Whisper's encoder: attention, then a two-layer MLP, each after a norm."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        size = settings.audio_hidden
        self.self_attn = AudioAttention(size, settings.audio_heads)
        self.self_attn_layer_norm = nn.LayerNorm(size)
        self.final_layer_norm = nn.LayerNorm(size)
        self.fc1 = nn.Linear(size, settings.audio_ffn)
        self.fc2 = nn.Linear(settings.audio_ffn, size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x))
        out: Tensor = x + self.fc2(gelu(self.fc1(self.final_layer_norm(x))))
        return out


class AudioTower(nn.Module):
    """Log-mel frames of media units to embeddings."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        size = settings.audio_hidden
        self.conv1 = nn.Conv1d(BANDS, size, 3, padding=1)
        self.conv2 = nn.Conv1d(size, size, 3, stride=2, padding=1)
        self.layers = nn.ModuleList(AudioLayer(settings) for _ in range(settings.audio_layers))
        self.ln_post = nn.LayerNorm(size)
        self.proj = nn.Linear(size, settings.hidden)
        # In every published checkpoint, read by no one.
        self.audio_bos_eos_token = nn.Embedding(2, settings.hidden).requires_grad_(False)
        self.register_buffer("positions", _sinusoids(BLOCK_FRAMES // 2, size), persistent=False)

    def forward(self, mel: Tensor) -> Tensor:
        """Float (units, 200, 128) -> (units, 50, hidden)."""
        x = gelu(self.conv2(gelu(self.conv1(mel.transpose(1, 2)))))
        x = x.transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        x = x.view(len(x), -1, 2, x.shape[-1]).mean(dim=2)
        out: Tensor = self.proj(self.ln_post(x))
        return out


def _sinusoids(length: int, size: int) -> Tensor:
    """Position table of Whisper's encoder: sines in the first half, cosines in the second."""
    half = size // 2
    scale = MAX_TIMESCALE ** (-torch.arange(half, dtype=torch.float64) / (half - 1))
    angles = torch.arange(length)[:, None] * scale
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()
