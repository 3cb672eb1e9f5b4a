"""What a recorder holds on to, without a GPU: memory of recorded passes, and words under way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from omnitide.backends.cuda import passes
from omnitide.backends.cuda.passes import MOST_RECORDINGS, Recorder


class RuntimeFailure(RuntimeError):
    """CUDA's runtime error, with its status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class OutOfMemoryError(MemoryError):
    """CuPy's, with its arguments."""

    def __init__(self, size: int, total: int) -> None:
        super().__init__(size, total)


class Pool:
    """CuPy's memory pool, as to what it does with its free blocks when the device has no memory."""

    def __init__(self, allocator: Any) -> None:
        self.allocator = allocator
        self.gave_back = False

    def malloc(self, size: int) -> Any:
        try:
            return self.allocator(size)
        except RuntimeFailure:
            self.gave_back = True
            try:
                return self.allocator(size)
            except RuntimeFailure:
                raise OutOfMemoryError(size, 0) from None


class Device:
    """So many bytes are free, and so many more are held by CuPy's own pool."""

    def __init__(self, free: int, held: int) -> None:
        self.free, self.held = free, held
        self.status = 2

    def memory(self, size: int) -> int:
        if size > self.free:
            raise RuntimeFailure(self.status)
        self.free -= size
        return size

    def release(self) -> None:
        self.free, self.held = self.free + self.held, 0


def stand_in(device: Device, made: list[Any]) -> SimpleNamespace:
    """As much of CuPy as a recorder uses."""

    def event(disable_timing: bool) -> SimpleNamespace:
        found = SimpleNamespace(waited=0)

        def synchronize() -> None:
            found.waited += 1

        found.synchronize = synchronize
        made.append(found)
        return found

    class NoCapture:
        def __enter__(self) -> None:
            return None

        def __exit__(self, *error: object) -> None:
            return None

    stream = SimpleNamespace(begin_capture=lambda: None, end_capture=lambda: None)
    memory = SimpleNamespace(
        OutOfMemoryError=OutOfMemoryError,
        Memory=device.memory,
        MemoryPointer=lambda memory, offset: memory,
    )
    cuda = SimpleNamespace(
        memory=memory,
        runtime=SimpleNamespace(CUDARuntimeError=RuntimeFailure),
        MemoryPool=Pool,
        Event=event,
        alloc_pinned_memory=bytearray,
        get_current_stream=lambda: stream,
        using_allocator=lambda malloc: NoCapture(),
    )
    own = SimpleNamespace(malloc=None, free_all_blocks=device.release)
    return SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: own)


def recorder_on(
    device: Device, monkeypatch: pytest.MonkeyPatch, made: list[Any] | None = None
) -> Recorder:
    monkeypatch.setattr(passes, "cp", stand_in(device, [] if made is None else made))
    monkeypatch.setattr(passes, "copied", lambda array: array)
    return Recorder()


def test_memory_that_is_held_elsewhere_is_taken_before_that_of_recorded_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device(free=10, held=90)
    pool: Any = recorder_on(device, monkeypatch)._memory
    assert pool.malloc(60) == 60
    assert not pool.gave_back
    assert (device.free, device.held) == (40, 0)


def test_what_recorded_passes_work_in_is_not_given_back_for_want_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CuPy's pool would free its blocks, which the graphs that were recorded still write to."""
    device = Device(free=10, held=20)
    pool: Any = recorder_on(device, monkeypatch)._memory
    with pytest.raises(OutOfMemoryError):
        pool.malloc(60)
    assert not pool.gave_back


def test_another_error_of_the_device_is_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(free=10, held=90)
    device.status = 700
    recorder_on(device, monkeypatch)
    with pytest.raises(RuntimeFailure):
        passes._allocated(60)
    assert device.held == 90


def test_words_under_way_have_been_read_before_others_can_get_their_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[Any] = []
    recorder = recorder_on(Device(free=0, held=0), monkeypatch, events)
    step: Any = SimpleNamespace(words=np.zeros(4, np.int32))
    for kind in range(MOST_RECORDINGS):
        recorder.record(kind, step, None, lambda: None)
    assert [event.waited for event in events] == [0] * MOST_RECORDINGS
    recorder.record("one more", step, None, lambda: None)
    assert [event.waited for event in events] == [1] + [0] * MOST_RECORDINGS
    recorder.clear()
    assert [event.waited for event in events] == [1] * (MOST_RECORDINGS + 1)
    assert recorder.last() is None


def test_without_page_locked_memory_words_are_staged_in_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder_on(Device(free=10, held=0), monkeypatch)

    def refuse(size: int) -> bytearray:
        raise RuntimeFailure(2)

    monkeypatch.setattr(passes.cp.cuda, "alloc_pinned_memory", refuse)
    assert passes._page_locked(5).shape == (5,)
