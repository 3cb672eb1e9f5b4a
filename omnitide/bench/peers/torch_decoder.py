"""A Qwen2 decoder in plain PyTorch with a contiguous cache of rotated keys.

What a program without pages does at its plainest: fused attention, one matrix product after the
other. Weights and cache are random. On CUDA one token is also run as a recorded CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from omnitide.backend import Backend
from omnitide.bench.peers.torch_device import (
    device_for,
    device_times,
    dtype_for,
    wall_times,
)
from omnitide.bench.settings import Course, Settings
from omnitide.bench.shapes import ModelShape
from omnitide.errors import first_line_of
from omnitide.models.text_config import TextConfig


def peers(backend: Backend, course: Course) -> list[TorchModel]:
    """One, where PyTorch can use the backend's device."""
    device = device_for(backend, course)
    return [] if device is None else [TorchModel(device, dtype_for(backend), course)]


class TorchModel:
    """Builds the decoder when it is asked for times, and gives its memory back."""

    def __init__(self, device: torch.device, dtype: torch.dtype, course: Course) -> None:
        self._device, self._dtype, self._course = device, dtype, course

    def times(
        self, shape: ModelShape, settings: Settings, histories: Sequence[int], queries: int
    ) -> Iterator[tuple[int, str, list[float]]]:
        """Seconds of a pass of `queries` tokens after each history."""
        try:
            yield from self._times(shape, settings, histories, queries)
        finally:
            # Another peer may follow, and can't take what PyTorch keeps of freed memory.
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def _times(
        self, shape: ModelShape, settings: Settings, histories: Sequence[int], queries: int
    ) -> Iterator[tuple[int, str, list[float]]]:
        device, repeat = self._device, settings.repeat
        try:
            with torch.no_grad():
                self._course.tell("weights of peer torch")
                decoder = _Decoder(shape.text, device, self._dtype, settings.seed)
                for history in histories:
                    self._course.tell(f"{queries:,} tokens after {history:,}, torch")
                    step = decoder.step(history, queries)
                    yield history, "torch", wall_times(device, step, repeat)
                    if device.type == "cuda" and queries == 1:
                        seconds = device_times(device, step, 1, repeat)
                        yield history, "torch, recorded", seconds
        except RuntimeError as error:
            self._course.note(f"peer torch refused {queries:,} tokens: {first_line_of(error)}")


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    mlp_norm: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    bias: tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class _Decoder:
    """Weights; `step` adds a cache."""

    def __init__(
        self, text: TextConfig, device: torch.device, dtype: torch.dtype, seed: int
    ) -> None:
        self.text, self.device, self.dtype = text, device, dtype
        self._generator = torch.Generator(device).manual_seed(seed)
        width, kv = text.num_heads * text.head_dim, text.num_kv_heads * text.head_dim
        hidden, inner = text.hidden_size, text.intermediate_size
        self.layers = [
            _Layer(
                attention_norm=self._ones(hidden),
                q=self._random(width, hidden),
                k=self._random(kv, hidden),
                v=self._random(kv, hidden),
                o=self._random(hidden, width),
                mlp_norm=self._ones(hidden),
                gate=self._random(inner, hidden),
                up=self._random(inner, hidden),
                down=self._random(hidden, inner),
                bias=(0 * self._ones(width), 0 * self._ones(kv), 0 * self._ones(kv)),
            )
            for _ in range(text.num_layers)
        ]
        self.norm, self.head = self._ones(hidden), self._random(text.vocab_size, hidden)

    def step(self, history: int, queries: int) -> _Step:
        """A pass of `queries` tokens after `history` random cells."""
        return _Step(self, history, queries)

    def _random(self, out: int, into: int) -> torch.Tensor:
        shape, kind = (out, into), {"device": self.device, "dtype": self.dtype}
        made = torch.empty(shape, **kind)
        return made.normal_(0.0, into**-0.5, generator=self._generator)

    def _ones(self, size: int) -> torch.Tensor:
        return torch.ones(size, device=self.device, dtype=self.dtype)


class _Step:
    """A pass that can be made again and again: the new cells are written to the same places."""

    def __init__(self, decoder: _Decoder, history: int, queries: int) -> None:
        self.decoder, self.history, self.queries = decoder, history, queries
        text, kind = decoder.text, {"device": decoder.device, "dtype": decoder.dtype}
        cells = history + queries
        shape = (text.num_layers, 2, 1, text.num_kv_heads, cells, text.head_dim)
        self.cache = torch.randn(shape, **kind)
        self.x = torch.randn((queries, text.hidden_size), **kind)
        place = torch.arange(history, cells, dtype=torch.float32, device=decoder.device)
        pairs = text.head_dim // 2
        turn = torch.arange(pairs, dtype=torch.float32, device=decoder.device) / pairs
        angles = place[:, None] * text.rotary.theta**-turn
        self.cos, self.sin = angles.cos().to(decoder.dtype), angles.sin().to(decoder.dtype)
        self.mask = self._mask(cells)

    def __call__(self, index: int) -> torch.Tensor:
        """Logits of the last token, whatever the index of the call."""
        decoder, x = self.decoder, self.x
        text = decoder.text
        eps, hidden = text.rms_norm_eps, (text.hidden_size,)
        for index, layer in enumerate(decoder.layers):
            normed = rms_norm(x, hidden, layer.attention_norm, eps)
            q, k, v = (
                self._heads(linear(normed, weight, bias))
                for weight, bias in zip((layer.q, layer.k, layer.v), layer.bias, strict=True)
            )
            keys, values = self.cache[index]
            keys[:, :, self.history :] = self._turned(k)
            values[:, :, self.history :] = v
            seen = scaled_dot_product_attention(
                self._turned(q),
                keys,
                values,
                attn_mask=self.mask,
                enable_gqa=text.num_heads != text.num_kv_heads,
            )
            x = x + linear(seen[0].transpose(0, 1).reshape(self.queries, -1), layer.o)
            normed = rms_norm(x, hidden, layer.mlp_norm, eps)
            inner = silu(linear(normed, layer.gate)) * linear(normed, layer.up)
            x = x + linear(inner, layer.down)
        return linear(rms_norm(x[-1:], hidden, decoder.norm, eps), decoder.head)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        """(tokens, heads x dim) as (1, heads, tokens, dim)."""
        return x.view(self.queries, -1, self.decoder.text.head_dim).transpose(0, 1)[None]

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        cos, sin = self.cos, self.sin
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def _mask(self, cells: int) -> torch.Tensor | None:
        """Causal from the lower right corner: a kernel's own mask on CUDA, else written out."""
        if self.queries == 1:
            return None
        device = self.decoder.device
        if device.type == "cuda" and self.decoder.dtype != torch.float32:
            return causal_lower_right(self.queries, cells)
        ones = torch.ones(self.queries, cells, dtype=torch.bool, device=device)
        return ones.tril(cells - self.queries)
