"""The reference backend: NumPy, float32 or float64, on the CPU.

It is the oracle of the other backends, and what `auto` takes on a machine without an accelerator.
"""

from __future__ import annotations

import os
import platform

import numpy as np

from omnitide.backend import Backend
from omnitide.backends.info import BackendInfo

DTYPES = ("float32", "float64")


def describe() -> BackendInfo:
    """The backend as it stands on this machine. It is always available."""
    config = np.show_config(mode="dicts")
    blas = config["Build Dependencies"]["blas"] if config else {}
    return BackendInfo(
        name="reference",
        available=True,
        accelerated=False,
        device=f"CPU, {platform.machine()}, {os.cpu_count()} threads",
        default_dtype=DTYPES[0],
        dtypes=DTYPES,
        versions={"numpy": np.__version__, blas.get("name", "blas"): blas.get("version", "?")},
        note="taken where there is no accelerator; where other programs keep the cores busy, "
        "OPENBLAS_NUM_THREADS=1 makes it many times faster",
    )


def load(dtype: str) -> Backend:
    """The backend, computing in one of `DTYPES`."""
    from omnitide.backends.reference.backend import ReferenceBackend

    return ReferenceBackend(dtype, describe().device)
