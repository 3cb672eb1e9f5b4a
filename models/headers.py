"""Headers of a checkpoint's safetensors files: names, shapes and places, without any weight.

A header is read by the safetensors library, which checks that the file is whole. Pickled weights
are refused by name and never opened.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from safetensors import SafetensorError, safe_open

from omnitide.errors import CheckpointError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
CONVERSION_FILE = "conversion.json"
"""What `omnitide convert` did, and whether it has finished."""

PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt"})
FLOAT_TYPES = frozenset({"F64", "F32", "F16", "BF16"})

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a safetensors header says of a tensor.

    Attributes:
        name: As stored.
        shape: As stored.
        dtype: safetensors' spelling, e.g. "BF16".
        file: Where it lies.
    """

    name: str
    shape: Shape
    dtype: str
    file: Path


def read_headers(folder: Path) -> dict[str, TensorInfo]:
    """All tensors of a folder by stored name.

    Looks for an index first, then for model.safetensors, then for any safetensors files.

    Raises:
        CheckpointError: There are none, they are pickled or cut short, the index and the files
            disagree, or a tensor is stored twice.
    """
    index = folder / INDEX_FILE
    if index.is_file():
        return _read_indexed(folder, index)
    single = folder / SINGLE_FILE
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = sorted(f.name for f in folder.iterdir() if f.suffix in PICKLE_SUFFIXES)
        if pickled:
            raise CheckpointError(
                f"[checkpoint] weights must be safetensors, {folder} holds {', '.join(pickled)}; "
                "a pickle can run any code when opened, so it is refused: convert it to safetensors"
            )
        raise CheckpointError(
            f"[checkpoint] weights must be safetensors, {folder} holds none; download it again"
        )
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        for info in _read_header(file):
            if info.name in tensors:
                raise CheckpointError(
                    f"[checkpoint] a tensor must be stored once, {info.name} is in "
                    f"{tensors[info.name].file.name} and {file.name}; remove one of them"
                )
            tensors[info.name] = info
    return tensors


def _read_indexed(folder: Path, index: Path) -> dict[str, TensorInfo]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(p, str) for p in places.values()):
        raise CheckpointError(
            f"[checkpoint] {index} must map tensor names to files under weight_map; "
            "download it again"
        )
    names = sorted(set(places.values()))
    for name in names:
        if not _stays_inside(name):
            raise CheckpointError(
                f"[checkpoint] {index} must name files inside its own folder, got {name!r}"
            )
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        raise CheckpointError(
            f"[checkpoint] {index.name} names files that {folder} lacks: {', '.join(absent)}; "
            "download it again"
        )
    stored = {(file, info.name): info for file in names for info in _read_header(folder / file)}
    lost = sorted(
        f"{name} in {file}" for name, file in places.items() if (file, name) not in stored
    )
    if lost:
        raise CheckpointError(
            f"[checkpoint] {index.name} names tensors that are not there, download it again:\n  "
            + "\n  ".join(lost)
        )
    return {name: stored[file, name] for name, file in places.items()}


def _stays_inside(name: str) -> bool:
    """Whether a path has neither a root nor a step up, read as either kind of system would."""
    paths = (PurePosixPath(name), PureWindowsPath(name))
    return bool(name) and all(not (p.anchor or p.drive or ".." in p.parts) for p in paths)


def _read_header(file: Path) -> list[TensorInfo]:
    try:
        with safe_open(file, framework="numpy") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return [
                TensorInfo(name, tuple(part.get_shape()), part.get_dtype(), file)
                for name, part in slices.items()
            ]
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"[checkpoint] {file} can't be read as safetensors ({error}); it may be cut short: "
            "download it again"
        ) from error


def read_json(file: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """Contents of a JSON file that holds an object; `missing` where there is no file.

    Raises:
        CheckpointError: It can't be read, holds something else, or is absent and must not be.
    """
    if not file.is_file():
        if missing is not None:
            return missing
        raise CheckpointError(
            f"[checkpoint] {file.parent} must hold {file.name}, there is none; "
            "give a model's folder"
        )
    try:
        contents = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(
            f"[checkpoint] {file} can't be read as JSON ({error}); download it again"
        ) from error
    if not isinstance(contents, dict):
        raise CheckpointError(
            f"[checkpoint] {file} must hold a JSON object, got {type(contents).__name__}"
        )
    return contents
