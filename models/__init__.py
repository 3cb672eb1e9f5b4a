"""Model families, found by the architecture that a checkpoint names.

Importing this module imports no family: a family is a folder here, loaded when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from omnitide.backend import Backend
from omnitide.config import FamilyDefaults, MediaOptions
from omnitide.errors import CheckpointError
from omnitide.model import OmniModel
from omnitide.models.checkpoint import open_checkpoint, read_config
from omnitide.models.own_defaults import own_defaults


@dataclass(frozen=True, slots=True)
class Family:
    """A model family.

    Attributes:
        name: Its folder here; the module `<name>.model` has `load(checkpoint, backend, name,
            media)` and `DEFAULTS`, and `<name>.outline` has `outline(checkpoint, name)`.
        architectures: As config.json spells them under "architectures".
        model_types: As config.json spells them under "model_type".
        relatives: How names of checkpoints begin, in lower case, that are related and not
            supported.
        why_not: What those have that this family has not.
    """

    name: str
    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    relatives: str | None = None
    why_not: str = ""


FAMILIES = (
    Family(
        "qwen2_5_omni",
        (
            "Qwen2_5OmniModel",
            "Qwen2_5OmniForConditionalGeneration",
            "Qwen2_5OmniThinkerForConditionalGeneration",
        ),
        ("qwen2_5_omni", "qwen2_5_omni_thinker"),
    ),
    Family(
        "minicpm_o",
        ("MiniCPMO",),
        ("minicpmo",),
        relatives="minicpm",
        why_not="of MiniCPM, MiniCPM-o 4.5 and 2.6 are supported; others, newer ones among them, "
        "have another attention, another rotary embedding or other towers",
    ),
)


def find_family(config: Mapping[str, Any]) -> Family:
    """The family of a config.json: by its architectures, else by its model type.

    Raises:
        CheckpointError: None of ours; names what it is and what is supported.
    """
    listed = config.get("architectures")
    architectures = listed if isinstance(listed, list) else []
    model_type = config.get("model_type")
    for family in FAMILIES:
        if set(family.architectures) & set(map(str, architectures)):
            return family
    for family in FAMILIES:
        if not architectures and model_type in family.model_types:
            return family
    named = ", ".join(map(str, architectures)) or str(model_type or "none named")
    lower = [str(n).lower() for n in (*architectures, model_type)]
    for family in FAMILIES:
        if family.relatives and any(name.startswith(family.relatives) for name in lower):
            raise CheckpointError(
                f"[models] config.json names {named}, which is not supported: {family.why_not}"
            )
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise CheckpointError(
        f"[models] the architecture must be one of {known}; config.json names {named}"
    )


def family_defaults(folder: Path) -> FamilyDefaults:
    """Defaults of the family of the checkpoint in a folder, with what the checkpoint itself says.

    No more than config.json and preprocessor_config.json are read.

    Raises:
        CheckpointError: There is no config.json, its family is not supported, or what
            `own_defaults` reads makes no sense.
    """
    family = find_family(read_config(folder))
    defaults: FamilyDefaults = import_module(f"{__name__}.{family.name}.model").DEFAULTS
    return own_defaults(defaults, folder)


def load_model(
    folder: Path,
    backend: Backend,
    name: str | None = None,
    media: MediaOptions | None = None,
) -> OmniModel:
    """Load the checkpoint in a folder.

    Args:
        folder: In the layout of Hugging Face.
        backend: Where the weights go, in its dtype.
        name: For people to read; the folder's own name by default.
        media: Frame rate and picture size that the model's units are made for; `family_defaults`
            if None.

    Raises:
        CheckpointError: Whatever is wrong with the folder, before any weight is read.
    """
    family = find_family(read_config(folder))
    module = import_module(f"{__name__}.{family.name}.model")
    media = media or family_defaults(folder).media()
    model: OmniModel = module.load(open_checkpoint(folder), backend, name or folder.name, media)
    return model
