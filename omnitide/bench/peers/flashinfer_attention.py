"""FlashInfer's attention over paged K and V that are rotated already, pages of 64, CUDA only."""

from __future__ import annotations

from typing import Any

import flashinfer
import torch

from omnitide.backend import Backend
from omnitide.bench.peers.torch_attention import COLD, MOST_COPIES
from omnitide.bench.peers.torch_device import device_times, dtype_for
from omnitide.bench.settings import Course, Settings
from omnitide.errors import first_line_of
from omnitide.models.text_config import TextConfig
from omnitide.pages import PAGE_SIZE

WORKSPACE = 256 << 20
"""Bytes that the wrappers ask for."""


def peers(backend: Backend, course: Course) -> list[FlashInfer]:
    """One on CUDA in half precision, none elsewhere."""
    if backend.name != "cuda" or not torch.cuda.is_available():
        course.note("peer flashinfer is left out: it needs CUDA")
        return []
    if backend.dtype not in ("float16", "bfloat16"):
        course.note("peer flashinfer is left out: it needs float16 or bfloat16")
        return []
    return [FlashInfer(dtype_for(backend), course)]


class FlashInfer:
    """Its paged wrappers, planned once for a shape.

    Attributes:
        name: For the report.
    """

    name = "flashinfer"

    def __init__(self, dtype: torch.dtype, course: Course) -> None:
        self._dtype, self._course = dtype, course

    def times(self, settings: Settings, history: int, queries: int) -> list[float] | None:
        """Seconds of each repetition; None if FlashInfer refuses."""
        text, device = settings.shape.text, torch.device("cuda")
        cells = history + queries
        pages = -(-cells // PAGE_SIZE)
        shape = (pages, 2, PAGE_SIZE, text.num_kv_heads, text.head_dim)
        each = 2 * cells * text.num_kv_heads * text.head_dim * self._dtype.itemsize
        copies = 1 if settings.warm else min(max(-(-COLD // each), 2), MOST_COPIES)
        try:
            pools = [torch.randn(shape, device=device, dtype=self._dtype) for _ in range(copies)]
            q = torch.randn(
                (queries, text.num_heads, text.head_dim), device=device, dtype=self._dtype
            )
            wrapper = self._planned(text, pages, cells - (pages - 1) * PAGE_SIZE, queries)
            run = lambda index: wrapper.run(q, pools[index])  # noqa: E731
            return device_times(device, run, copies, settings.repeat)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            self._course.note(
                f"peer flashinfer refused {queries:,} after {history:,}: {first_line_of(error)}"
            )
            return None

    def _planned(self, text: TextConfig, pages: int, last_page: int, queries: int) -> Any:
        """The wrapper for one token or for several."""
        workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device="cuda")

        def ints(*values: int) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device="cuda")

        table = (ints(0, pages), torch.arange(pages, dtype=torch.int32, device="cuda"))
        heads = (text.num_heads, text.num_kv_heads, text.head_dim, PAGE_SIZE)
        if queries == 1:
            decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
            decode.plan(*table, ints(last_page), *heads, q_data_type=self._dtype)
            return decode
        prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        prefill.plan(
            ints(0, queries),
            *table,
            ints(last_page),
            *heads,
            causal=True,
            q_data_type=self._dtype,
        )
        return prefill
