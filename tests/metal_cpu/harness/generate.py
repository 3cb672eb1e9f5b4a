"""The exact source that MLX gives to Metal's compiler for a launch.

MLX prints it where there is no Metal too, while it traces a function for export.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import mlx.core as mx


class MetalKernel(Protocol):
    """What is launched: the fields of the MLX backend's `MetalKernel`."""

    name: str
    source: str
    header: str
    input_names: Sequence[str]
    output_names: Sequence[str]
    template: Sequence[tuple[str, Any]]


def generated_source(
    kernel: MetalKernel,
    inputs: Sequence[mx.array],
    outputs: Mapping[str, tuple[Sequence[int], mx.Dtype]],
) -> str:
    """The whole text of the kernel for inputs and outputs of these dtypes and shapes."""
    built = mx.fast.metal_kernel(
        name=kernel.name,
        input_names=list(kernel.input_names),
        output_names=list(kernel.output_names),
        source=kernel.source,
        header=kernel.header,
    )

    def launch(*arrays: mx.array) -> list[mx.array]:
        return built(
            inputs=list(arrays),
            template=list(kernel.template),
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            output_shapes=[tuple(outputs[name][0]) for name in kernel.output_names],
            output_dtypes=[outputs[name][1] for name in kernel.output_names],
            verbose=True,
        )

    with tempfile.TemporaryDirectory() as folder, _standard_output() as printed:
        mx.export_function(str(Path(folder) / "launch.mlxfn"), launch, *inputs)
        ctypes.CDLL(None).fflush(None)
        printed.seek(0)
        text = printed.read()
    return text.split("```\n")[1]


@contextmanager
def _standard_output() -> Iterator[IO[str]]:
    """A file that all of the process, C++ included, prints to meanwhile."""
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
    saved = os.dup(1)
    with tempfile.TemporaryFile("w+") as file:
        try:
            os.dup2(file.fileno(), 1)
            yield file
        finally:
            os.dup2(saved, 1)
            os.close(saved)
