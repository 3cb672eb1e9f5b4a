"""Where PyTorch runs beside a backend, and how its work is timed there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from omnitide.backend import Backend
from omnitide.bench.settings import Course
from omnitide.bench.timing import WARM_UP


def device_for(backend: Backend, course: Course) -> torch.device | None:
    """The device that the backend computes on, or the CPU. None: PyTorch can't use it."""
    if backend.name == "cuda":
        if torch.cuda.is_available():
            return torch.device("cuda")
        course.note("peer torch is left out: this build of PyTorch can't use the GPU")
        return None
    if "Metal" in backend.device and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def dtype_for(backend: Backend) -> torch.dtype:
    """The backend's dtype."""
    found: torch.dtype = getattr(torch, backend.dtype)
    return found


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    elif device.type == "mps":
        torch.mps.synchronize()


def wall_times(device: torch.device, function: Callable[[int], Any], repeat: int) -> list[float]:
    """Seconds of each call by the host's clock, launches included; the first few are left out."""
    seconds = []
    for index in range(WARM_UP + repeat):
        synchronize(device)
        started = time.perf_counter()
        function(index)
        synchronize(device)
        seconds.append(time.perf_counter() - started)
    return seconds[WARM_UP:]


def recorded(function: Callable[[int], Any], calls: int) -> Callable[[], None]:
    """A CUDA graph of calls with index 0, 1, ... , to be replayed."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for index in range(WARM_UP):
            function(index)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(calls):
            function(index)
    replay: Callable[[], None] = graph.replay
    return replay


def device_times(
    device: torch.device, function: Callable[[int], Any], calls: int, repeat: int
) -> list[float]:
    """Seconds of a call on the device, launches left out where calls can be recorded.

    Args:
        device: Where it runs.
        function: Takes an index below `calls`, which chooses its data.
        calls: Calls after which the data repeat.
        repeat: Times to return; on a GPU each is the mean of `calls` calls.
    """
    if device.type != "cuda":
        return wall_times(device, lambda index: function(index % calls), repeat)
    replay = recorded(lambda index: function(index % calls), calls)
    seconds = []
    for _ in range(WARM_UP + repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3 / calls)
    return seconds[WARM_UP:]
