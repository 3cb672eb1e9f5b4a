"""The thinker without its weights: what converting it and telling its memory need to know."""

from __future__ import annotations

from omnitide.config import MediaOptions
from omnitide.models.checkpoint import Checkpoint
from omnitide.models.names import text_tensors
from omnitide.models.outline import HIDDEN_ROWS, INNER_ROWS, ModelOutline, decoder_values
from omnitide.models.own_defaults import own_defaults
from omnitide.models.qwen2_5_omni.config import ThinkerConfig
from omnitide.models.qwen2_5_omni.model import DEFAULTS
from omnitide.models.qwen2_5_omni.names import canonical, expected_tensors, optional_tensors
from omnitide.models.qwen2_5_omni.opened import open_thinker
from omnitide.models.qwen2_5_omni.sizes import largest_media_unit


def outline(checkpoint: Checkpoint, name: str) -> ModelOutline:
    """The outline of a thinker's checkpoint.

    Raises:
        CheckpointError: Configuration, tensors, tokenizer or chat template don't fit.
    """
    opened = open_thinker(checkpoint, name)
    defaults = own_defaults(DEFAULTS, checkpoint.folder)
    config = opened.config
    unused = optional_tensors(config)
    shapes = expected_tensors(config)
    matrices = frozenset(n for n, shape in shapes.items() if len(shape) == 2 and n not in unused)

    def count_system(text: str | None) -> int:
        message = defaults.system_prompt if text is None else text
        return len(opened.template.system(message))

    def unit(options: MediaOptions) -> int:
        return largest_media_unit(options, defaults.min_pixels)

    return ModelOutline(
        spec=opened.spec,
        defaults=defaults,
        weights=opened.tensors,
        canonical=canonical,
        matrices=matrices,
        decoder_matrices=matrices & text_tensors(config.text).keys(),
        count_system=count_system,
        largest_media_unit=unit,
        pass_values=lambda tokens, unit: decoder_values(config.text, tokens, unit),
        encoder_values=lambda options: _encoder_values(config, unit(options)),
    )


def _encoder_values(config: ThinkerConfig, tokens: int) -> int:
    """As if the whole unit were picture, which takes more than sound of as many tokens."""
    vision = config.vision
    rows = HIDDEN_ROWS * vision.hidden_size + INNER_ROWS * vision.intermediate_size
    return tokens * vision.merge_size**2 * (rows + vision.patch_values)
