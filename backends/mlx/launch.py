"""Launches of kernels through MLX: the one place where the backend meets Metal.

Tests put another object in its place that runs the same text on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import mlx.core as mx

from omnitide.backend import Array
from omnitide.backends.mlx.shaders import WRITING, MetalKernel
from omnitide.backends.mlx.switches import ATTENTION, WRITE_THROUGH
from omnitide.errors import BackendError

Triple = tuple[int, int, int]

CONSTANT_BELOW = 8
"""MLX puts inputs of fewer elements into constant memory."""

Outputs = Mapping[str, tuple[tuple[int, ...], Any]]
"""Shape and MLX dtype of each output, by name."""


class Launch(Protocol):
    """What runs a kernel."""

    def __call__(
        self,
        kernel: MetalKernel,
        inputs: Mapping[str, Array | int | float],
        outputs: Outputs,
        grid: Triple,
        threadgroup: Triple,
    ) -> list[Array]:
        """Outputs of a kernel, in the order of `kernel.output_names`.

        Args:
            kernel: The instance.
            inputs: By name: arrays, whole and contiguous (MLX copies others), or numbers.
            outputs: What is to be made.
            grid: Threads, not threadgroups, along x, y, z.
            threadgroup: Threads of a threadgroup along x, y, z.
        """
        ...


class Launcher:
    """Launches on the GPU of a Mac."""

    def __init__(self) -> None:
        self._made: dict[MetalKernel, Any] = {}
        self._compiled: set[tuple[Any, ...]] = set()

    def __call__(
        self,
        kernel: MetalKernel,
        inputs: Mapping[str, Array | int | float],
        outputs: Outputs,
        grid: Triple,
        threadgroup: Triple,
    ) -> list[Array]:
        """See `Launch`. The first launch of a kernel compiles it and waits for its result.

        So does the first with inputs of other types: MLX writes another signature for them.

        Raises:
            BackendError: Metal can't compile it; the message is Metal's, with the file's own lines.
        """
        variant = (kernel, *(_type_of(inputs[name]) for name in kernel.input_names))
        is_new = variant not in self._compiled
        made: Any = self._made.get(kernel)
        if made is None:
            made = mx.fast.metal_kernel(
                name=kernel.name,
                input_names=list(kernel.input_names),
                output_names=list(kernel.output_names),
                header=kernel.header,
                source=kernel.source,
            )
        try:
            results: list[Array] = made(
                inputs=[inputs[name] for name in kernel.input_names],
                template=list(kernel.template),
                grid=grid,
                threadgroup=threadgroup,
                output_shapes=[outputs[name][0] for name in kernel.output_names],
                output_dtypes=[outputs[name][1] for name in kernel.output_names],
            )
            if is_new:
                mx.eval(results)  # MLX compiles when it computes: what Metal says is met here
        except (
            RuntimeError,
            ValueError,
        ) as error:  # the latter: too many threads for its registers
            instance = ", ".join(f"{name} {value}" for name, value in kernel.template)
            raise BackendError(
                f"[{kernel.name}] the shader can't be run ({instance}): {error}; "
                f"{_way_back(kernel.name)}"
            ) from error
        self._made[kernel] = made
        self._compiled.add(variant)
        return results


def _way_back(kernel: str) -> str:
    """How to do without a kernel, in words."""
    if kernel in WRITING:
        return f"unset {WRITE_THROUGH} to let MLX write into the pools"
    return f"set {ATTENTION}=plain to do without shaders"


def _type_of(value: Array | int | float) -> tuple[Any, ...]:
    """What MLX's signature says of an input: dtype, and whether it comes in constant memory."""
    if isinstance(value, (int, float)):
        return (type(value),)
    return value.dtype, value.size < CONSTANT_BELOW
