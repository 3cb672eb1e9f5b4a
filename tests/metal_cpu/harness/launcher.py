"""A stand-in for the MLX backend's launcher that runs kernels on the CPU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from .compiler import build, source_line
from .errors import LaunchError, RuleError
from .generate import MetalKernel, generated_source
from .lint import rule_breaks
from .run import GAP, Buffer, Traffic, run
from .sanitized import run_sanitized
from .translate import Translated, translate

MOST_THREADS = 1024
MOST_BUFFERS = 31
SMALL = 8
"""Elements from which on MLX passes an input as device memory."""
ALIGNMENT = 256
POISON = 0xFF
"""Bytes of memory that nothing was written to: NaN in every type."""


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch that went well.

    Attributes:
        name: The kernel's.
        grid: Threads.
        threadgroup: Threads.
        traffic: Bytes by buffer; empty under the AddressSanitizer.
    """

    name: str
    grid: tuple[int, ...]
    threadgroup: tuple[int, ...]
    traffic: dict[str, Traffic]


class MetalOnCpu:
    """Launches Metal kernels on the CPU.

    Args:
        seed: 0 runs threads and threadgroups in order; any other draws the order from it.
        races: Whether a race ends the launch. Without, it runs on.
        address_sanitizer: Run under clang's AddressSanitizer in a process of its own, which knows
            the bounds of each array exactly. It sees no races and counts nothing.
        write_through: Whether kernels may write to their inputs, as some of
            the MLX backend's do behind a switch. What they wrote is then in the input's array.
    """

    def __init__(
        self,
        seed: int = 0,
        races: bool = True,
        address_sanitizer: bool = False,
        write_through: bool = False,
    ) -> None:
        self.launches: list[Launched] = []
        self._seed = seed
        self._races = races
        self._address_sanitizer = address_sanitizer
        self._write_through = write_through
        self._translated: dict[object, Translated] = {}

    def __call__(
        self,
        kernel: MetalKernel,
        inputs: Mapping[str, mx.array | int | float],
        outputs: Mapping[str, tuple[Sequence[int], mx.Dtype]],
        grid: Sequence[int],
        threadgroup: Sequence[int],
    ) -> list[mx.array]:
        """Run a kernel and return its outputs, full of NaN where it wrote nothing.

        Raises:
            RuleError: The text breaks a rule of Metal's language.
            CompileError: Clang refuses it.
            LaunchError: The launch would be undefined or refused on a GPU.
        """
        _check_size(grid, threadgroup)
        arrays = {name: _given(inputs[name]) for name in kernel.input_names}
        translated = self._translate(kernel, arrays, outputs)
        library = build(translated, self._address_sanitizer)
        made = {
            name: _apart(np.full(math.prod(shape) * dtype.size, POISON, np.uint8))
            for name, (shape, dtype) in outputs.items()
        }
        copies = {name: _apart(_bytes_of(array)) for name, array in arrays.items()}
        memory = {name: (copies[name], array.dtype.size) for name, array in arrays.items()}
        memory |= {name: (made[name], outputs[name][1].size) for name in made}
        memory = _shapes(arrays) | memory
        buffers = [
            Buffer(
                name,
                memory[name][0].ctypes.data,
                memory[name][0].nbytes,
                memory[name][1],
                name in made or (self._write_through and name in arrays),
            )
            for name in translated.buffers
        ]
        traffic: dict[str, Traffic] = {}
        if self._address_sanitizer:
            run_sanitized(library, buffers, grid, threadgroup, self._seed)
        else:
            outcome = run(library, buffers, grid, threadgroup, self._seed, self._races)
            if outcome.error:
                place = source_line(library, outcome.error_at)
                raise LaunchError(f"[metal_cpu] {outcome.error}" + (f" ({place})" if place else ""))
            traffic = outcome.traffic
        if self._write_through:
            for name, array in arrays.items():
                _bytes_of(array)[:] = copies[name]
        self.launches.append(Launched(kernel.name, tuple(grid), tuple(threadgroup), traffic))
        return [_mlx_array(made[name], *outputs[name]) for name in kernel.output_names]

    def _translate(
        self,
        kernel: MetalKernel,
        arrays: Mapping[str, mx.array],
        outputs: Mapping[str, tuple[Sequence[int], mx.Dtype]],
    ) -> Translated:
        """The kernel as C++, made once for all launches that MLX generates the same source for."""
        key = (
            *(kernel.name, kernel.source, kernel.header, tuple(kernel.template)),
            *((a.dtype, a.ndim == 0, a.size < SMALL) for a in arrays.values()),
            *(outputs[name][1] for name in kernel.output_names),
        )
        if key not in self._translated:
            source = generated_source(kernel, list(arrays.values()), outputs)
            broken = rule_breaks(source)
            if broken:
                raise RuleError(f"[metal_cpu] {kernel.name}: " + "; ".join(broken))
            translated = translate(source)
            if len(translated.buffers) > MOST_BUFFERS:
                count = len(translated.buffers)
                raise LaunchError(f"[metal_cpu] {count} buffers, Metal has {MOST_BUFFERS}")
            self._translated[key] = translated
        return self._translated[key]


def _check_size(grid: Sequence[int], threadgroup: Sequence[int]) -> None:
    if len(grid) != 3 or len(threadgroup) != 3 or min(*grid, *threadgroup) < 1:
        raise LaunchError(f"[metal_cpu] three positive sizes each, got {grid} and {threadgroup}")
    if math.prod(threadgroup) > MOST_THREADS:
        raise LaunchError(
            f"[metal_cpu] {threadgroup} threads in a threadgroup, at most {MOST_THREADS}"
        )


def _given(value: mx.array | int | float) -> mx.array:
    """A row-contiguous array that is computed, as MLX gives it to a kernel."""
    array = mx.contiguous(value if isinstance(value, mx.array) else mx.array(value))
    mx.eval(array)
    return array


def _bytes_of(array: mx.array) -> NDArray[np.uint8]:
    """The array's own memory."""
    if array.size == 0:
        return np.zeros(0, np.uint8)
    return np.frombuffer(array, np.uint8)  # type: ignore[call-overload, no-any-return]


def _apart(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A copy, aligned as Metal's buffers are, with memory around it that belongs to no buffer."""
    room = np.full(values.size + 2 * GAP + ALIGNMENT, POISON, np.uint8)
    begin = GAP + -room.ctypes.data % ALIGNMENT
    room[begin : begin + values.size] = values
    return room[begin : begin + values.size]


def _shapes(arrays: Mapping[str, mx.array]) -> dict[str, tuple[NDArray[Any], int]]:
    """The buffers of shapes, strides and dimensions that a kernel may ask for."""
    found = {}
    for name, array in arrays.items():
        shape = np.array(array.shape, np.int32)
        strides = np.cumprod([1, *array.shape[:0:-1]], dtype=np.int64)[::-1].copy()
        found[f"{name}_shape"] = (shape, shape.itemsize)
        found[f"{name}_strides"] = (strides, strides.itemsize)
        found[f"{name}_ndim"] = (np.array([array.ndim], np.int32), 4)
    return found


def _mlx_array(values: NDArray[np.uint8], shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    return mx.array(values).view(dtype).reshape(tuple(shape))
