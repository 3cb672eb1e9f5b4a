"""Kernels, compiled by NVRTC through CuPy at first use and kept on disk by CuPy's own cache."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.instances import Instance
from omnitide.backends.cuda.launch import can_overlap, launch_overlapping

MORE_OPTIONS = "OMNITIDE_NVRTC_OPTIONS"
"""Options of the compiler for those who debug, e.g. -lineinfo."""


class Kernel:
    """A compiled instance. Launches on CuPy's current stream."""

    def __init__(self, instance: Instance) -> None:
        options = () if instance.arch is None else (f"-arch={instance.arch}",)
        more = os.environ.get(MORE_OPTIONS, "").split()
        module = cp.RawModule(
            code=instance.source,
            options=("-std=c++17", *options, *more),
            name_expressions=(instance.name,),
        )
        self._function = module.get_function(instance.name)
        self._can_overlap = can_overlap()

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
        overlap: bool = False,
    ) -> None:
        """Launch.

        Args:
            grid: Blocks on up to three axes.
            block: Threads on up to three axes.
            args: CuPy arrays (C-contiguous; views start at their own data), NumPy scalars of the
                parameter's exact type.
            shared: Bytes of dynamic shared memory.
            overlap: Let the kernel start while the stream's previous one still runs, where the
                device can. Only for kernels that wait as `kernels/overlap.cuh` says, in chains in
                which every kernel does.
        """
        # Asked of the function, and never lowered: CuPy gives all kernels of a text one function.
        if shared > 0 and shared > self._function.max_dynamic_shared_size_bytes:
            self._function.max_dynamic_shared_size_bytes = shared
        if overlap and self._can_overlap:
            launch_overlapping(self.handle, grid, block, args, shared)
            return
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
