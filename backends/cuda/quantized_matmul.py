"""Products of some tens to hundreds of rows with quantised weights, by tensor cores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from omnitide.backend import Array
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.instances import C_TYPES, Instance
from omnitide.backends.cuda.quantized_matvec import BITS, DTYPES, or_null, three
from omnitide.quantized import QuantizedWeight

TOKENS = (32, 64, 128)
"""Rows of x that a block may take."""

_THREADS, _ROWS, _COLUMNS, _READ = 128, 128, 64, 8  # of quantized_matmul.cu
_STAGES = {4: 4, 8: 3}
_X_PITCH = 2 * _COLUMNS + 16
_START = 512  # columns that a block multiplies in the time that it takes to start and end
_JOIN = 1024  # columns in the time that joining parts takes
_MAX_PARTS = 16


def _instance(dtype: str, bits: int, tokens: int) -> Instance:
    name = f"quantized_matmul<{C_TYPES[dtype]}, {bits}, {tokens}>"
    return Instance("quantized_matmul", name)


def _join(dtype: str) -> Instance:
    return Instance("quantized_matmul", f"join_parts<{C_TYPES[dtype]}>")


def instances() -> tuple[Instance, ...]:
    """Every instance that `QuantizedMatMul` launches."""
    products = [_instance(d, bits, tokens) for d in DTYPES for bits in BITS for tokens in TOKENS]
    return (*products, *(_join(dtype) for dtype in DTYPES))


class QuantizedMatMul:
    """Launches on CuPy's current stream. Dtypes and weights as `QuantizedMatVec` takes them."""

    def __init__(self, compiler: Compiler, multiprocessors: int, most: int = TOKENS[-1]) -> None:
        """`most` of `TOKENS`: rows of x that a block takes at most."""
        self._compiler = compiler
        self._resident = 2 * multiprocessors  # blocks at a time
        self._tokens = tuple(size for size in TOKENS if size <= most)

    def multiply(
        self,
        x: Array,
        pairs: Sequence[tuple[QuantizedWeight, Array | None]],
        residual: Array | None = None,
    ) -> list[Array]:
        """x (tokens, in) times each of up to three weights, plus its bias.

        Args:
            x: Any number of rows but 0.
            pairs: Weights, which are cut into groups alike, and biases, (out,) or None.
            residual: (tokens, out), added to the product with a single weight.

        Returns:
            (tokens, out) for each weight.
        """
        tokens, width = x.shape
        weights = [weight for weight, _ in pairs]
        bits, group = weights[0].bits, weights[0].group_size
        heights = [weight.shape[0] for weight in weights]
        room = next((size for size in self._tokens if size >= tokens), self._tokens[-1])
        tiles = sum(-(-height // _ROWS) for height in heights)
        waves = -(-tokens // room)
        part_columns = self._part_columns(tiles * waves, width, _READ * group)
        num_parts = -(-width // part_columns)
        out = [cp.empty((tokens, height), x.dtype) for height in heights]
        all_rows = sum(heights)
        parts = cp.empty((num_parts, tokens, all_rows), np.float32) if num_parts > 1 else None
        biases = three([bias for _, bias in pairs])
        sizes = [np.int32(height) for height in (*heights, 0, 0)[:3]]
        args = (
            x,
            *three([weight.packed for weight in weights]),
            *three([weight.scales for weight in weights]),
            *three([weight.biases for weight in weights]),
            *biases,
            or_null(residual),
            *three(out),
            or_null(parts),
            *sizes,
            *(np.int32(n) for n in (tokens, width, group.bit_length() - 1, part_columns)),
        )
        stage = _ROWS * _COLUMNS * bits // 8 + room * _X_PITCH
        self._compiler(_instance(x.dtype.name, bits, room))(
            (tiles, waves, num_parts),
            (_THREADS,),
            args,
            shared=_STAGES[bits] * stage + 8 * _ROWS * _READ,
        )
        if parts is not None:
            self._compiler(_join(x.dtype.name))(
                (-(-all_rows // _THREADS), tokens),
                (_THREADS,),
                (parts, *biases, or_null(residual), *three(out), *sizes, np.int32(num_parts)),
            )
        return out

    def _part_columns(self, blocks: int, width: int, unit: int) -> int:
        """Columns of a part, a multiple of `unit`, so that all parts together end soonest."""
        units = -(-width // unit)

        def time(parts: int) -> int:
            rounds = -(-blocks * parts // self._resident)
            return rounds * (-(-units // parts) * unit + _START) + (parts > 1) * _JOIN

        parts = min(range(1, min(units, _MAX_PARTS) + 1), key=time)
        return -(-units // parts) * unit
