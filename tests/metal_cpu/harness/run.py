"""Runs a built kernel on memory of this process; as a script, on arrays in files.

It needs nothing but NumPy, so that it can run under a sanitizer in a process of its own.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MESSAGE = 2048
GAP = 4096
"""Bytes around each buffer and threadgroup array that belong to none."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that a kernel is given.

    Attributes:
        name: Of the kernel's parameter.
        address: Where it is.
        size: In bytes.
        granule: Bytes that are watched as one; an item's size.
        writable: Whether the kernel may write to it.
    """

    name: str
    address: int
    size: int
    granule: int
    writable: bool


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that went between a launch and one buffer.

    Attributes:
        read: Each lane's load counted.
        fetched: Different bytes that a threadgroup read, summed over the threadgroups: what comes
            from memory if a threadgroup's later reads of a byte are served by its cache.
        touched: Different bytes that were read at all.
        written: Each lane's store counted.
    """

    read: int
    fetched: int
    touched: int
    written: int


class _Triple(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in "xyz"]


class _Buffer(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("granule", ctypes.c_uint64),
        ("writable", ctypes.c_int32),
    ]


class _Traffic(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in Traffic.__slots__]


class _Launch(ctypes.Structure):
    _fields_ = [
        ("buffers", ctypes.POINTER(_Buffer)),
        ("num_buffers", ctypes.c_uint64),
        ("grid", _Triple),
        ("threadgroup", _Triple),
        ("seed", ctypes.c_uint64),
        ("races", ctypes.c_int32),
        ("gap", ctypes.c_uint64),
        ("traffic", ctypes.POINTER(_Traffic)),
        ("error", ctypes.c_char_p),
        ("error_size", ctypes.c_uint64),
        ("error_at", ctypes.c_uint64),
    ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a launch: its traffic by buffer, or an error and where in the library."""

    traffic: dict[str, Traffic]
    error: str = ""
    error_at: int = 0


def run(
    library: Path,
    buffers: Sequence[Buffer],
    grid: Sequence[int],
    threadgroup: Sequence[int],
    seed: int,
    races: bool,
    gap: int = GAP,
) -> Outcome:
    """Launch a kernel; the buffers it may write to are changed.

    Args:
        library: The built kernel.
        buffers: What it is given.
        grid: Threads.
        threadgroup: Threads.
        seed: 0: threads in order; else their order is drawn from it.
        races: Whether a race ends the launch.
        gap: Bytes between threadgroup arrays.
    """
    given = (_Buffer * len(buffers))(
        *(_Buffer(b.name.encode(), b.address, b.size, b.granule, b.writable) for b in buffers)
    )
    traffic = (_Traffic * len(buffers))()
    message = ctypes.create_string_buffer(MESSAGE)
    launch = _Launch(
        given,
        len(buffers),
        _Triple(*grid),
        _Triple(*threadgroup),
        seed,
        races,
        gap,
        traffic,
        ctypes.cast(message, ctypes.c_char_p),
        MESSAGE,
        0,
    )
    failed = ctypes.CDLL(str(library)).metal_cpu_launch(ctypes.byref(launch))
    counted = {
        buffer.name: Traffic(*(getattr(t, name) for name in Traffic.__slots__))
        for buffer, t in zip(buffers, traffic, strict=True)
    }
    return Outcome(counted, message.value.decode() if failed else "", launch.error_at)


def main(folder: Path) -> int:
    """Run the launch that a folder describes; its buffers' files are changed."""
    asked = json.loads((folder / "launch.json").read_text())
    arrays = {name: np.fromfile(folder / name, np.uint8) for name, *_ in asked["buffers"]}
    buffers = [
        Buffer(name, arrays[name].ctypes.data, arrays[name].size, granule, writable)
        for name, granule, writable in asked["buffers"]
    ]
    library = Path(asked["library"])
    sizes = asked["grid"], asked["threadgroup"]
    outcome = run(library, buffers, *sizes, asked["seed"], races=False, gap=0)
    for buffer in buffers:
        if buffer.writable:
            arrays[buffer.name].tofile(folder / buffer.name)
    print(outcome.error, file=sys.stderr)
    return 1 if outcome.error else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
