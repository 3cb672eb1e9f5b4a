"""Passes of one token, recorded as a CUDA graph and replayed.

A pass of one token launches some two hundred kernels that take less time than Python takes to ask
for them. Recorded once, they are launched by one call. What differs from token to token (which
cells are live, the angles, the embedding) is read from arrays whose addresses stay the same.

Invariant: all memory that a recorded pass writes comes from a pool of its own, so that nothing else
is ever placed there.
"""

from __future__ import annotations

from collections.abc import Callable

import cupy as cp

from omnitide.backend import Array
from omnitide.backends.cuda.device_step import DeviceStep


class NotRecordable(Exception):
    """An operation of the pass can't be part of a graph (cuBLAS, for one)."""


class RecordedPass:
    """One recorded pass.

    Attributes:
        step: Where the kernels look for the step.
        x: Where they look for the embedding, shape (1, hidden_size).
    """

    def __init__(self, max_tiles: int, half: int, hidden: int, dtype: object) -> None:
        self.step = DeviceStep.empty(max_tiles, 1, half)
        self.x = cp.empty((1, hidden), dtype)
        self._memory = cp.cuda.MemoryPool()
        self._graph: cp.cuda.Graph | None = None
        self._out: Array = None

    def first(self, forward: Callable[[], Array]) -> Array:
        """Run the pass as it is, which compiles its kernels and takes the memory it needs."""
        with cp.cuda.using_allocator(self._memory.malloc):
            out = forward()
        # A copy elsewhere: the block itself is needed again by the recording.
        return out.copy()

    def record(self, forward: Callable[[], Array]) -> None:
        """Record the pass; nothing is computed.

        Raises:
            NotRecordable: An operation can't be recorded; the pass is as it was.
        """
        stream = cp.cuda.get_current_stream()
        with cp.cuda.using_allocator(self._memory.malloc):
            stream.begin_capture()
            try:
                out = forward()
            finally:
                # Also after an error: a stream that captures can do nothing else.
                graph = stream.end_capture()
        self._graph, self._out = graph, out

    def replay(self) -> Array | None:
        """Run the recorded pass; what it returned before is overwritten. None: not recorded."""
        if self._graph is None:
            return None
        self._graph.launch(cp.cuda.get_current_stream())
        return self._out
