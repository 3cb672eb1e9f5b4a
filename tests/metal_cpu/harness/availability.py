"""Whether this machine can run Metal kernels on its CPU, and with which clang."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

OLDEST = 17
NEWEST = 30
"""Versions of clang that are looked for; bfloat16 arithmetic came with 17. Tested with 19."""


def why_not() -> str | None:
    """The reason for which kernels can't run here, None where they can."""
    if importlib.util.find_spec("mlx") is None:
        return "Metal on the CPU needs mlx, which generates the kernels' source"
    if sys.platform != "linux":
        return "Metal on the CPU is for Linux; a Mac runs the kernels on its GPU"
    if find_clang() is None:
        return (
            f"Metal on the CPU needs clang {OLDEST} or newer: apt-get install clang-19, or set "
            "OMNITIDE_CLANG to a clang++"
        )
    return None


@cache
def find_clang() -> Path | None:
    """`OMNITIDE_CLANG`, else clang++, else the newest clang++-N; None if there is none."""
    chosen = os.environ.get("OMNITIDE_CLANG")
    names = [chosen] if chosen else ["clang++", *(f"clang++-{n}" for n in _versions())]
    for name in names:
        path = shutil.which(name)
        if path is not None and clang_version(Path(path))[0] >= OLDEST:
            return Path(path)
    return None


def clang_version(clang: Path) -> tuple[int, str]:
    """Its major version, 0 if it isn't clang, and the whole line."""
    said = subprocess.run([clang, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"clang version (\d+)", said)
    return (int(found[1]) if found else 0), said.partition("\n")[0]


def _versions() -> range:
    return range(NEWEST, OLDEST - 1, -1)
