"""The GPU that the backend runs on, as far as it can be known without starting to compute."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

LEAST_CAPABILITY = (8, 0)
"""bfloat16 matrix products and asynchronous copies came with it."""

INSTALL = (
    "pip install 'omnitide[cuda12]' for a driver of CUDA 12, 'omnitide[cuda13]' for one of CUDA 13"
)


@dataclass(frozen=True, slots=True)
class Device:
    """A usable GPU.

    Attributes:
        name: As the driver names it.
        capability: Major and minor compute capability.
        multiprocessors: How many there are.
        shared_memory: Most bytes of shared memory a block may have.
        memory: Bytes of device memory.
        versions: Of CuPy and CUDA.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_memory: int
    memory: int
    versions: dict[str, str]

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.name}, compute capability {major}.{minor}, {self.memory / 2**30:.0f} GiB"


def find_device() -> Device | str:
    """The current GPU, or why there is none that can be used, with what to do."""
    if find_spec("cupy") is None:
        return f"CuPy is not installed; {INSTALL}"
    try:
        import cupy as cp
    except ImportError as error:
        return f"CuPy can't be imported ({error}); {INSTALL}"
    try:
        count = cp.cuda.runtime.getDeviceCount()
    except cp.cuda.runtime.CUDARuntimeError as error:
        return _no_driver(str(error))
    if count == 0:
        return "no NVIDIA GPU was found; nvidia-smi should list one"
    properties = cp.cuda.runtime.getDeviceProperties(cp.cuda.Device().id)
    name = properties["name"].decode()
    capability = (int(properties["major"]), int(properties["minor"]))
    if capability < LEAST_CAPABILITY:
        have, need = (".".join(map(str, pair)) for pair in (capability, LEAST_CAPABILITY))
        return (
            f"{name} has compute capability {have}, the kernels need {need} or newer; "
            "use the reference backend"
        )
    if find_spec("ml_dtypes") is None:
        return "ml_dtypes is not installed; pip install ml_dtypes"
    return Device(
        name=name,
        capability=capability,
        multiprocessors=int(properties["multiProcessorCount"]),
        shared_memory=int(properties["sharedMemPerBlockOptin"]),
        memory=int(properties["totalGlobalMem"]),
        versions={"cupy": _cupy_version(cp), "cuda": _readable(cp.cuda.runtime.driverGetVersion())},
    )


def _no_driver(error: str) -> str:
    if "InsufficientDriver" in error:
        return (
            "the NVIDIA driver is missing or older than the installed CuPy needs; update the "
            f"driver, or install CuPy for its CUDA version: {INSTALL}"
        )
    if "NoDevice" in error:
        return "no NVIDIA GPU was found; nvidia-smi should list one"
    return f"the NVIDIA driver gives an error: {error}"


def _readable(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _cupy_version(cp: Any) -> str:
    for name in ("cupy-cuda13x", "cupy-cuda12x", "cupy"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return str(cp.__version__)
