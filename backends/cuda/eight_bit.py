"""Launches of `kernels/eight_bit.cu`: rows of 8 bits are written, and made wide for attention."""

from __future__ import annotations

from functools import cache

import numpy as np

from omnitide.backend import Array
from omnitide.backends.cuda.accesses import DTYPES, access_width, widths
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.backends.cuda.instances import C_TYPES, Instance
from omnitide.backends.eight_bit import LEAST, LEAST_FACTOR, MOST
from omnitide.pages import SUBBLOCK_SIZE

THREADS, PACK_THREADS, ROWS = 256, 128, 2  # of eight_bit.cu

_ANGLES = Instance("eight_bit", "place_angles")


@cache
def _instance(name: str, dtype: str, *width: int) -> Instance:
    return Instance("eight_bit", f"{name}<{', '.join([C_TYPES[dtype], *map(str, width)])}>")


def instances() -> tuple[Instance, ...]:
    """Every instance that `EightBitRows` can launch."""
    rows = [_instance(name, t) for name in ("channel_factors", "pack_rows") for t in DTYPES]
    wide = [_instance("widen", dtype, width) for dtype in DTYPES for width in widths(dtype)]
    return (*rows, *wide, _ANGLES)


class EightBitRows:
    """Rows of one layer's packed pools, on CuPy's current stream.

    Packed pools are given as (keys, values, key scales, value scales); `angles` are the cosines and
    sines by slot, float32, shape (num_slots, head_dim / 2).
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler

    def factors(self, k: Array, out: Array) -> None:
        """The channels' factors from rows k (num_rows, num_kv_heads, head_dim), at least one.

        Changes `out`, float32, shape (num_kv_heads, head_dim).
        """
        num_rows, num_kv_heads, head_dim = k.shape
        self._compiler(_instance("channel_factors", str(k.dtype)))(
            (num_kv_heads,),
            (THREADS,),
            (
                k,
                _stride(k),
                out,
                np.int32(num_rows),
                np.int32(num_kv_heads),
                np.int32(head_dim),
                np.float32(LEAST_FACTOR),
                np.float32(LEAST),
            ),
            overlap=True,
        )

    def pack(
        self,
        pools: tuple[Array, Array, Array, Array],
        factors: Array,
        angles: tuple[Array, Array],
        k: Array,
        v: Array,
        step: DeviceStep,
    ) -> None:
        """Quantise new tokens to `step.query_slots`, and keep their angles there.

        k, v (num_queries, num_kv_heads, head_dim), un-rotated; their tokens may lie any distance
        apart. Changes `pools` and `angles`.
        """
        num_queries, num_kv_heads, head_dim = k.shape
        if num_queries == 0:
            return
        self._compiler(_instance("pack_rows", str(k.dtype)))(
            (num_queries * num_kv_heads, 2),
            (PACK_THREADS,),
            (
                k,
                v,
                _stride(k),
                _stride(v),
                step.query_slots,
                step.query_cos,
                step.query_sin,
                factors,
                *pools,
                *angles,
                np.int32(num_kv_heads),
                np.int32(head_dim),
                np.int32(MOST),
            ),
            overlap=True,
        )

    def place_angles(
        self, angles: tuple[Array, Array], slots: Array, cos: Array, sin: Array
    ) -> None:
        """Keep the angles of cells by slot. Changes `angles`.

        slots int32 (num_cells,), distinct; cos, sin float32 (num_cells, head_dim / 2), all on the
        device.
        """
        num_cells, half = cos.shape
        if cos.size == 0:
            return
        self._compiler(_ANGLES)(
            (-(-cos.size // THREADS),),
            (THREADS,),
            (slots, cos, sin, *angles, np.int32(num_cells), np.int32(half)),
        )

    def widen(
        self,
        pools: tuple[Array, Array, Array, Array],
        factors: Array,
        angles: tuple[Array, Array],
        wide: tuple[Array, Array],
        step: DeviceStep,
    ) -> None:
        """Make the step's live rows floats, their keys turned. Changes `wide` at these rows alone.

        wide: keys and values in the backend's dtype, shaped as the packed ones.
        """
        _, num_kv_heads, _, head_dim = wide[0].shape
        half = head_dim // 2
        width = access_width(wide, half)
        items = step.max_tiles * num_kv_heads * (SUBBLOCK_SIZE // ROWS) * (half // width)
        if items == 0:
            return
        self._compiler(_instance("widen", str(wide[0].dtype), width))(
            (-(-items // THREADS),),
            (THREADS,),
            (
                *pools,
                factors,
                *angles,
                step.num_tiles,
                step.subblocks,
                step.masks,
                *wide,
                np.int32(step.max_tiles),
                np.int32(num_kv_heads),
                np.int32(head_dim),
            ),
            overlap=True,
        )


def _stride(rows: Array) -> np.int64:
    """Elements from token to token."""
    return np.int64(rows.strides[0] // rows.dtype.itemsize if len(rows) > 1 else 0)
