"""The MLX backend: Metal on a Mac, the CPU on Linux. MLX is imported when it is asked about."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

from omnitide.backend import Backend
from omnitide.backends.info import BackendInfo
from omnitide.backends.mlx.switches import WRITE_THROUGH, takes_shaders, writes_through
from omnitide.errors import OmnitideError

DTYPES = ("bfloat16", "float16", "float32")

SLOW = (
    "MLX computes on the CPU here, many times slower than the reference backend: its Linux wheel "
    "links an unoptimised BLAS, so auto doesn't take it. Preloading OpenBLAS "
    "(LD_PRELOAD=libopenblas.so.0) makes float32 fast; float16 and bfloat16 stay slow"
)


def describe() -> BackendInfo:
    """The backend as it stands on this machine."""
    try:
        import mlx.core as mx
    except ImportError as error:
        return BackendInfo(
            name="mlx",
            available=False,
            accelerated=False,
            device="",
            default_dtype=DTYPES[0],
            dtypes=DTYPES,
            note=(
                f"MLX can't be imported ({error}); pip install mlx on a Mac with Apple silicon, "
                "pip install 'mlx[cpu]' on Linux"
            ),
        )
    metal = bool(mx.metal.is_available())
    if metal:
        info = mx.device_info()
        device = f"{info['device_name']}, Metal, {int(info['memory_size']) / 2**30:.0f} GiB"
    else:
        device = f"CPU, {platform.machine()}, {os.cpu_count()} threads"
    return BackendInfo(
        name="mlx",
        available=True,
        accelerated=metal,
        device=device,
        default_dtype="bfloat16" if metal else "float32",
        dtypes=DTYPES,
        versions={"mlx": version("mlx")},
        note=_note(metal),
    )


def _note(metal: bool) -> str:
    """Which attention runs, in words; what forces it and does not make sense, likewise."""
    try:
        writing, shaders = writes_through(), takes_shaders(metal)
    except OmnitideError as error:
        return f"It can't be loaded as it is set: {str(error).removeprefix('[backend] ')}"
    if writing and not shaders:
        return f"It can't be loaded as it is set: {WRITE_THROUGH}=1 needs shaders; unset it"
    if shaders:
        return f"Attention through Metal shaders{', which also write into the pools' * writing}"
    return f"{'' if metal else SLOW + '. '}Attention in MLX's own operations"


def load(dtype: str) -> Backend:
    """The backend, computing in one of `DTYPES`.

    Raises:
        ConfigError: An environment variable of `switches` has no meaning.
        BackendError: One asks for what this machine has not.
    """
    import mlx.core as mx

    from omnitide.backends.mlx.backend import MlxBackend
    from omnitide.backends.mlx.launch import Launcher

    metal = bool(mx.metal.is_available())
    shaders = takes_shaders(metal)
    return MlxBackend(
        dtype,
        describe().device,
        launcher=Launcher() if shaders else None,
        architecture=str(mx.device_info()["architecture"]) if metal else "",
        write_through=writes_through(),
    )
