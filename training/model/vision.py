"""The vision tower in PyTorch, batched over frame pairs of 112 x 112 pixels.

At this size a window is the whole picture, so windowed and full layers attend alike and patches
need no window order. Parameters carry transformers' names.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, scaled_dot_product_attention

from omnitide.models.qwen2_5_omni.config import VISION_ROPE_THETA
from omnitide.models.qwen2_5_omni.image import CLIP_MEAN, CLIP_STD
from training.model.decoder import GatedMLP, RMSNorm, rotate, stacked
from training.settings import PATCH_VALUES, PATCHES, PICTURE_TOKENS, STEPS, Settings


class PatchEmbed(nn.Module):
    """A convolution whose stride is its kernel, as a product over flattened patches."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Conv3d(3, size, (2, 14, 14), (2, 14, 14), bias=False)

    def forward(self, patches: Tensor) -> Tensor:
        return linear(patches, self.proj.weight.flatten(1))


class VisionAttention(nn.Module):
    """Attention among the patches of a frame pair."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(size, size)
        self.k = nn.Linear(size, size)
        self.v = nn.Linear(size, size)
        self.proj = nn.Linear(size, size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        pairs, patches, size = x.shape
        q, k, v = (
            part.view(pairs, patches, self.heads, -1).transpose(1, 2)
            for part in stacked(x, self.q, self.k, self.v)
        )
        seen = scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
        out: Tensor = self.proj(seen.transpose(1, 2).reshape(pairs, patches, size))
        return out


class VisionLayer(nn.Module):
    """Attention, then the gated MLP, each after a norm."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        size = settings.vision_hidden
        self.norm1 = RMSNorm(size)
        self.norm2 = RMSNorm(size)
        self.attn = VisionAttention(size, settings.vision_heads)
        self.mlp = GatedMLP(size, settings.vision_ffn, bias=True)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), cos, sin)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Merger(nn.Module):
    """Four neighbouring patches to one embedding."""

    def __init__(self, size: int, out: int) -> None:
        super().__init__()
        self.ln_q = RMSNorm(size)
        self.mlp = nn.Sequential(nn.Linear(4 * size, 4 * size), nn.GELU(), nn.Linear(4 * size, out))

    def forward(self, x: Tensor) -> Tensor:
        pairs, patches, size = x.shape
        merged = self.ln_q(x).view(pairs, patches // 4, 4 * size)
        out: Tensor = self.mlp[2](gelu(self.mlp[0](merged)))
        return out


class VisionTower(nn.Module):
    """Pictures of media units to embeddings."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(settings.vision_hidden)
        self.blocks = nn.ModuleList(VisionLayer(settings) for _ in range(settings.vision_layers))
        self.merger = Merger(settings.vision_hidden, settings.hidden)
        cos, sin = _tables(settings.vision_hidden // settings.vision_heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.register_buffer("mean", 255 * torch.tensor(CLIP_MEAN), persistent=False)
        self.register_buffer("scale", 1 / (255 * torch.tensor(CLIP_STD)), persistent=False)

    def forward(self, frames: Tensor) -> Tensor:
        """uint8 (units, 4, 112, 112, 3) -> (units, 32, hidden): pair by pair, row by row."""
        x = self.patch_embed(self.patches(frames))
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        x = self.merger(x)
        return x.reshape(len(frames), PICTURE_TOKENS, -1)

    def patches(self, frames: Tensor) -> Tensor:
        """Normalised patch vectors, (units * 2, 64, 1176), merge block by merge block."""
        values = (frames.float() - self.mean) * self.scale
        # unit, pair | frame | block row, row, pixel row | block column, column, pixel column | rgb
        blocks = values.view(len(frames), STEPS, 2, 4, 2, 14, 4, 2, 14, 3)
        ordered = blocks.permute(0, 1, 3, 6, 4, 7, 9, 2, 5, 8)
        return ordered.reshape(len(frames) * STEPS, PATCHES, PATCH_VALUES)


def _tables(head: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of a pair's 64 patches, (64, head / 2): row angles, then column angles."""
    index = torch.arange(PATCHES).view(4, 2, 4, 2).permute(0, 2, 1, 3).flatten()
    row, column = index // 8, index % 8
    count = head // 4
    frequency = VISION_ROPE_THETA ** (-torch.arange(count, dtype=torch.float64) / count)
    angles = torch.cat([row[:, None] * frequency, column[:, None] * frequency], dim=1)
    return angles.cos().float(), angles.sin().float()
