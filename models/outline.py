"""What is known of a checkpoint's model before its weights are read.

A family's folder has a module `outline` with `outline(checkpoint, name) -> ModelOutline`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Backend
from omnitide.config import FamilyDefaults, MediaOptions
from omnitide.figures import ITEMSIZES
from omnitide.model import ModelSpec
from omnitide.models import find_family
from omnitide.models.checkpoint import (
    Checkpoint,
    WeightInfo,
    open_checkpoint,
    stored_tensors,
)
from omnitide.models.headers import TensorInfo
from omnitide.models.quantized import QuantizedInfo, kept_as_floats
from omnitide.models.text_config import TextConfig

HIDDEN_ROWS = 8
"""Rows of a layer's width that are held at once for each token: the state, its norm, queries, keys,
values, both of these turned, and what attention gives."""

INNER_ROWS = 3
"""Rows of an MLP's inner width: gate, up and their product."""


@dataclass(frozen=True, slots=True)
class DuplexOutline:
    """What a model that speaks when it decides to needs room for; see `omnitide.model.Duplex`.

    Attributes:
        count_system: Tokens of the system prefix, from its message (None: the family's own) and the
            voice to speak with (mono samples at 16 kHz, or None).
        recall_marker: Tokens before what is recalled.
        largest_unit: Most tokens of a unit up to where the model decides.
    """

    count_system: Callable[[str | None, NDArray[np.float32] | None], int]
    recall_marker: int
    largest_unit: Callable[[MediaOptions], int]


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """A model without its weights. Names of weights are the family's canonical ones.

    Attributes:
        spec: Shapes that the cache needs.
        defaults: Of the family.
        weights: What would be read, all of it checked.
        canonical: Canonical name of a stored one; None for those that are left alone.
        matrices: Weights that may be quantised: the models use them through `Backend.linear` and
            its kin, and `Backend.take`.
        decoder_matrices: Those of them that belong to the language model.
        count_system: Tokens of the system prefix, None being the family's own message.
        largest_media_unit: Most tokens of a media unit, whatever the picture.
        pass_values: Values that a pass of so many tokens of a unit of so many holds at once, beside
            weights and cache and beside what attention makes of the cache, at most.
        encoder_values: Values that encoding the largest media unit holds at once, at most. Refuses
            options that the model can't take.
        stream_values: Values that a stream's state holds on the device, at most.
        duplex: None for a model that speaks only when it is asked.
    """

    spec: ModelSpec
    defaults: FamilyDefaults
    weights: Mapping[str, WeightInfo]
    canonical: Callable[[str], str | None]
    matrices: frozenset[str]
    decoder_matrices: frozenset[str]
    count_system: Callable[[str | None], int]
    largest_media_unit: Callable[[MediaOptions], int]
    pass_values: Callable[[int, int], int]
    encoder_values: Callable[[MediaOptions], int]
    stream_values: int = 0
    duplex: DuplexOutline | None = None

    def kept_by(self, backend: Backend) -> ModelOutline:
        """This outline with the weights as the backend keeps them once they are loaded."""
        itemsize, most_bytes = ITEMSIZES[backend.dtype], backend.unpacked_bytes
        if not kept_as_floats(self.weights.values(), itemsize, most_bytes):
            return self
        weights = {
            name: TensorInfo(info.parts.name, info.shape, "F32", info.parts.weight.file)
            if isinstance(info, QuantizedInfo)
            else info
            for name, info in self.weights.items()
        }
        return replace(self, weights=weights)

    def weight_bytes(self, itemsize: int) -> int:
        """Bytes of all weights on a backend whose floats have `itemsize` bytes."""
        return sum(_bytes_of(info, itemsize) for info in self.weights.values())

    def largest_weight(self, itemsize: int) -> int:
        """Bytes of the largest weight there."""
        return max(_bytes_of(info, itemsize) for info in self.weights.values())

    def largest_dequantized(self) -> int:
        """Values of the largest quantised matrix that a pass multiplies many rows by; 0 if none.

        The vocabulary is not: its product is made for the last token alone.
        """
        return max(
            (
                prod(info.shape)
                for info in self.weights.values()
                if isinstance(info, QuantizedInfo) and info.shape[0] != self.spec.vocab_size
            ),
            default=0,
        )


def decoder_values(text: TextConfig, tokens: int, unit: int) -> int:
    """Values that a pass of the shared decoder holds at once (`ModelOutline.pass_values`).

    The embeddings of the whole unit are held while its passes run.
    """
    width = max(text.hidden_size, text.num_heads * text.head_dim)
    rows = HIDDEN_ROWS * width + INNER_ROWS * text.intermediate_size
    return tokens * rows + unit * text.hidden_size + 2 * text.vocab_size


def _bytes_of(info: WeightInfo, itemsize: int) -> int:
    """Floats take the backend's size; parts of quantised matrices stay as stored."""
    sizes = {"U32": 4, "U8": 1}
    return sum(prod(t.shape) * sizes.get(t.dtype, itemsize) for t in stored_tensors(info))


def outline_of(checkpoint: Checkpoint, name: str) -> ModelOutline:
    """The outline of an opened checkpoint.

    Raises:
        CheckpointError: Whatever is wrong with it.
    """
    family = find_family(checkpoint.config)
    module = import_module(f"omnitide.models.{family.name}.outline")
    outline: ModelOutline = module.outline(checkpoint, name)
    return outline


def read_outline(folder: Path, name: str | None = None) -> ModelOutline:
    """The outline of the checkpoint in a folder; `name` is for people, the folder's by default.

    Raises:
        CheckpointError: Whatever is wrong with the folder.
    """
    return outline_of(open_checkpoint(folder), name or folder.name)
