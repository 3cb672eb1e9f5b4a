"""From a checkpoint and a recipe to a plan; everything is checked and nothing is written."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from omnitide.convert.plan import Item, Plan, make_shards
from omnitide.convert.recipe import Format, Recipe
from omnitide.convert.source import DTYPES, find_sources
from omnitide.errors import CheckpointError, ConfigError
from omnitide.models.checkpoint import Checkpoint, open_checkpoint
from omnitide.models.headers import TensorInfo
from omnitide.models.outline import ModelOutline, outline_of
from omnitide.models.quantized import QuantizedInfo, quantization_of

STORED_AS = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}
"""safetensors' spelling of the dtypes that may be asked for."""

_HALF = ("F16", "BF16")


def plan_conversion(
    folder: Path, recipe: Recipe, dtype: str | None = None, drop_unused: bool = False
) -> Plan:
    """What converting a checkpoint will write.

    Args:
        folder: Of a checkpoint in full precision.
        recipe: What becomes how many bits.
        dtype: Of the floats that are written, scales and biases of groups included. None: a 16-bit
            type stays, all others become bfloat16.
        drop_unused: Whether to leave out what the model's language and encoders don't read (what
            speaks, say), rather than copy it.

    Raises:
        CheckpointError: The folder holds no model in full precision.
        ConfigError: The recipe or the dtype can't be met.
    """
    if dtype is not None and dtype not in STORED_AS:
        raise ConfigError(
            f"[convert] the dtype must be one of {', '.join(STORED_AS)}, got {dtype!r}"
        )
    checkpoint = open_checkpoint(folder)
    outline = outline_of(checkpoint, folder.name)
    _refuse_quantized(checkpoint, outline)
    chosen = recipe.choose(
        {_module(name): _matrix_shape(outline, name) for name in sorted(outline.matrices)},
        frozenset(_module(name) for name in outline.decoder_matrices),
    )
    items: list[Item] = []
    left_out: list[str] = []
    for file in sorted({info.file for info in checkpoint.tensors.values()}):
        tensors = [info for info in checkpoint.tensors.values() if info.file == file]
        for source in find_sources(file, tensors):
            info = source.info
            name = outline.canonical(info.name)
            if name is None or name not in outline.weights:
                if drop_unused:
                    left_out.append(info.name)
                else:
                    items.append(Item(source, info.name, None, info.dtype, is_read=False))
                continue
            module = _module(name)
            items.append(Item(source, module, chosen.get(module), _written_as(info, dtype)))
    config = _config(checkpoint, recipe.format, items)
    return Plan(make_shards(items), config, tuple(left_out))


def _refuse_quantized(checkpoint: Checkpoint, outline: ModelOutline) -> None:
    quantized = [n for n, info in outline.weights.items() if isinstance(info, QuantizedInfo)]
    if quantized or quantization_of(checkpoint.config):
        raise CheckpointError(
            f"[convert] the model must be in full precision, {checkpoint.folder} is quantised "
            f"already ({len(quantized)} matrices); convert the model that it was made of"
        )


def _module(name: str) -> str:
    return name.removesuffix(".weight")


def _matrix_shape(outline: ModelOutline, name: str) -> tuple[int, int]:
    rows, columns = outline.weights[name].shape
    return rows, columns


def _written_as(info: TensorInfo, dtype: str | None) -> str:
    if info.dtype not in DTYPES:
        return info.dtype
    if dtype is not None:
        return STORED_AS[dtype]
    return info.dtype if info.dtype in _HALF else "BF16"


def _config(checkpoint: Checkpoint, format: Format, items: list[Item]) -> dict[str, Any]:
    """config.json with what MLX writes there: the common format, and each module that differs."""
    stated: dict[str, Any] = {**asdict(format), "mode": "affine"}
    stated = {key: stated[key] for key in ("group_size", "bits", "mode")}
    for item in items:
        if item.format is not None and item.format != format:
            stated[_module(item.info.name)] = {
                "group_size": item.format.group_size,
                "bits": item.format.bits,
            }
    return {**checkpoint.config, "quantization": stated, "quantization_config": stated}
