"""The published checkpoints of the family."""

from __future__ import annotations

from math import prod

from omnitide.config import MediaOptions
from omnitide.models.catalog import KnownCheckpoint
from omnitide.models.qwen2_5_omni.config import ThinkerConfig, parse_config, spec_of
from omnitide.models.qwen2_5_omni.layout import Layout
from omnitide.models.qwen2_5_omni.model import DEFAULTS
from omnitide.models.qwen2_5_omni.names import expected_tensors
from omnitide.models.qwen2_5_omni.presets import PRESETS
from omnitide.models.qwen2_5_omni.sizes import media_tokens

SUPPORTED = (
    "Qwen2.5-Omni: picture, film, sound and text in, text out (the thinker); safetensors in full "
    "precision or quantised as MLX does it"
)


def known_checkpoints() -> tuple[KnownCheckpoint, ...]:
    """All of `PRESETS`."""
    return tuple(_known(name, parse_config(config)) for name, config in PRESETS.items())


def _known(name: str, config: ThinkerConfig) -> KnownCheckpoint:
    layout = Layout.of(config)

    def count(options: MediaOptions, frames: int, height: int, width: int, samples: int) -> int:
        return media_tokens(
            layout,
            frames,
            height,
            width,
            samples,
            min_pixels=DEFAULTS.min_pixels,
            max_pixels=options.max_pixels,
        )

    parameters = sum(prod(shape) for shape in expected_tensors(config).values())
    return KnownCheckpoint(spec_of(config, name), parameters, count, DEFAULTS)
