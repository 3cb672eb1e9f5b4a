"""What a saved cache must fit, as plain values and a hash: model, options and marks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

_SAMPLE = 64
"""Numbers of each parameter that are looked at; any training changes them."""


def model_configuration(model: Any) -> dict[str, Any]:
    """A model as plain values: its arguments, and a hash of samples of its weights."""
    arguments = getattr(model, "args", None)
    values = asdict(arguments) if is_dataclass(arguments) else {}  # type: ignore[arg-type]
    return {
        "class": type(model).__module__.rpartition(".")[2],
        "arguments": json.loads(json.dumps(values, default=str)),
        "weights": _weights(model),
    }


def digest(configuration: dict[str, Any]) -> str:
    """SHA-256 of plain values, in hexadecimal."""
    text = json.dumps(configuration, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def differences(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two configurations differ: a path and both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            inner = f"{path}.{key}" if path else str(key)
            yield from differences(one.get(key), other.get(key), inner)
    elif one != other:
        yield path, one, other


def _weights(model: Any) -> str:
    total = hashlib.sha256()
    leaves = tree_flatten(model.parameters())
    samples = [w.reshape(-1)[:_SAMPLE].astype(mx.float32) for _, w in leaves]
    mx.eval(samples)
    for (name, weight), sample in zip(leaves, samples, strict=True):
        total.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        total.update(np.array(sample).tobytes())
    return total.hexdigest()
