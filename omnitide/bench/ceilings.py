"""What the device can do at best: bandwidth of a big copy, speed of a big matrix product.

A floor is the time that the bytes or the products of an operation take at these speeds, whichever
is more. Nothing can be faster, but where a cache holds what is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from omnitide.backend import Array, Backend
from omnitide.figures import ITEMSIZES

LONG = 0.01
"""Seconds of a call that is long enough to be measured well."""

COPIES = tuple(1 << power for power in range(24, 31))
"""Bytes of the copied array, rising."""

SIDES = (512, 1024, 2048, 4096, 8192)
"""Rows and columns of the matrices, rising."""

REPEAT = 5


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Speeds of the device.

    Attributes:
        copy_bytes_per_s: Bytes read and bytes written, added up.
        flops_per_s: A product and a sum count as two.
    """

    copy_bytes_per_s: float
    flops_per_s: float

    def floor(self, num_bytes: float, flops: float = 0.0) -> float:
        """Least seconds for moving so many bytes and for so many operations."""
        return max(num_bytes / self.copy_bytes_per_s, flops / self.flops_per_s)


def measure(backend: Backend) -> Ceilings:
    """Measure. Call on the backend's thread."""
    itemsize = ITEMSIZES[backend.dtype]
    free = backend.memory_free()

    def copy(size: int) -> tuple[float, Callable[[int], Array]]:
        array = backend.random_normal((size // itemsize,), 1.0, 0)
        return 2.0 * size, lambda index: backend.copy(array)

    def multiply(side: int) -> tuple[float, Callable[[int], Array]]:
        x, w = (backend.random_normal((side, side), side**-0.5, seed) for seed in (0, 1))
        return 2.0 * side**3, lambda index: backend.linear(x, w)

    copies = [size for size in COPIES if 4 * size < free] or [COPIES[0]]
    sides = [side for side in SIDES if 6 * itemsize * side**2 < free] or [SIDES[0]]
    return Ceilings(_best(backend, copy, copies), _best(backend, multiply, sides))


def _best(
    backend: Backend, make: Callable[[int], tuple[float, Callable[[int], Array]]], sizes: list[int]
) -> float:
    """Greatest work a second; sizes rise until a call is long."""
    best = 0.0
    for size in sizes:
        work, function = make(size)
        backend.timed(function, 1)
        least = min(backend.timed(function, REPEAT))
        best = max(best, work / max(least, 1e-9))
        if least > LONG:
            break
    return best
