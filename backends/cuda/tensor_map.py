"""Tensor maps: how Hopper's copy engine is told what a pool looks like.

A map depends on an array's address and shape alone, so each is encoded once.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array
from omnitide.errors import BackendError

MAP_BYTES = 128
_ALIGNMENT = 64
_DATA_TYPES = {"float16": 6, "bfloat16": 9}
_SWIZZLE_128_BYTES = 3
_PROMOTE_256_BYTES = 3
_MOST_MAPS = 1024


class TensorMaps:
    """Maps of pools as rows of `head_dim`, copied in boxes of `box_rows` by `box_columns`.

    A box arrives in shared memory as rows of 128 bytes in the 128-byte swizzle.
    """

    def __init__(self, box_rows: int, box_columns: int) -> None:
        self._box = (ctypes.c_uint32 * 2)(box_columns, box_rows)
        self._maps: dict[tuple[int, int, int, str], NDArray[Any]] = {}
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        self._encode = library.cuTensorMapEncodeTiled
        self._encode.restype = ctypes.c_int

    def __call__(self, pool: Array) -> NDArray[Any]:
        """The map of a C-contiguous pool, as a 128-byte scalar array for a kernel's parameter.

        Raises:
            BackendError: The driver refuses.
        """
        columns = int(pool.shape[-1])
        key = (int(pool.data.ptr), int(pool.size) // columns, columns, str(pool.dtype))
        if key not in self._maps:
            if len(self._maps) >= _MOST_MAPS:  # pools grew or went: their addresses are stale
                self._maps.clear()
            self._maps[key] = self._encoded(*key)
        return self._maps[key]

    def _encoded(self, address: int, rows: int, columns: int, dtype: str) -> NDArray[Any]:
        buffer = ctypes.create_string_buffer(MAP_BYTES + _ALIGNMENT)
        start = -ctypes.addressof(buffer) % _ALIGNMENT
        status = self._encode(
            ctypes.c_void_p(ctypes.addressof(buffer) + start),
            ctypes.c_int(_DATA_TYPES[dtype]),
            ctypes.c_uint32(2),
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * 2)(columns, rows),
            (ctypes.c_uint64 * 1)(columns * 2),
            self._box,
            (ctypes.c_uint32 * 2)(1, 1),
            ctypes.c_int(0),
            ctypes.c_int(_SWIZZLE_128_BYTES),
            ctypes.c_int(_PROMOTE_256_BYTES),
            ctypes.c_int(0),
        )
        if status != 0:
            raise BackendError(
                f"[tensor map] the driver refused {rows} rows of {columns} {dtype} at {address:#x} "
                f"(error {status}); use a newer driver"
            )
        made = np.frombuffer(buffer.raw[start : start + MAP_BYTES], f"V{MAP_BYTES}").copy()
        return made.reshape(())
