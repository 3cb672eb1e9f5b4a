"""The pools on the GPU: beside the keys a copy that is turned by the cells' rotary angles.

Attention reads the turned copy, so that no kernel turns keys again and again. It costs half as much
memory again, and is made anew from the un-rotated keys whenever angles change, so nothing drifts.

Invariant: if `rotations[layer]` is not None, the turned keys of all live cells of that layer are
those of the angles it names.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from omnitide.backend import Array
from omnitide.backends.cuda.passes import Recorder
from omnitide.backends.pools import PagedPools


@dataclass(slots=True)
class CudaPools(PagedPools):
    """K and V of every layer, turned keys, and what was made for these very arrays.

    Attributes:
        rotated: Turned keys, one array a layer, shaped as `keys`.
        rotations: `Step.rotation` of each layer's turned keys; None: not known to be right.
        recorder: Passes recorded over these very arrays; a new one when an array is replaced.
    """

    rotated: list[Array] = field(default_factory=list)
    rotations: list[int | None] = field(default_factory=list)
    recorder: Recorder = field(default_factory=Recorder)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(int(array.nbytes) for array in (*self.keys, *self.values, *self.rotated))

    def forget_rotations(self) -> None:
        """Let every layer's keys be turned anew before they are read."""
        self.rotations = [None] * len(self.rotations)
