"""What the compiler said of a text, remembered: the same text, chip and compiler give the same.

Compiling every kernel for every chip takes minutes; most changes touch one file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from platformdirs import user_cache_path

from omnitide.backends.cuda.nvrtc import Compiled, Nvrtc


def compile_or_recall(
    nvrtc: Nvrtc, source: str, arch: str, names: Sequence[str], folder: Path | None = None
) -> Compiled:
    """As `Nvrtc.compile`, unless it is known already. Texts that don't compile are not remembered.

    Args:
        nvrtc: The compiler.
        source, arch, names: As for `Nvrtc.compile`.
        folder: Where logs are kept. None: the user's cache folder.
    """
    key = sha256(json.dumps([nvrtc.build, arch, list(names), source]).encode()).hexdigest()
    file = (folder or user_cache_path("omnitide") / "kernels") / f"{key}.json"
    known = _read(file)
    if known is None:
        known = nvrtc.compile(source, arch, names)
        _write(file, known)
    return known


def _read(file: Path) -> Compiled | None:
    """What a file holds; None if it is missing or damaged."""
    try:
        log, symbols = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return Compiled(log, symbols)


def _write(file: Path, compiled: Compiled) -> None:
    """Write a file whole or not at all. A folder that can't be written to costs time only."""
    part = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps([compiled.log, compiled.symbols]), encoding="utf-8")
        part.replace(file)
    except OSError:
        part.unlink(missing_ok=True)
