"""The decoder in PyTorch: Qwen2 blocks with rotary positions on three axes.

Parameters carry transformers' names. Products that read the same input are one product here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask

from training.rows.masks import attend
from training.settings import Settings

ROPE_THETA = 1e6


class RMSNorm(nn.Module):
    """Root mean square norm with a weight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, 1e-6)


def stacked(x: Tensor, *linears: nn.Linear) -> tuple[Tensor, ...]:
    """x through several linear layers of the same kind as one product."""
    weight = torch.cat([linear.weight for linear in linears])
    bias = None
    if linears[0].bias is not None:
        bias = torch.cat([linear.bias for linear in linears])
    return functional.linear(x, weight, bias).split([len(i.weight) for i in linears], dim=-1)


class GatedMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, size: int, inner: int, bias: bool) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=bias)
        self.up_proj = nn.Linear(size, inner, bias=bias)
        self.down_proj = nn.Linear(inner, size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = stacked(x, self.gate_proj, self.up_proj)
        out: Tensor = self.down_proj(functional.silu(gate) * up)
        return out


class Attention(nn.Module):
    """Grouped heads: biases on q, k and v, none on the output."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        size, head = settings.hidden, settings.head_size
        self.head_size = head
        self.group = settings.heads // settings.kv_heads
        self.q_proj = nn.Linear(size, settings.heads * head)
        self.k_proj = nn.Linear(size, settings.kv_heads * head)
        self.v_proj = nn.Linear(size, settings.kv_heads * head)
        self.o_proj = nn.Linear(settings.heads * head, size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: BlockMask | Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        q, k, v = (
            part.view(rows, tokens, -1, self.head_size).transpose(1, 2)
            for part in stacked(x, self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        # Repeated here, so that every kind of attention takes it, in any ratio of heads.
        k, v = (part.repeat_interleave(self.group, dim=1) for part in (k, v))
        seen = attend(q, k, v, mask)
        out: Tensor = self.o_proj(seen.transpose(1, 2).reshape(rows, tokens, -1))
        return out


class DecoderLayer(nn.Module):
    """Attention, then the MLP, each after a norm."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.self_attn = Attention(settings)
        self.mlp = GatedMLP(settings.hidden, settings.ffn, bias=False)
        self.input_layernorm = RMSNorm(settings.hidden)
        self.post_attention_layernorm = RMSNorm(settings.hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: BlockMask | Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    """Token embeddings, blocks and the last norm."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(settings.vocab_size, settings.hidden)
        self.layers = nn.ModuleList(DecoderLayer(settings) for _ in range(settings.layers))
        self.norm = RMSNorm(settings.hidden)
        pairs = settings.head_size // 2
        axis = torch.repeat_interleave(torch.arange(3), torch.tensor(settings.sections))
        frequency = ROPE_THETA ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
        self.register_buffer("axis", axis, persistent=False)
        self.register_buffer("frequency", frequency.float(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor, mask: BlockMask | Tensor) -> Tensor:
        """States behind the last norm.

        Args:
            x: Embeddings, (rows, tokens, hidden).
            positions: int, (rows, 3, tokens).
            mask: Of all layers.
        """
        angles = positions[:, self.axis].transpose(1, 2).float() * self.frequency
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        out: Tensor = self.norm(x)
        return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + half) of heads; the tables are float32, (..., tokens, half)."""
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1).to(x.dtype)
