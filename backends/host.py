"""What a backend that computes on the host has in common with others of its kind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_MEMORY = Path("/proc/meminfo")


def wall_times(
    function: Callable[[int], Any], repeat: int, synchronize: Callable[..., None]
) -> list[float]:
    """`Backend.timed` by the host's clock."""
    seconds = []
    for index in range(repeat):
        synchronize()
        started = time.perf_counter()
        made = function(index)
        arrays = made if isinstance(made, list) else [] if made is None else [made]
        synchronize(*arrays)
        seconds.append(time.perf_counter() - started)
        del made, arrays  # else two results would be held at once
    return seconds


def memory_free() -> int:
    """Bytes of main memory that programs can still have.

    Linux says it; elsewhere all of the memory counts as free.
    """
    try:
        lines = _MEMORY.read_text(encoding="ascii").splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
