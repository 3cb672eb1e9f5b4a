"""How many elements a thread of a kernel may read or write at once."""

from __future__ import annotations

from collections.abc import Sequence

from omnitide.backend import Array

ACCESS_BYTES = 16
"""Bytes of the widest access of a thread."""

DTYPES = {"float16": 2, "bfloat16": 2, "float32": 4}
"""Bytes of an element of each dtype that kernels are compiled for."""


def widths(dtype: str) -> tuple[int, int]:
    """The widths, in elements, that kernels are compiled for: a whole access, and one."""
    return ACCESS_BYTES // DTYPES[dtype], 1


def access_width(arrays: Sequence[Array], *sizes: int) -> int:
    """A whole access, in elements, where everything is aligned to it, else 1.

    Args:
        arrays: At least one, all of one dtype. Each must start on a multiple of an access.
        sizes: Row sizes and strides, in elements. Each must be a multiple of an access.
    """
    whole = ACCESS_BYTES // int(arrays[0].dtype.itemsize)
    starts = all(array.data.ptr % ACCESS_BYTES == 0 for array in arrays)
    return whole if starts and all(size % whole == 0 for size in sizes) else 1
