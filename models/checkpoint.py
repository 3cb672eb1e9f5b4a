"""A checkpoint folder in the layout of Hugging Face, read by its headers first.

Nothing but safetensors and JSON is ever opened, and no weight is read before all names and shapes
have been compared with what the configuration asks for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from safetensors import SafetensorError, safe_open

from omnitide.backend import Array, Backend
from omnitide.errors import CheckpointError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
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


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder whose configuration and headers have been read.

    Attributes:
        folder: The folder.
        config: Contents of config.json.
        generation: Contents of generation_config.json, empty where there is none.
        tensors: By stored name.
    """

    folder: Path
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read configuration and headers of a folder.

    Raises:
        CheckpointError: The folder or config.json is missing or no JSON object, the weights are
            missing, incomplete or pickled.
    """
    config = read_config(folder)
    generation = _read_json(folder / "generation_config.json", missing={})
    return Checkpoint(folder, config, generation, _read_headers(folder))


def read_config(folder: Path) -> dict[str, Any]:
    """Contents of a folder's config.json.

    Raises:
        CheckpointError: There is no such folder or file, or it holds no JSON object.
    """
    if not folder.is_dir():
        raise CheckpointError(
            f"[checkpoint] the model must be a folder, there is none at {folder}; give a folder or "
            "the name of a repository such as Qwen/Qwen2.5-Omni-3B"
        )
    return _read_json(folder / "config.json")


def select_tensors(
    checkpoint: Checkpoint,
    expected: Mapping[str, Shape],
    canonical: Callable[[str], str | None],
    optional: Iterable[str] = (),
) -> dict[str, TensorInfo]:
    """Find the expected tensors among the stored ones.

    Args:
        checkpoint: Where to look.
        expected: Shape by canonical name.
        canonical: Canonical name of a stored one, or None for those that are left alone.
        optional: Canonical names that may be absent and are not returned.

    Returns:
        By canonical name, the expected ones without the optional ones.

    Raises:
        CheckpointError: Names every missing, unknown, doubled, mis-shaped and non-float tensor.
    """
    found: dict[str, TensorInfo] = {}
    faults: list[str] = []
    allowed = set(expected) | set(optional)
    for info in checkpoint.tensors.values():
        name = canonical(info.name)
        if name is None:
            continue
        if name not in allowed:
            faults.append(f"extra {info.name} {list(info.shape)}")
        elif name in found:
            faults.append(f"double {info.name}, also stored as {found[name].name}")
        else:
            found[name] = info
    for name, shape in expected.items():
        if name not in found:
            if name not in set(optional):
                faults.append(f"missing {name} {list(shape)}")
        elif found[name].shape != shape:
            faults.append(
                f"mis-shaped {found[name].name}: {list(found[name].shape)}, not {list(shape)}"
            )
        elif found[name].dtype not in FLOAT_TYPES:
            faults.append(f"not a float tensor {found[name].name}: {found[name].dtype}")
    if faults:
        raise CheckpointError(
            f"[checkpoint] the tensors in {checkpoint.folder} don't fit its config.json, "
            f"{len(faults)} at fault; download it again or correct the configuration:\n  "
            + "\n  ".join(sorted(faults))
        )
    return {name: info for name, info in found.items() if name not in set(optional)}


def load_tensors(backend: Backend, tensors: Mapping[str, TensorInfo]) -> dict[str, Array]:
    """Read weights, file by file, in the backend's dtype. Keys stay as given."""
    weights: dict[str, Array] = {}
    for file in sorted({info.file for info in tensors.values()}):
        names = {info.name: name for name, info in tensors.items() if info.file == file}
        loaded = backend.read_safetensors(file, names)
        weights.update((names[stored], array) for stored, array in loaded.items())
    return weights


def end_tokens(checkpoint: Checkpoint) -> frozenset[int]:
    """Ids that end a reply, from generation_config.json; empty where it names none."""
    given = checkpoint.generation.get("eos_token_id")
    listed = given if isinstance(given, list) else [given]
    return frozenset(i for i in listed if isinstance(i, int))


def _read_headers(folder: Path) -> dict[str, TensorInfo]:
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
    places = _read_json(index).get("weight_map")
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


def _read_json(file: Path, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    if not file.is_file():
        if missing is not None:
            return missing
        raise CheckpointError(
            f"[checkpoint] {file.parent} must hold {file.name}, there is none; give a model's folder"
        )
    try:
        contents = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise CheckpointError(
            f"[checkpoint] {file} can't be read as JSON ({error}); download it again"
        ) from error
    if not isinstance(contents, dict):
        raise CheckpointError(
            f"[checkpoint] {file} must hold a JSON object, got {type(contents).__name__}"
        )
    return contents
