"""Attention by plain multiply-adds: for float32, and for head dims without a tensor-core kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array
from omnitide.backends.cuda.accesses import DTYPES
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.backends.cuda.instances import C_TYPES, Instance
from omnitide.errors import BackendError
from omnitide.pages import SUBBLOCK_SIZE

MAX_HEAD_DIM = 256

_WARP, _THREADS, _BLOCK_ROWS = 32, 128, 16  # of plain_attention.cu
_WARPS = _THREADS // _WARP
_CHUNKS = (4, 8)  # head dims up to 128 and 256

_TILES_OF_A_SPLIT = 4
"""Fewest tiles for which a further block is worth its share of the joining."""

_MASS_SUM = Instance("plain_attention", "plain_mass_sum")


@cache
def _instance(name: str, dtype: str, *more: int) -> Instance:
    parameters = ", ".join([C_TYPES[dtype], *map(str, more)])
    return Instance("plain_attention", f"{name}<{parameters}>")


def instances() -> tuple[Instance, ...]:
    """Every instance that `PlainAttention` can launch."""
    made = [_MASS_SUM]
    for dtype in DTYPES:
        made.append(_instance("plain_join", dtype))
        for chunks in _CHUNKS:
            names = ("plain_attend", "plain_mass", "plain_segments")
            made += [_instance(name, dtype, chunks) for name in names]
    return tuple(made)


class PlainAttention:
    """Attention for any even head_dim up to `MAX_HEAD_DIM`, on CuPy's current stream.

    Arrays are C-contiguous. Equal inputs give equal bits.
    """

    def __init__(self, compiler: Compiler, multiprocessors: int) -> None:
        self._compiler = compiler
        self._multiprocessors = multiprocessors

    def attend(
        self, q: Array, rotated: Array, values: Array, step: DeviceStep, scale: float
    ) -> Array:
        """Attention of the step's queries over the live cells that each may see.

        q (num_queries, num_heads, head_dim), un-rotated; rotated, values: one layer's pools.
        Same shape and dtype as q out.
        """
        out = cp.empty(q.shape, q.dtype)
        if q.size == 0:
            return out
        greatest, totals, sums = self._parts(q, rotated, values, step, scale)
        rows, head_dim = out.shape[0] * out.shape[1], out.shape[2]
        self._compiler(_instance("plain_join", str(q.dtype)))(
            (-(-rows // _WARPS),),
            (_THREADS,),
            (
                greatest,
                totals,
                sums,
                out,
                np.int32(rows),
                np.int32(head_dim),
                np.int32(len(greatest)),
            ),
        )
        return out

    def mass(
        self,
        q: Array,
        rotated: Array,
        step: DeviceStep,
        scale: float,
        num_cells: int,
        cells: Array,
    ) -> Array:
        """Attention probability that each cell receives, summed over queries and heads.

        cells int32 (step.max_tiles, 32): index of each row of a tile in the step's cells, -1 where
        dead, on the device. float32 (num_cells,) out.
        """
        out = cp.zeros(num_cells, np.float32)
        if q.size == 0 or num_cells == 0:
            return out
        greatest, totals, _ = self._parts(q, rotated, None, step, scale)
        num_kv_heads = rotated.shape[1]
        received = cp.empty((num_kv_heads, step.max_tiles, SUBBLOCK_SIZE), np.float32)
        chunks = _chunks(q.shape[2])
        self._compiler(_instance("plain_mass", str(q.dtype), chunks))(
            (step.max_tiles, num_kv_heads),
            (_THREADS,),
            (
                q,
                rotated,
                step.num_tiles,
                step.subblocks,
                step.masks,
                step.orders,
                step.query_orders,
                step.query_cos,
                step.query_sin,
                greatest,
                totals,
                received,
                *_sizes(q, num_kv_heads),
                np.int32(len(greatest)),
                np.float32(scale),
            ),
            shared=_shared_bytes(chunks),
        )
        self._compiler(_MASS_SUM)(
            (-(-step.max_tiles * SUBBLOCK_SIZE // _THREADS),),
            (_THREADS,),
            (
                received,
                step.num_tiles,
                cells,
                out,
                np.int32(step.max_tiles),
                np.int32(num_kv_heads),
            ),
        )
        return out

    def segments(
        self,
        q: Array,
        k: Array,
        v: Array,
        lengths: Sequence[int],
        key_lengths: Sequence[int],
        scale: float,
    ) -> Array:
        """Full attention inside each of consecutive segments, none across them.

        q (num_tokens, num_heads, head_dim); k, v (num_keys, num_heads, head_dim); lengths add up to
        num_tokens, key_lengths to num_keys. The shape of q out.
        """
        out = cp.empty(q.shape, q.dtype)
        if q.size == 0:
            return out
        _, num_heads, head_dim = q.shape
        blocks = segment_blocks(lengths, key_lengths)
        chunks = _chunks(head_dim)
        self._compiler(_instance("plain_segments", str(q.dtype), chunks))(
            (len(blocks), num_heads),
            (_THREADS,),
            (
                q,
                k,
                v,
                out,
                cp.asarray(blocks),
                np.int32(num_heads),
                np.int32(head_dim),
                np.float32(scale),
            ),
            shared=_shared_bytes(chunks),
        )
        return out

    def _parts(
        self, q: Array, rotated: Array, values: Array | None, step: DeviceStep, scale: float
    ) -> tuple[Array, Array, Array]:
        """Greatest scores, totals and sums of each split; the sums are empty without values."""
        num_queries, num_heads, head_dim = q.shape
        num_kv_heads = rotated.shape[1]
        row_blocks = -(-num_queries * (num_heads // num_kv_heads) // _BLOCK_ROWS)
        splits = self._splits(row_blocks * num_kv_heads, step.max_tiles)
        rows = num_queries * num_heads
        greatest, totals = cp.empty((2, splits, rows), np.float32)
        mixes = values is not None
        sums = cp.empty((splits, rows, head_dim) if mixes else 1, np.float32)
        chunks = _chunks(head_dim)
        self._compiler(_instance("plain_attend", str(q.dtype), chunks))(
            (row_blocks, num_kv_heads, splits),
            (_THREADS,),
            (
                q,
                rotated,
                values if mixes else rotated,
                step.num_tiles,
                step.subblocks,
                step.masks,
                step.least,
                step.orders,
                step.query_orders,
                step.query_cos,
                step.query_sin,
                greatest,
                totals,
                sums,
                *_sizes(q, num_kv_heads),
                np.bool_(mixes),
                np.float32(scale),
            ),
            shared=_shared_bytes(chunks),
        )
        return greatest, totals, sums

    def parts_bytes(
        self, num_queries: int, num_heads: int, num_kv_heads: int, head_dim: int, max_tiles: int
    ) -> int:
        """Bytes of greatest scores, totals and sums of each split."""
        _chunks(head_dim)  # refused here as a run would refuse it
        row_blocks = -(-num_queries * (num_heads // num_kv_heads) // _BLOCK_ROWS)
        splits = self._splits(row_blocks * num_kv_heads, max_tiles)
        return 4 * splits * num_queries * num_heads * (head_dim + 2)

    def _splits(self, blocks: int, max_tiles: int) -> int:
        """Into how many parts the tiles are split, so that there is work for the whole device."""
        wanted = -(-2 * self._multiprocessors // blocks)
        return max(1, min(wanted, max_tiles // _TILES_OF_A_SPLIT))


def segment_blocks(lengths: Sequence[int], key_lengths: Sequence[int]) -> NDArray[np.int32]:
    """What each block of rows does, shape (num_blocks, 4).

    Its first token, where the tokens of its segment stop, where the keys of it start and stop.
    """
    blocks = []
    start = key_start = 0
    for length, key_length in zip(lengths, key_lengths, strict=True):
        stop, key_stop = start + length, key_start + key_length
        blocks += [(at, stop, key_start, key_stop) for at in range(start, stop, _BLOCK_ROWS)]
        start, key_start = stop, key_stop
    return np.array(blocks, np.int32).reshape(-1, 4)


def _chunks(head_dim: int) -> int:
    """Dims of a head that a lane takes.

    Raises:
        BackendError: Heads are larger than any kernel takes.
    """
    if head_dim > MAX_HEAD_DIM:
        raise BackendError(
            f"[attention] head_dim must be at most {MAX_HEAD_DIM} on cuda, got {head_dim}; take "
            "--backend reference"
        )
    return next(chunks for chunks in _CHUNKS if chunks * _WARP >= head_dim)


def _shared_bytes(chunks: int) -> int:
    """Bytes of 16 queries and of a tile of keys and one of values, whose rows are one longer."""
    floats = _BLOCK_ROWS * chunks * _WARP + 2 * SUBBLOCK_SIZE * (chunks * _WARP + 1)
    return 4 * floats


def _sizes(q: Array, num_kv_heads: int) -> tuple[np.int32, ...]:
    num_queries, num_heads, head_dim = q.shape
    return tuple(np.int32(size) for size in (num_queries, num_heads, num_kv_heads, head_dim))
