"""Small checkpoints with random weights: what families share in writing them.

They run the whole program in seconds where no trained model is at hand. Equal arguments give equal
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers.pre_tokenizers import ByteLevel

from omnitide.models.headers import INDEX_FILE, SINGLE_FILE, Shape
from omnitide.models.names import EMBEDDING, LM_HEAD

Values = NDArray[np.float32]

_QUIET = 0.05
"""Factor on the output rows of tokens that are no printable text."""


def byte_vocab() -> dict[str, int]:
    """Ids 0 to 255 by the printable stand-ins of byte-level BPE."""
    return {character: i for i, character in enumerate(sorted(ByteLevel.alphabet()))}


def random_weights(shapes: Mapping[str, Shape], seed: int) -> dict[str, Values]:
    """Weights that keep activations near one, by canonical name.

    Args:
        shapes: Of every tensor.
        seed: Of the random numbers.
    """
    random = np.random.default_rng(seed)
    return {name: _random_tensor(random, name, shape) for name, shape in shapes.items()}


def quieten(weights: Mapping[str, Values], loud: Mapping[int, float]) -> None:
    """Let a random model say bytes that a terminal can show. Changes its output rows.

    Args:
        weights: With an output matrix of its own.
        loud: Factor on the output row of other tokens, by id.
    """
    factor = np.full(len(weights[LM_HEAD]), _QUIET, np.float32)
    vocab = byte_vocab()
    factor[[vocab[chr(c)] for c in range(33, 127)]] = 1.0
    for token, value in loud.items():
        factor[token] = value
    weights[LM_HEAD][:] *= factor[:, None]


def write_weights(folder: Path, weights: Iterable[tuple[str, Values]], num_files: int) -> None:
    """Write weights in bfloat16 by stored name, with an index if there is more than one file."""
    stored = {name: weight.astype(ml_dtypes.bfloat16) for name, weight in weights}
    if num_files == 1:
        save_file(stored, folder / SINGLE_FILE, metadata={"format": "pt"})
        return
    places: dict[str, str] = {}
    for number in range(num_files):
        file = f"model-{number + 1:05d}-of-{num_files:05d}.safetensors"
        share = {name: stored[name] for name in list(stored)[number::num_files]}
        save_file(share, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(share, file)
    size = sum(tensor.nbytes for tensor in stored.values())
    write_json(
        folder / INDEX_FILE,
        {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))},
    )


def write_json(file: Path, contents: dict[str, Any]) -> None:
    """Write an object for people to read as well."""
    file.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")


def _random_tensor(random: np.random.Generator, name: str, shape: Shape) -> Values:
    noise = random.standard_normal(shape, np.float32)
    if len(shape) > 1:
        return noise * np.float32(0.5 if name == EMBEDDING else prod(shape[1:]) ** -0.5)
    is_norm = "norm" in name or "ln_" in name
    return noise * np.float32(0.1) + np.float32(1.0 if is_norm and name.endswith("weight") else 0.0)
