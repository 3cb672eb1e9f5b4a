"""Runs a kernel under clang's AddressSanitizer, in a process of its own."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .compiler import sanitizer_library
from .errors import LaunchError
from .run import Buffer

OPTIONS = "detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=0"


def run_sanitized(
    library: Path,
    buffers: Sequence[Buffer],
    grid: Sequence[int],
    threadgroup: Sequence[int],
    seed: int,
) -> None:
    """Launch a kernel that was built for the sanitizer; writable buffers are changed.

    Raises:
        LaunchError: The sanitizer found something, or the launch failed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for buffer in buffers:
            (folder / buffer.name).write_bytes(ctypes.string_at(buffer.address, buffer.size))
        launch = {
            "library": str(library),
            "buffers": [(b.name, b.granule, b.writable) for b in buffers],
            "grid": list(grid),
            "threadgroup": list(threadgroup),
            "seed": seed,
        }
        (folder / "launch.json").write_text(json.dumps(launch))
        command = [sys.executable, str(Path(__file__).with_name("run.py")), str(folder)]
        environment = {**os.environ, "LD_PRELOAD": sanitizer_library(), "ASAN_OPTIONS": OPTIONS}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LaunchError(f"[metal_cpu] {_summary(done.stderr)}")
        for buffer in buffers:
            if buffer.writable:
                changed = (folder / buffer.name).read_bytes()
                ctypes.memmove(buffer.address, changed, buffer.size)


def _summary(report: str) -> str:
    """The sanitizer's finding and the kernel's line, else all that was said."""
    error = re.search(r"ERROR: AddressSanitizer: (.*)", report)
    access = re.search(r"^(?:READ|WRITE) of size \d+", report, re.M)
    place = re.search(r"(\w+\.metal:\d+)", report)
    found = [match[match.lastindex or 0] for match in (error, access, place) if match]
    return ", ".join(found) if error else report
