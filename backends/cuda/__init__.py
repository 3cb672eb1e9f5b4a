"""The CUDA backend: what to install for it. This release has no CUDA kernels yet.

Importing this module never fails and imports nothing.
"""

from __future__ import annotations

from importlib.util import find_spec

from omnitide.backend import Backend
from omnitide.backends.info import BackendInfo
from omnitide.errors import BackendError

DTYPES = ("bfloat16", "float16", "float32")


def how_to_install() -> str:
    """Why the backend can't be used, and what to install or to use."""
    later = "the CUDA kernels come with a later release of OmniTide"
    if find_spec("cupy") is not None:
        return f"CuPy is installed, but {later}; until then use the reference backend"
    return (
        f"{later}, and will need CuPy: pip install 'omnitide[cuda12]' for CUDA 12, "
        "'omnitide[cuda13]' for CUDA 13; until then use the reference backend"
    )


def describe() -> BackendInfo:
    """The backend as it stands on this machine."""
    return BackendInfo(
        name="cuda",
        available=False,
        accelerated=False,
        device="",
        default_dtype=DTYPES[0],
        dtypes=DTYPES,
        note=how_to_install(),
    )


def load(dtype: str) -> Backend:
    """Always refuses.

    Raises:
        BackendError: With what to install or to use.
    """
    raise BackendError(f"[backend] cuda is not available: {how_to_install()}")
