"""A checkpoint folder in the layout of Hugging Face.

Nothing but safetensors and JSON is ever opened, and no weight is read before all names and shapes
have been compared with what the configuration asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from omnitide.backend import Array, Backend, Weight
from omnitide.errors import CheckpointError
from omnitide.figures import ITEMSIZES
from omnitide.models.headers import (
    CONVERSION_FILE,
    FLOAT_TYPES,
    Shape,
    TensorInfo,
    read_headers,
    read_json,
)
from omnitide.models.quantized import (
    QuantizedInfo,
    QuantizedParts,
    gather_parts,
    kept_as_floats,
    quantization_of,
    read_matrix,
)
from omnitide.quantized import QuantizedWeight

WeightInfo = TensorInfo | QuantizedInfo
"""What is known of a weight before it is read."""


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

    @property
    def trained(self) -> bool:
        """Whether its weights are; our random ones say that they aren't."""
        return self.config.get("trained") is not False


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read configuration and headers of a folder.

    Raises:
        CheckpointError: The folder or config.json is missing or no JSON object, the weights are
            missing, incomplete or pickled.
    """
    config = read_config(folder)
    if read_json(folder / CONVERSION_FILE, missing={"finished": True}).get("finished") is not True:
        raise CheckpointError(
            f"[checkpoint] the conversion in {folder} has not finished; run `omnitide convert` "
            "again with the same options, it goes on where it stopped"
        )
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
) -> dict[str, WeightInfo]:
    """Find the expected tensors among the stored ones.

    Args:
        checkpoint: Where to look.
        expected: Shape by canonical name.
        canonical: Canonical name of a stored one, or None for those that are left alone.
        optional: Canonical names that may be absent and are not returned.

    Returns:
        By canonical name, the expected ones without the optional ones. A matrix may be quantised.

    Raises:
        CheckpointError: Names every missing, unknown, doubled, mis-shaped, non-float and badly
            quantised tensor.
    """
    found: dict[str, TensorInfo | QuantizedParts] = {}
    spared = frozenset(optional)
    allowed = spared | expected.keys()
    quantization = quantization_of(checkpoint.config)
    # What belongs to the parts that are left alone may be stored in any manner.
    wanted = {n: info for n, info in checkpoint.tensors.items() if canonical(n) is not None}
    gathered, faults = gather_parts(wanted)
    for info in gathered:
        name = canonical(info.name)
        if name is None:
            continue
        if name not in allowed:
            shape = info.shape if isinstance(info, TensorInfo) else info.weight.shape
            faults.append(f"extra {info.name} {list(shape)}")
        elif name in found:
            faults.append(f"double {info.name}, also stored as {found[name].name}")
        else:
            found[name] = info
    selected: dict[str, WeightInfo] = {}
    for name, shape in expected.items():
        if name in spared:
            continue
        checked = _checked(found.get(name), name, shape, quantization)
        if isinstance(checked, str):
            faults.append(checked)
        else:
            selected[name] = checked
    if faults:
        raise CheckpointError(
            f"[checkpoint] the tensors in {checkpoint.folder} don't fit its config.json, "
            f"{len(faults)} at fault; download it again or correct the configuration:\n  "
            + "\n  ".join(sorted(faults))
        )
    return selected


def _checked(
    info: TensorInfo | QuantizedParts | None,
    name: str,
    shape: Shape,
    quantization: Mapping[str, Any],
) -> WeightInfo | str:
    """The weight if it is what the model asks for, else what is wrong with it."""
    if info is None:
        return f"missing {name} {list(shape)}"
    if isinstance(info, QuantizedParts):
        return read_matrix(info, shape, quantization)
    if info.shape != shape:
        return f"mis-shaped {info.name}: {list(info.shape)}, not {list(shape)}"
    if info.dtype not in FLOAT_TYPES:
        return f"not a float tensor {info.name}: {info.dtype}"
    return info


def load_tensors(backend: Backend, tensors: Mapping[str, WeightInfo]) -> dict[str, Weight]:
    """Read weights, file by file, floats in the backend's dtype. Keys stay as given.

    Quantised matrices become floats where the backend keeps so few of them so
    (`Backend.unpacked_bytes`).

    Raises:
        CheckpointError: The backend can't compute with the kind of a quantised one. Nothing was
            read.
    """
    _check_modes(backend, tensors)
    arrays = _read_stored(backend, tensors.values())
    weights: dict[str, Weight] = {}
    as_floats = kept_as_floats(tensors.values(), ITEMSIZES[backend.dtype], backend.unpacked_bytes)
    for name, info in tensors.items():
        if isinstance(info, TensorInfo):
            weights[name] = arrays.pop(info.name)
            continue
        parts = info.parts
        packed = QuantizedWeight(
            packed=arrays.pop(parts.weight.name),
            scales=arrays.pop(parts.scales.name),
            biases=None if parts.biases is None else arrays.pop(parts.biases.name),
            bits=info.bits,
            group_size=info.group_size,
            mode=info.mode,
        )
        weights[name] = backend.take(packed, np.arange(info.shape[0])) if as_floats else packed
    return weights


def stored_tensors(info: WeightInfo) -> tuple[TensorInfo, ...]:
    """The tensors that make up a weight."""
    return (info,) if isinstance(info, TensorInfo) else info.parts.tensors


def _read_stored(backend: Backend, weights: Iterable[WeightInfo]) -> dict[str, Array]:
    """The tensors of weights by stored name."""
    stored = [tensor for info in weights for tensor in stored_tensors(info)]
    arrays: dict[str, Array] = {}
    for file in sorted({tensor.file for tensor in stored}):
        names = [tensor.name for tensor in stored if tensor.file == file]
        arrays |= backend.read_safetensors(file, names)
    return arrays


def _check_modes(backend: Backend, tensors: Mapping[str, WeightInfo]) -> None:
    for name, info in tensors.items():
        if isinstance(info, QuantizedInfo) and info.mode not in backend.quantized_modes:
            known = ", ".join(sorted(backend.quantized_modes)) or "none"
            raise CheckpointError(
                f"[checkpoint] {backend.name} computes with quantised weights of mode {known}; "
                f"{name} is {info.mode}: take another --backend, or convert the model in full "
                "precision with `omnitide convert`"
            )


def end_tokens(checkpoint: Checkpoint) -> frozenset[int]:
    """Ids that end a reply, from generation_config.json; empty where it names none."""
    given = checkpoint.generation.get("eos_token_id")
    listed = given if isinstance(given, list) else [given]
    return frozenset(i for i in listed if isinstance(i, int))
