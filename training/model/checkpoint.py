"""A trained model as a checkpoint that any loader of the family reads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from omnitide.convert.conversion import convert
from omnitide.convert.planner import plan_conversion
from omnitide.convert.recipe import Format, Recipe
from omnitide.models.headers import SINGLE_FILE
from omnitide.models.own_defaults import RETENTION
from omnitide.models.qwen2_5_omni.image import CLIP_MEAN, CLIP_STD, MERGE, PATCH, TEMPORAL_PATCH
from omnitide.models.qwen2_5_omni.model import DEFAULTS
from omnitide.models.random_checkpoint import write_json
from training.settings import Settings
from training.world.unit import SIZE

FORMAT = Format(8, 64)
"""Of the decoder's matrices in the model that ships."""

_TOKENIZER = ("tokenizer.json", "chat_template.json", "generation_config.json")


def write_full(
    weights: dict[str, Tensor],
    settings: Settings,
    tokenizer: Path,
    folder: Path,
    retention: dict[str, int] | None = None,
) -> None:
    """Write a checkpoint in float32 and the published layout. Changes `folder`.

    Args:
        weights: State of a `model.thinker.Thinker`.
        settings: Its shape.
        tokenizer: Folder with the files that `rows.tokenizer.write` wrote.
        folder: Made if need be.
        retention: What the model was found to need of older units, as `own_defaults` reads it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stored = {published(name): w.float().cpu().contiguous() for name, w in weights.items()}
    save_file(stored, folder / SINGLE_FILE, metadata={"format": "pt"})
    own = {} if retention is None else {RETENTION: retention}
    write_json(folder / "config.json", settings.config() | own)
    write_json(folder / "preprocessor_config.json", _preprocessor())
    for name in _TOKENIZER:
        shutil.copyfile(tokenizer / name, folder / name)


def write_eight_bit(full: Path, folder: Path) -> int:
    """Convert what `write_full` wrote; returns the bytes of all files.

    Raises:
        ConfigError: The folder is there and not empty.
        CheckpointError: A weight is not finite, or the disk is full.
    """
    convert(plan_conversion(full, Recipe(FORMAT), drop_unused=True), full, folder)
    return sum(file.stat().st_size for file in folder.iterdir())


def published(name: str) -> str:
    """The published name of a weight that is named as in transformers 5."""
    for part in ("language_model", "visual", "audio_tower"):
        prefix = f"model.{part}."
        if name.startswith(prefix):
            place = "model" if part == "language_model" else part
            return f"thinker.{place}.{name.removeprefix(prefix)}"
    return f"thinker.{name}"


def _preprocessor() -> dict[str, Any]:
    """preprocessor_config.json: pictures are never larger than those of training."""
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "Qwen2_5OmniProcessor",
        "image_mean": list(CLIP_MEAN),
        "image_std": list(CLIP_STD),
        "min_pixels": DEFAULTS.min_pixels,
        "max_pixels": SIZE * SIZE,
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": TEMPORAL_PATCH,
        "feature_size": 128,
        "sampling_rate": 16000,
        "hop_length": 160,
        "n_fft": 400,
    }
