"""Layout of attention tiles in shared memory, as `kernels/attention_tile.cuh` has it."""

from __future__ import annotations

CELLS = 64
"""Cells of a tile."""


def row_bytes(head_dim: int) -> int:
    """Bytes from one row of numbers of 2 bytes to the next."""
    chunks = (head_dim + 15) // 16 * 2
    return 16 * (chunks if chunks % 8 == 0 else chunks + 1)
