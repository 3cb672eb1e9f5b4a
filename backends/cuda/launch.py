"""Launches that may overlap their predecessor's end, which CuPy does not offer.

Programmatic dependent launch (compute capability 9.0): the kernel's blocks start as soon as the
stream's previous kernel allows it and has left room. What each kernel has to do for that is said in
`kernels/overlap.cuh`. Works while a stream is being captured.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from omnitide.backends.cuda.arrays import cp

_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_..., cuda.h


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute; its value is a union of 64 bytes."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("value", ctypes.c_int * 16),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    )


def can_overlap() -> bool:
    """Whether the current device knows such launches."""
    return int(cp.cuda.Device().compute_capability) >= 90


def launch_overlapping(
    function: int,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    args: Sequence[Any],
    shared: int,
) -> None:
    """Launch on CuPy's current stream.

    Args:
        function: The driver's CUfunction.
        grid, block, args, shared: As for `Kernel`.

    Raises:
        cupy.cuda.driver.CUDADriverError: As the driver reports it.
    """
    values = [np.asarray(_value(arg)) for arg in args]
    addresses = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
    attribute = _Attribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION)
    attribute.value[0] = 1
    config = _Config(
        grid=_three(grid),
        block=_three(block),
        shared=shared,
        stream=cp.cuda.get_current_stream().ptr,
        attributes=ctypes.pointer(attribute),
        num_attributes=1,
    )
    status = _launch()(ctypes.byref(config), function, addresses, None)
    cp.cuda.driver.check_status(status)


def _value(arg: Any) -> Any:
    return np.uint64(arg.data.ptr) if isinstance(arg, cp.ndarray) else arg


def _three(sizes: tuple[int, ...]) -> Any:
    return (ctypes.c_uint * 3)(*sizes, *(1,) * (3 - len(sizes)))


@cache
def _launch() -> Any:
    launch = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1").cuLaunchKernelEx
    launch.argtypes = (
        ctypes.POINTER(_Config),
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_void_p,
    )
    launch.restype = ctypes.c_int
    return launch
