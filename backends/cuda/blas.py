"""Matrix products by cuBLAS, called directly: CuPy's own call can't be recorded into a graph."""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import Any

from omnitide.backend import Array
from omnitide.backends.cuda.arrays import cp
from omnitide.errors import BackendError

WORKSPACE_BYTES = 32 << 20
"""What cuBLAS recommends for Hopper; our own, because a recording must not allocate."""

# cublas_api.h and library_types.h
_AS_IS, _TRANSPOSED = 0, 1
_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
_COMPUTE_FLOAT32 = 68
_DEFAULT_ALGORITHM = -1


class Blas:
    """One cuBLAS handle on CuPy's current stream."""

    def __init__(self) -> None:
        library = _library()
        self._multiply = library.cublasGemmEx
        self._multiply.argtypes = _ARGUMENTS
        self._handle = ctypes.c_void_p()
        _check(library.cublasCreate_v2(ctypes.byref(self._handle)))
        weakref.finalize(self, library.cublasDestroy_v2, self._handle)
        self._workspace = cp.empty(WORKSPACE_BYTES, "uint8")
        stream = ctypes.c_void_p(cp.cuda.get_current_stream().ptr)
        _check(library.cublasSetStream_v2(self._handle, stream))
        where, size = ctypes.c_void_p(self._workspace.data.ptr), ctypes.c_size_t(WORKSPACE_BYTES)
        _check(library.cublasSetWorkspace_v2(self._handle, where, size))
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)

    def product(self, x: Array, weight: Array, out: Array | None = None, column: int = 0) -> Array:
        """x @ weight.T; x (rows, in) and weight (out, in), C-contiguous. Sums are in float32.

        Args:
            x, weight: They.
            out: Where to write, C-contiguous (rows, any columns); a new array if None.
            column: Of `out`, from which on it is written.

        cuBLAS counts columns first: what it sees is the transposed product, weight @ x.T.
        """
        rows, width = x.shape
        height = weight.shape[0]
        if out is None:
            out = cp.empty((rows, height), x.dtype)
        if rows * height == 0:
            return out
        kind = _TYPES[x.dtype.name]
        _check(
            self._multiply(
                self._handle,
                *(_TRANSPOSED, _AS_IS),
                *(height, rows, width),
                ctypes.byref(self._one),
                *(weight.data.ptr, kind, width),
                *(x.data.ptr, kind, width),
                ctypes.byref(self._zero),
                *(out.data.ptr + column * out.dtype.itemsize, kind, out.shape[1]),
                *(_COMPUTE_FLOAT32, _DEFAULT_ALGORITHM),
            )
        )
        return out


_INT, _POINTER = ctypes.c_int, ctypes.c_void_p
_MATRIX = (_POINTER, _INT, _INT)
_ARGUMENTS = (
    _POINTER,
    *(_INT, _INT, _INT, _INT, _INT),
    *(_POINTER, *_MATRIX, *_MATRIX),
    *(_POINTER, *_MATRIX),
    *(_INT, _INT),
)


def _library() -> Any:
    """The library that CuPy has loaded, or would."""
    from cupy_backends.cuda.libs import cublas

    major = cublas.getVersion(cp.cuda.device.get_cublas_handle()) // 10_000
    name = f"cublas64_{major}.dll" if sys.platform == "win32" else f"libcublas.so.{major}"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise BackendError(f"[cuda] {name} can't be loaded ({error}); reinstall CuPy") from error


def _check(status: int) -> None:
    if status:
        raise BackendError(f"[linear] cuBLAS gives status {status}")
