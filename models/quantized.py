"""Quantised matrices of a checkpoint, as MLX stores them: `X.weight`, `X.scales` and `X.biases`.

The tensors decide: a matrix is quantised if its scales are there, and their shapes say how. What
config.json says of it must agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from omnitide.errors import CheckpointError
from omnitide.models.headers import FLOAT_TYPES, Shape, TensorInfo
from omnitide.quantized import MODES, WORD_BITS

AFFINE_BITS = (4, 8)
AFFINE_GROUPS = (32, 64, 128)
FLOAT_MODES = {"mxfp4": (4, 32), "nvfp4": (4, 16)}
"""Bits and group size of the modes whose elements are floats."""

_WEIGHT, _SCALES, _BIASES = ".weight", ".scales", ".biases"


@dataclass(frozen=True, slots=True)
class QuantizedParts:
    """The stored tensors of a quantised matrix; `biases` is None where there are none."""

    weight: TensorInfo
    scales: TensorInfo
    biases: TensorInfo | None

    @property
    def name(self) -> str:
        """Stored name of the matrix: that of its packed elements."""
        return self.weight.name

    @property
    def module(self) -> str:
        """What config.json calls it: the name without its last part."""
        return self.weight.name.removesuffix(_WEIGHT)

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """All of them."""
        parts = (self.weight, self.scales, self.biases)
        return tuple(part for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class QuantizedInfo:
    """A quantised matrix whose tensors fit each other.

    Attributes:
        parts: Its stored tensors.
        shape: (out, in) of the matrix that they stand for.
        bits, group_size, mode: As in `QuantizedWeight`.
    """

    parts: QuantizedParts
    shape: Shape
    bits: int
    group_size: int
    mode: str


def gather_parts(
    tensors: Mapping[str, TensorInfo],
) -> tuple[list[TensorInfo | QuantizedParts], list[str]]:
    """Tensors with the parts of each quantised matrix together, and what is wrong with them.

    Faults are scales or biases whose weight is not there, as a conversion leaves that was broken
    off.
    """
    gathered: list[TensorInfo | QuantizedParts] = []
    faults: list[str] = []
    for name, info in tensors.items():
        if name.endswith(_SCALES):
            base = name.removesuffix(_SCALES)
            weight = tensors.get(base + _WEIGHT)
            if weight is None:
                faults.append(f"scales without a weight {name}")
            else:
                gathered.append(QuantizedParts(weight, info, tensors.get(base + _BIASES)))
        elif name.endswith(_BIASES):
            base = name.removesuffix(_BIASES)
            if base + _SCALES not in tensors:
                faults.append(f"biases without scales {name}")
        elif not (name.endswith(_WEIGHT) and name.removesuffix(_WEIGHT) + _SCALES in tensors):
            gathered.append(info)
    return gathered, faults


def kept_as_floats(
    weights: Iterable[TensorInfo | QuantizedInfo], itemsize: int, most_bytes: int
) -> bool:
    """Whether a model's quantised matrices are made floats once, when they are loaded.

    They are if all of them together take at most `most_bytes` as floats of `itemsize` bytes: a
    small model is then fast, and a large one stays small.
    """
    values = sum(prod(info.shape) for info in weights if isinstance(info, QuantizedInfo))
    return values * itemsize <= most_bytes


def read_matrix(
    parts: QuantizedParts, shape: Shape, config: Mapping[str, Any]
) -> QuantizedInfo | str:
    """How a matrix of this shape is quantised, or what is wrong with it.

    Args:
        parts: Its stored tensors.
        shape: (out, in) that the model asks for.
        config: What config.json says under "quantization"; may be empty.
    """
    name = parts.name
    if len(shape) != 2:
        return f"quantised {name}: only a matrix may be, the model asks for {list(shape)}"
    rows, columns = shape
    packed, scales = parts.weight.shape, parts.scales.shape
    shapes = f"{list(packed)} with scales {list(scales)}, for {list(shape)}"
    if len(packed) != 2 or len(scales) != 2 or not packed[0] == scales[0] == rows:
        return f"mis-shaped {name}: {shapes}"
    if parts.weight.dtype != "U32":
        return f"not packed {name}: {parts.weight.dtype} beside {parts.scales.name}, not U32"
    if min(columns, packed[1], scales[1]) < 1 or columns % scales[1] or packed[1] * 32 % columns:
        return f"mis-shaped {name}: {shapes}"
    bits, group_size = packed[1] * WORD_BITS // columns, columns // scales[1]
    mode = _mode_of(parts, bits, group_size)
    if mode is None:
        return (
            f"unknown kind of quantised {name}: {bits} bits in groups of {group_size}, "
            f"{parts.scales.dtype} scales, {'no ' if parts.biases is None else ''}biases; known "
            "are affine of 4 or 8 bits in groups of 32, 64 or 128, mxfp4 and nvfp4"
        )
    if parts.biases is not None and parts.biases.shape != scales:
        return f"mis-shaped {parts.biases.name}: {list(parts.biases.shape)}, not {list(scales)}"
    found = {"bits": bits, "group_size": group_size, "mode": mode}
    contradiction = _contradiction(found, parts.module, config)
    if contradiction is not None:
        return f"quantised {name}: {contradiction}"
    return QuantizedInfo(parts, shape, bits, group_size, mode)


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config.json says of quantisation, in MLX's manner; empty if nothing.

    Raises:
        CheckpointError: The weights are quantised by another program's method, or in a mode that is
            none of `MODES`.
    """
    stated = config.get("quantization", config.get("quantization_config"))
    if stated is None:
        return {}
    if not isinstance(stated, dict):
        raise CheckpointError(
            f"[checkpoint] quantization in config.json must be an object, got {stated!r}"
        )
    method = stated.get("quant_method")
    if method is not None and "quantization" not in config:
        raise CheckpointError(
            f"[checkpoint] weights must be in full precision or quantised as MLX does it, "
            f"config.json says {method}; take the model in full precision and `omnitide convert` it"
        )
    entries = {"": stated, **{key: one for key, one in stated.items() if isinstance(one, dict)}}
    for module, entry in entries.items():
        mode = entry.get("mode", "affine")
        if mode not in MODES:
            raise CheckpointError(
                f"[checkpoint] the mode of quantisation must be one of {', '.join(MODES)}, "
                f"config.json says {mode!r}{f' of {module}' if module else ''}; convert the model "
                "in full precision with `omnitide convert`"
            )
    return stated


def _mode_of(parts: QuantizedParts, bits: int, group_size: int) -> str | None:
    dtypes = {part.dtype for part in parts.tensors[1:]}
    if parts.biases is not None:
        known = bits in AFFINE_BITS and group_size in AFFINE_GROUPS and dtypes <= FLOAT_TYPES
        return "affine" if known else None
    if dtypes != {"U8"}:
        return None
    return next(
        (mode for mode, kind in FLOAT_MODES.items() if kind == (bits, group_size)),
        None,
    )


def _contradiction(found: Mapping[str, Any], module: str, config: Mapping[str, Any]) -> str | None:
    """What config.json says otherwise of a module; of those it doesn't name, only the mode."""
    if module in config:
        entry = config[module]
        if not isinstance(entry, dict):
            return f"its scales are there, but config.json says {entry!r}"
        said = {"mode": config.get("mode", "affine"), **entry}
    else:
        said = {"mode": config.get("mode", "affine")} if config else {}
    wrong = [key for key, value in found.items() if said.get(key, value) != value]
    if not wrong:
        return None
    return "; ".join(f"{key} {found[key]}, config.json says {said[key]!r}" for key in wrong)
