"""What a step is on the device, made once for all layers of a pass and only where it is asked for.

The plain operations and the shaders read different things; neither pays for the other's.
"""

from __future__ import annotations

from functools import cached_property

import mlx.core as mx
import numpy as np

from omnitide.backend import Array
from omnitide.backends.eight_bit import compact
from omnitide.backends.mlx.attention import StepArrays, step_arrays
from omnitide.backends.mlx.paged import TileArrays
from omnitide.pages import PAGE_SIZE
from omnitide.step import Step


class DeviceStep:
    """A step and its arrays. Holds no pool."""

    def __init__(self, step: Step) -> None:
        self.step = step

    @cached_property
    def cells(self) -> StepArrays:
        """By cell, for plain operations."""
        return step_arrays(self.step)

    @cached_property
    def tiles(self) -> TileArrays:
        """By subblock, for shaders."""
        return TileArrays.of(self.step)

    @cached_property
    def compact(self) -> DeviceStep:
        """The same cells and queries over a dense copy of the cells: cell i in slot i."""
        return DeviceStep(compact(self.step))

    @cached_property
    def query_slots(self) -> Array:
        """Where K and V of the new tokens go, int32, shape (num_queries,)."""
        return mx.array(self.step.query_slots)

    @cached_property
    def query_places(self) -> tuple[Array, Array]:
        """The same as page and row, int32, shape (num_queries,) each."""
        page, row = np.divmod(self.step.query_slots, PAGE_SIZE)
        return mx.array(page), mx.array(row)
