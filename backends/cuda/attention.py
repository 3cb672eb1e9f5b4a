"""Which attention kernel runs: the one place that knows them all."""

from __future__ import annotations

import numpy as np

from omnitide.backend import Array
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.decode import DecodeAttention
from omnitide.backends.cuda.device import Device
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.backends.cuda.plain_attention import PlainAttention
from omnitide.backends.cuda.prefill import PrefillAttention
from omnitide.backends.cuda.prefill_hopper import HopperPrefill
from omnitide.backends.cuda.segments import SegmentAttention
from omnitide.pages import SUBBLOCK_SIZE
from omnitide.step import Step

DECODE_QUERIES = 16
"""Up to so many queries, splitting the cells fills the chip and splitting queries does not."""

HEAD_DIMS = (64, 80, 96, 128)
"""Head sizes of the tensor-core kernels; others take the plain one."""

SEGMENT_HEAD_DIMS = (64, 72, 80, 96, 128)
"""The same inside segments."""

GROUP = 16
"""Most query heads a KV head that the decode kernel packs."""


class Attention:
    """Attention over the cells of a step, and inside segments."""

    def __init__(self, compiler: Compiler, device: Device) -> None:
        processors = device.multiprocessors
        self._plain = PlainAttention(compiler, processors)
        self._decode = DecodeAttention(compiler, processors)
        self._prefill = PrefillAttention(compiler, device.shared_memory, processors)
        self._segments = SegmentAttention(compiler, device.shared_memory)
        # wgmma is of compute capability 9.0 alone.
        hopper = device.capability == (9, 0)
        self._hopper = HopperPrefill(compiler, processors) if hopper else None

    def __call__(
        self, q: Array, rotated: Array, values: Array, step: DeviceStep, scale: float
    ) -> Array:
        """Attention of q (num_queries, num_heads, head_dim), not yet turned; same shape out."""
        q = cp.ascontiguousarray(q)
        count, num_heads, head_dim = q.shape
        if q.dtype.itemsize != 2 or head_dim not in HEAD_DIMS:
            return self._plain.attend(q, rotated, values, step, scale)
        if count <= DECODE_QUERIES and num_heads // rotated.shape[1] <= GROUP:
            return self._decode(q, rotated, values, step, scale)
        if self._hopper is not None and self._hopper.takes(q, rotated, step):
            return self._hopper(q, rotated, values, step, scale)
        return self._prefill(q, rotated, values, step, scale)

    def attention_bytes(
        self,
        num_cells: int,
        num_queries: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        itemsize: int,
    ) -> int:
        """Bytes of a step on the device and of what is joined, beside what is as large as q.

        Keys are turned in the pools; the kernels of decode and of Hopper have their scratch from
        the start.
        """
        tiles = -(-num_cells // SUBBLOCK_SIZE)
        # Angles and slots of all cells while keys are turned; lists of tiles, orders of their rows.
        step = num_cells * (4 * head_dim + 4) + tiles * (4 * 4 + 4 * SUBBLOCK_SIZE)
        sizes = (num_queries, num_heads, num_kv_heads, head_dim)
        if itemsize != 2 or head_dim not in HEAD_DIMS:
            return step + self._plain.parts_bytes(*sizes, tiles)
        if num_queries <= DECODE_QUERIES and num_heads // num_kv_heads <= GROUP:
            return step
        if self._hopper is not None and self._hopper.fits(*sizes, tiles):
            return step
        return step + self._prefill.parts_bytes(*sizes, tiles)

    def mass(self, q: Array, rotated: Array, host: Step, step: DeviceStep, scale: float) -> Array:
        """Attention mass of the step's cells, float32, shape (num_cells,)."""
        if host.num_cells == 0 or host.num_queries == 0:
            return cp.zeros(host.num_cells, np.float32)
        cells = cp.asarray(host.tiles.cells)
        return self._plain.mass(
            cp.ascontiguousarray(q), rotated, step, scale, host.num_cells, cells
        )

    def segments(
        self,
        q: Array,
        k: Array,
        v: Array,
        lengths: tuple[int, ...],
        key_lengths: tuple[int, ...],
        scale: float,
    ) -> Array:
        """Full attention inside each segment."""
        if not lengths:
            return cp.empty_like(q)
        q, k, v = (cp.ascontiguousarray(x) for x in (q, k, v))
        if q.dtype.itemsize == 2 and q.shape[2] in SEGMENT_HEAD_DIMS:
            return self._segments(q, k, v, lengths, key_lengths, scale)
        return self._plain.segments(q, k, v, lengths, key_lengths, scale)
