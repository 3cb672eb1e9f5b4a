"""What is known of a checkpoint's model before its weights are read.

A family's folder has a module `outline` with `outline(checkpoint, name) -> ModelOutline`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from omnitide.config import FamilyDefaults, MediaOptions
from omnitide.model import ModelSpec
from omnitide.models import find_family
from omnitide.models.checkpoint import Checkpoint, WeightInfo, open_checkpoint


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
        pass_values: Values that a pass of so many tokens holds at once beside weights and cache,
            at most.
        encoder_values: Values that encoding the largest media unit holds at once, at most.
    """

    spec: ModelSpec
    defaults: FamilyDefaults
    weights: Mapping[str, WeightInfo]
    canonical: Callable[[str], str | None]
    matrices: frozenset[str]
    decoder_matrices: frozenset[str]
    count_system: Callable[[str | None], int]
    largest_media_unit: Callable[[MediaOptions], int]
    pass_values: Callable[[int], int]
    encoder_values: Callable[[MediaOptions], int]


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
