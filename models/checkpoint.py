"""A checkpoint folder in the layout of Hugging Face.

Nothing but safetensors and JSON is ever opened, and no weight is read before all names and shapes
have been compared with what the configuration asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnitide.backend import Array, Backend
from omnitide.errors import CheckpointError
from omnitide.models.headers import FLOAT_TYPES, Shape, TensorInfo, read_headers, read_json


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
    generation = read_json(folder / "generation_config.json", missing={})
    return Checkpoint(folder, config, generation, read_headers(folder))


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
    return read_json(folder / "config.json")


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
    spared = frozenset(optional)
    allowed = spared | expected.keys()
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
            if name not in spared:
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
    return {name: info for name, info in found.items() if name not in spared}


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
