"""PyTorch's scaled dot product attention over contiguous K and V that are rotated already."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from omnitide.backend import Backend
from omnitide.bench.peers.torch_device import device_for, device_times, dtype_for
from omnitide.bench.settings import Course, Settings
from omnitide.errors import first_line_of

COLD = 256 << 20
"""Bytes of K and V that are gone through before any is read again."""

MOST_COPIES = 256

KERNELS = {"torch FA2": SDPBackend.FLASH_ATTENTION, "torch cuDNN": SDPBackend.CUDNN_ATTENTION}
"""On CUDA in half precision; elsewhere PyTorch chooses."""


def peers(backend: Backend, course: Course) -> list[TorchAttention]:
    """One for each kernel."""
    device = device_for(backend, course)
    if device is None:
        return []
    dtype = dtype_for(backend)
    if device.type == "cuda" and dtype in (torch.float16, torch.bfloat16):
        return [
            TorchAttention(name, device, dtype, kernel, course) for name, kernel in KERNELS.items()
        ]
    return [TorchAttention("torch", device, dtype, None, course)]


class TorchAttention:
    """One kernel of PyTorch.

    Attributes:
        name: For the report.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        dtype: torch.dtype,
        kernel: SDPBackend | None,
        course: Course,
    ) -> None:
        self.name = name
        self._device, self._dtype, self._kernel, self._course = device, dtype, kernel, course

    def times(self, settings: Settings, history: int, queries: int) -> list[float] | None:
        """Seconds of each repetition; None if PyTorch refuses."""
        text = settings.shape.text
        cells = history + queries
        kv = (1, text.num_kv_heads, cells, text.head_dim)
        each = 2 * text.num_kv_heads * cells * text.head_dim * self._dtype.itemsize
        copies = 1 if settings.warm else min(max(-(-COLD // each), 2), MOST_COPIES)
        try:
            keys = [self._random(*kv) for _ in range(copies)]
            values = [self._random(*kv) for _ in range(copies)]
            q = self._random(1, text.num_heads, queries, text.head_dim)
            mask = self._mask(queries, cells)

            def attend(index: int) -> Any:
                with nullcontext() if self._kernel is None else sdpa_kernel(self._kernel):
                    return scaled_dot_product_attention(
                        q,
                        keys[index],
                        values[index],
                        attn_mask=mask,
                        enable_gqa=text.num_heads != text.num_kv_heads,
                    )

            return device_times(self._device, attend, copies, settings.repeat)
        except RuntimeError as error:
            self._course.note(
                f"peer {self.name} refused {queries:,} after {history:,}: {first_line_of(error)}"
            )
            return None

    def _mask(self, queries: int, cells: int) -> Any:
        """Causal from the lower right corner, in the form that the kernel knows."""
        if queries == 1:
            return None
        if self._kernel is SDPBackend.FLASH_ATTENTION:
            return causal_lower_right(queries, cells)
        ones = torch.ones(queries, cells, dtype=torch.bool, device=self._device)
        return ones.tril(cells - queries)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self._device, dtype=self._dtype)
