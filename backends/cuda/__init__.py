"""The CUDA backend: CuPy arrays, kernels of our own, cuBLAS for large matrix products.

Importing this module never fails and imports no CUDA library; CuPy is imported when it is asked
about.
"""

from __future__ import annotations

from omnitide.backend import Backend
from omnitide.backends.cuda.device import find_device
from omnitide.backends.info import BackendInfo
from omnitide.errors import BackendError

DTYPES = ("bfloat16", "float16", "float32")


def describe() -> BackendInfo:
    """The backend as it stands on this machine."""
    device = find_device()
    missing = isinstance(device, str)
    return BackendInfo(
        name="cuda",
        available=not missing,
        accelerated=not missing,
        device="" if isinstance(device, str) else str(device),
        default_dtype=DTYPES[0],
        dtypes=DTYPES,
        versions={} if isinstance(device, str) else device.versions,
        note=device if isinstance(device, str) else "",
    )


def load(dtype: str) -> Backend:
    """The backend, computing in one of `DTYPES`.

    Raises:
        BackendError: There is no GPU that can be used.
    """
    device = find_device()
    if isinstance(device, str):
        raise BackendError(f"[backend] cuda is not available: {device}")
    from omnitide.backends.cuda.backend import CudaBackend

    return CudaBackend(dtype, device)
