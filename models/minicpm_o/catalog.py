"""The published checkpoints of the family."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from omnitide.config import MediaOptions
from omnitide.models.catalog import KnownCheckpoint
from omnitide.models.minicpm_o.config import MiniCPMConfig, spec_of
from omnitide.models.minicpm_o.model import DEFAULTS
from omnitide.models.minicpm_o.names import expected_tensors
from omnitide.models.minicpm_o.presets import PRESETS
from omnitide.models.minicpm_o.reading import parse_config
from omnitide.models.minicpm_o.sizes import media_tokens

SUPPORTED = (
    "MiniCPM-o 4.5 and 2.6: picture, film, sound and text in, text out; 4.5 also speaks, as text, "
    "when it decides to (--duplex); safetensors in full precision or quantised as MLX does it, as "
    "published or converted for MLX"
)


def known_checkpoints() -> tuple[KnownCheckpoint, ...]:
    """All of `PRESETS`."""
    return tuple(_known(name, parse_config(config)) for name, config in PRESETS.items())


def _known(name: str, config: MiniCPMConfig) -> KnownCheckpoint:
    def count(options: MediaOptions, frames: int, height: int, width: int, samples: int) -> int:
        # Where more pixels are allowed than the model takes, it is given as many as it takes.
        most = config.slices.max_slices * config.slices.scale**2
        allowed = replace(options, max_pixels=min(options.max_pixels, most))
        return media_tokens(config, allowed, frames, height, width, samples)

    parameters = sum(prod(shape) for shape in expected_tensors(config).values())
    return KnownCheckpoint(spec_of(config, name), parameters, count, DEFAULTS)
