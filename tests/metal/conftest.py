"""A stand-in for the GPU that knows the three kernels that move rows, and works on MLX's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from omnitide.backends.mlx.shaders import MetalKernel
from omnitide.pages import PAGE_SIZE


class Mover:
    """Launches append, gather_rows and scatter_rows in NumPy.

    `spoil` is asked before each write, with the number of the write; where it says so, the write is
    left out, as where a GPU writes to a copy.
    """

    def __init__(self, spoil: Callable[[int], bool]) -> None:
        self.launched: list[str] = []
        self._spoil = spoil
        self._writes = 0

    def __call__(
        self,
        kernel: MetalKernel,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, tuple[tuple[int, ...], Any]],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
    ) -> list[mx.array]:
        assert set(inputs) == set(kernel.input_names)
        assert set(outputs) == set(kernel.output_names)
        self.launched.append(kernel.name)
        arrays = [inputs[name] for name in kernel.input_names]
        mx.eval(arrays)
        views = {
            name: np.array(array, copy=False)
            for name, array in zip(kernel.input_names, arrays, strict=True)
        }
        page, row = np.divmod(views["slots"], PAGE_SIZE)
        if kernel.name == "gather_rows":
            moved = [views[pool][page, :, row] for pool in ("keys", "values")]
            return [mx.array(np.stack(moved))]
        self._writes += 1
        new = (views["k"], views["v"]) if kernel.name == "append" else views["moved"]
        if not self._spoil(self._writes):
            for pool, rows in zip(("keys", "values"), new, strict=True):
                views[pool][page, :, row] = rows
        return [mx.zeros(1, mx.int32)]


@pytest.fixture
def mover() -> Callable[..., Mover]:
    """`mover(spoil)`: a launcher that leaves out the writes that `spoil` names; default: none."""

    def make(spoil: Callable[[int], bool] = lambda _: False) -> Mover:
        return Mover(spoil)

    return make
