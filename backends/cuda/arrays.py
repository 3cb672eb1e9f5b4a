"""CuPy under the name `cp`, or None where it isn't installed.

So that every module of this backend can be imported, and its list of kernel instances read, on a
machine without CUDA. Whoever loads the backend has made sure that CuPy is there.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array


def copy_into(out: Array, array: Array) -> None:
    """Copy an array to the start of another of its dtype, both C-contiguous, by the copy engine.

    CuPy's own assignment and `copy` run a kernel, which for 16-bit types reaches a fifth of the
    bandwidth.
    """
    out.data.copy_from_device_async(array.data, array.nbytes)


def copied(array: Array) -> Array:
    """A copy of a C-contiguous array."""
    out = cp.empty(array.shape, array.dtype)
    copy_into(out, array)
    return out


def host_pages(array: Array, pages: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """Pages of a pool array, on the host, shape (num_pages, ...).

    Gathered as bits: CuPy has no indexing of its own for every 16-bit type.
    """
    bits = array.view(np.dtype(f"u{array.dtype.itemsize}"))
    host: NDArray[Any] = cp.asnumpy(bits[cp.asarray(pages)])
    return host.view(array.dtype)


def _cupy() -> Any:
    try:
        return import_module("cupy")
    except ImportError:
        return None


cp = _cupy()
