"""SHA-256 of a checkpoint, so that results name the very weights that gave them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.txt")

_HASH = re.compile(r"[0-9a-f]{64}")


def checkpoint_hash(folder: Path) -> str:
    """Of the names and contents of weights, configuration and vocabulary.

    A download of huggingface_hub is a link to a file that is named by its SHA-256; that is taken at
    its word, so that gigabytes are not read again.
    """
    whole = hashlib.sha256()
    names = sorted({path.name for pattern in PATTERNS for path in folder.glob(pattern)})
    for name in names:
        whole.update(f"{name} {file_hash(folder / name)}\n".encode())
    return whole.hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    real = path.resolve()
    if path.is_symlink() and real.parent.name == "blobs" and _HASH.fullmatch(real.name):
        return real.name
    with real.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
