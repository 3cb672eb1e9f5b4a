"""Kernels, compiled by NVRTC through CuPy at first use and kept on disk by CuPy's own cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.instances import Instance

STATIC_SHARED = 48 * 1024
"""Bytes of shared memory that a kernel may use without asking."""


class Kernel:
    """A compiled instance. Launches on CuPy's current stream."""

    def __init__(self, instance: Instance) -> None:
        options = () if instance.arch is None else (f"-arch={instance.arch}",)
        module = cp.RawModule(
            code=instance.source,
            options=("-std=c++17", *options),
            name_expressions=(instance.name,),
        )
        self._function = module.get_function(instance.name)
        self._shared = STATIC_SHARED

    @property
    def handle(self) -> int:
        """The driver's CUfunction."""
        return int(self._function.kernel.ptr)

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        shared: int = 0,
    ) -> None:
        """Launch.

        Args:
            grid: Blocks on up to three axes.
            block: Threads on up to three axes.
            args: CuPy arrays (C-contiguous; views start at their own data), NumPy scalars of the
                parameter's exact type.
            shared: Bytes of dynamic shared memory.
        """
        if shared > self._shared:
            self._function.max_dynamic_shared_size_bytes = shared
            self._shared = shared
        self._function(grid, block, tuple(args), shared_mem=shared)


class Compiler:
    """The instances of one device, each compiled once."""

    def __init__(self) -> None:
        self._kernels: dict[Instance, Kernel] = {}

    def __call__(self, instance: Instance) -> Kernel:
        """The compiled instance."""
        if instance not in self._kernels:
            self._kernels[instance] = Kernel(instance)
        return self._kernels[instance]
