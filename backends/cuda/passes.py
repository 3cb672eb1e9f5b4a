"""Passes recorded as CUDA graphs and replayed.

A pass launches several hundred kernels, and in a pass of one token each takes less time than Python
takes to ask for it. Recorded once, they are launched by one call. What differs from pass to pass
(which cells are live, the angles, the embeddings) is read from arrays whose addresses stay the
same.

Invariant: all memory that recorded passes write, but for their inputs, comes from a pool of their
own. They run one after the other on one stream, so they may share it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from omnitide.backend import Array
from omnitide.backends.cuda.arrays import copied, cp
from omnitide.backends.cuda.device_step import DeviceStep

MOST_RECORDINGS = 8
"""Recordings kept; a stream has units of a few sizes."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A recorded pass.

    Attributes:
        step: Where the kernels look for the step.
        x: Where they look for the embeddings.
        graph: The launches.
        out: Where they leave the result.
    """

    step: DeviceStep
    x: Array
    graph: cp.cuda.Graph
    out: Array

    def replay(self) -> Array:
        """Run the pass on what `step` and `x` hold. A copy of the result."""
        self.graph.launch(cp.cuda.get_current_stream())
        return copied(self.out)


class Recorder:
    """The recordings of one pools object, by the kind of pass."""

    def __init__(self) -> None:
        self._memory = cp.cuda.MemoryPool()
        self._recordings: dict[Hashable, Recording] = {}
        self._seen: set[Hashable] = set()

    def find(self, kind: Hashable) -> Recording | None:
        """The recording of that kind of pass, if there is one."""
        recording = self._recordings.pop(kind, None)
        if recording is not None:
            self._recordings[kind] = recording  # the last used stands last
        return recording

    def is_worth_recording(self, kind: Hashable, num_queries: int) -> bool:
        """Whether to record such a pass: of one token always, else when it comes a second time."""
        if num_queries == 1 or kind in self._seen:
            return True
        self._seen.add(kind)
        return False

    def record(
        self, kind: Hashable, step: DeviceStep, x: Array, forward: Callable[[], Array]
    ) -> Array:
        """Run a pass that reads `step` and `x`, then record it. A copy of the result."""
        stream = cp.cuda.get_current_stream()
        with cp.cuda.using_allocator(self._memory.malloc):
            # Compiles the kernels, and takes the memory that the recording then finds free.
            found = forward()
            with cp.cuda.using_allocator(cp.get_default_memory_pool().malloc):
                result = copied(found)
            del found
            stream.begin_capture()
            try:
                out = forward()
            finally:
                # Also after an error: a stream that records can do nothing else.
                graph = stream.end_capture()
        while len(self._recordings) >= MOST_RECORDINGS:
            del self._recordings[next(iter(self._recordings))]
        self._recordings[kind] = Recording(step, x, graph, out)
        return result
