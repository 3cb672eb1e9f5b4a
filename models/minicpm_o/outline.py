"""MiniCPM-o without its weights: what converting it and telling its memory need to know."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnitide.config import MediaOptions
from omnitide.models.checkpoint import Checkpoint
from omnitide.models.minicpm_o.audio import count_sound
from omnitide.models.minicpm_o.config import MiniCPMConfig
from omnitide.models.minicpm_o.duplex import largest_duplex_unit, recall_marker, system_unit
from omnitide.models.minicpm_o.image import PATCH, PATCH_VALUES
from omnitide.models.minicpm_o.model import DEFAULTS
from omnitide.models.minicpm_o.names import canonical, expected_tensors, optional_tensors
from omnitide.models.minicpm_o.opened import OpenedMiniCPM, open_minicpm
from omnitide.models.minicpm_o.sizes import largest_media_unit, most_pictures, sound_memory
from omnitide.models.names import text_tensors
from omnitide.models.outline import (
    HIDDEN_ROWS,
    INNER_ROWS,
    DuplexOutline,
    ModelOutline,
    decoder_values,
)
from omnitide.models.own_defaults import own_defaults

RESAMPLED_ROWS = 5
"""Rows of the decoder's width that the resampler holds at once for each patch: the patch, its norm,
the norm with its place, key and value."""

STREAMS = 2
"""States of a stream that are held at once: that before an update stays until it is whole."""


def outline(checkpoint: Checkpoint, name: str) -> ModelOutline:
    """The outline of a checkpoint.

    Raises:
        CheckpointError: Configuration, tensors, tokenizer or chat template don't fit.
    """
    opened = open_minicpm(checkpoint, name)
    config = opened.config
    defaults = own_defaults(DEFAULTS, checkpoint.folder)
    unused = optional_tensors(config)
    # Only what is called a weight can have scales beside it, so parameters without a module stay.
    matrices = frozenset(
        name
        for name, shape in expected_tensors(config, opened.converted).items()
        if len(shape) == 2 and name.endswith(".weight") and name not in unused
    )

    def count_system(text: str | None) -> int:
        message = defaults.system_prompt if text is None else text
        return len(opened.template.system(message))

    def encoder_values(options: MediaOptions) -> int:
        sound_memory(options, config.audio)  # refused here as a run would refuse it
        return _encoder_values(config, options)

    return ModelOutline(
        spec=opened.spec,
        defaults=defaults,
        weights=opened.tensors,
        canonical=canonical,
        matrices=matrices,
        decoder_matrices=matrices & text_tensors(config.text).keys(),
        count_system=count_system,
        largest_media_unit=lambda options: largest_media_unit(config, options),
        pass_values=lambda tokens, unit: decoder_values(config.text, tokens, unit),
        encoder_values=encoder_values,
        stream_values=_stream_values(config),
        duplex=_duplex(opened),
    )


def _duplex(opened: OpenedMiniCPM) -> DuplexOutline | None:
    if opened.duplex is None:
        return None

    def count_system(text: str | None, voice: NDArray[np.float32] | None) -> int:
        sounds = 0 if voice is None else count_sound(voice, opened.config.audio.pool)
        return len(system_unit(opened.template, opened.layout, text, sounds))

    return DuplexOutline(
        count_system=count_system,
        recall_marker=len(recall_marker(opened.template)),
        largest_unit=lambda options: largest_duplex_unit(opened.config, options),
    )


def _encoder_values(config: MiniCPMConfig, options: MediaOptions) -> int:
    """All pictures of the largest unit go through the tower together, then through the resampler.

    Sound takes less: a piece of it has some hundred frames.
    """
    vision, width = config.vision, config.resampler.hidden_size
    patches = most_pictures(config, options) * (config.slices.scale // PATCH) ** 2
    tower = HIDDEN_ROWS * vision.hidden_size + INNER_ROWS * vision.intermediate_size + PATCH_VALUES
    resampler = vision.hidden_size + RESAMPLED_ROWS * width
    return patches * max(tower, resampler)


def _stream_values(config: MiniCPMConfig) -> int:
    """Keys and values of the audio tower, of as many frames as it knows positions for."""
    audio = config.audio
    return STREAMS * 2 * audio.num_layers * audio.max_frames * audio.hidden_size
