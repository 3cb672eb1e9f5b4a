"""The MLX backend with its Metal kernels on the CPU, as the parity suite runs it."""

from __future__ import annotations

import importlib.util
from typing import Any

from omnitide.backend import Backend

from .availability import why_not

VARIANT = "mlx-metal"


def variant_missing() -> str | None:
    """The reason for which there is no such backend here, None where there is."""
    reason = why_not()
    if reason is None and importlib.util.find_spec("omnitide.backends.mlx.launch") is None:
        return "the MLX backend launches no Metal kernels yet"
    return reason


def metal_backend(dtype: str, launcher: Any = None, write_through: bool = False) -> Backend:
    """The MLX backend whose kernels `launcher` runs; None: a new `MetalOnCpu`."""
    from omnitide.backends.mlx.backend import MlxBackend

    from .launcher import MetalOnCpu

    launch = MetalOnCpu() if launcher is None else launcher
    return MlxBackend(dtype, "cpu", launcher=launch, write_through=write_through)
