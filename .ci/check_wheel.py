"""Check a wheel: one package, every source file of the checkout in it, nothing else."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

# Folders of the checkout and where the wheel holds them.
FOLDERS = {
    "omnitide": "omnitide",
    "backends": "omnitide/backends",
    "models": "omnitide/models",
    "metal_shaders": "omnitide/metal_shaders",
}
SUFFIXES = {
    ".py", ".cu", ".cuh", ".metal", ".json", ".jinja", ".safetensors", ".typed", ".mp4", ".md",
}  # fmt: skip


def main(wheel: str) -> None:
    """Exit with a message if the wheel and the checkout disagree."""
    names = set(zipfile.ZipFile(wheel).namelist())
    foreign = sorted(
        n for n in names if n.split("/")[0] not in {"omnitide"} and ".dist-info/" not in n
    )
    expected = {
        f"{inside}/{path.relative_to(folder).as_posix()}"
        for folder, inside in FOLDERS.items()
        for path in Path(folder).rglob("*")
        if path.suffix in SUFFIXES and "__pycache__" not in path.parts
    } | {"omnitide/py.typed"}
    missing = sorted(expected - names)
    if foreign or missing:
        sys.exit(f"{wheel}: not ours: {foreign}; missing: {missing}")
    print(f"{Path(wheel).name}: {len(expected)} files of ours, nothing else")


if __name__ == "__main__":
    main(sys.argv[1])
