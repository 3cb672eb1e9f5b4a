"""Passes recorded as CUDA graphs and replayed.

A pass launches several hundred kernels, and in a pass of one token each takes less time than Python
takes to ask for it. Recorded once, they are launched by one call. What differs from pass to pass
(which cells are live, the angles, the embeddings) is read from arrays whose addresses stay the
same.

Invariant: all memory that recorded passes write, but for their inputs, comes from a pool of their
own. They run one after the other on one stream, so they may share it. None of it is given back as
long as there is a recording.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array
from omnitide.backends.cuda.arrays import copied, copy_into, cp
from omnitide.backends.cuda.device_step import DeviceStep

Words = NDArray[np.int32]

_NO_MEMORY = 2  # cudaErrorMemoryAllocation

MOST_RECORDINGS = 8
"""Recordings kept; a stream has units of a few sizes."""


class Recording:
    """A recorded pass.

    Attributes:
        step: Where the kernels look for the step.
        x: Where they look for the embeddings.
        out: Where they leave the result.
        words: What `step` will hold once the stream has come so far.
    """

    def __init__(self, step: DeviceStep, x: Array, graph: cp.cuda.Graph, out: Array) -> None:
        self.step, self.x, self.out = step, x, out
        self.words: Words | None = None
        self._graph = graph
        self._staged = _page_locked(step.words.size)
        self._read = cp.cuda.Event(disable_timing=True)

    def load(self, words: Words) -> None:
        """Let `step` hold what `packed` gave, once the stream has come so far. Waits for nothing.

        From page-locked memory: from other memory, a large copy waits for the work before it.
        """
        self._read.synchronize()  # of the last load, long since done
        self._staged[...] = words
        stream = cp.cuda.get_current_stream()
        self.step.words.set(self._staged, stream=stream)
        self._read.record(stream)
        self.words = words

    def wait(self) -> None:
        """Wait until the words of the last load are read: others may get their memory then."""
        self._read.synchronize()

    def replay(self, x: Array) -> Array:
        """Run the pass on `x` and what `step` holds. A copy of the result."""
        copy_into(self.x, x if x.flags.c_contiguous else cp.ascontiguousarray(x))
        self._graph.launch(cp.cuda.get_current_stream())
        return copied(self.out)


class Recorder:
    """The recordings of one pools object, by the kind of pass."""

    def __init__(self) -> None:
        self._memory = cp.cuda.MemoryPool(_allocated)
        self._recordings: dict[Hashable, Recording] = {}
        self._seen: set[Hashable] = set()

    def find(self, kind: Hashable) -> Recording | None:
        """The recording of that kind of pass, if there is one."""
        recording = self._recordings.pop(kind, None)
        if recording is not None:
            self._recordings[kind] = recording  # the last used stands last
        return recording

    def last(self) -> Recording | None:
        """The recording that was found last, or made."""
        return next(reversed(self._recordings.values()), None)

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
            self._recordings.pop(next(iter(self._recordings))).wait()
        self._recordings[kind] = Recording(step, x, graph, out)
        return result

    def clear(self) -> None:
        """Drop all recordings."""
        for recording in self._recordings.values():
            recording.wait()
        self._recordings.clear()


def _allocated(size: int) -> Any:
    """Device memory for a recorder's pool, if need be what CuPy's own pool holds of freed memory.

    Raises:
        OutOfMemoryError: There is none. At the runtime's own error, CuPy's pool would give back its
            free blocks, which recorded passes work in, and try again.
    """
    try:
        return _device_memory(size)
    except cp.cuda.memory.OutOfMemoryError:
        gc.collect()
        cp.get_default_memory_pool().free_all_blocks()
        return _device_memory(size)


def _device_memory(size: int) -> Any:
    memory = cp.cuda.memory
    try:
        return memory.MemoryPointer(memory.Memory(size), 0)
    except cp.cuda.runtime.CUDARuntimeError as error:
        if error.status != _NO_MEMORY:
            raise
        raise memory.OutOfMemoryError(size, -1) from None


def _page_locked(size: int) -> Words:
    """Host memory for so many words, which the device reads by itself unless there is none such."""
    try:
        memory = cp.cuda.alloc_pinned_memory(4 * size)
    except cp.cuda.runtime.CUDARuntimeError:
        return np.empty(size, np.int32)
    return np.frombuffer(memory, np.int32, size)
