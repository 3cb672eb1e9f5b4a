"""A checkpoint of MiniCPM-o, opened and checked, before a weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from omnitide.model import ModelSpec
from omnitide.models.chat import CHATML
from omnitide.models.checkpoint import Checkpoint, WeightInfo, end_tokens, select_tensors
from omnitide.models.minicpm_o.config import MiniCPMConfig, spec_of
from omnitide.models.minicpm_o.duplex import DuplexTokens
from omnitide.models.minicpm_o.layout import Layout
from omnitide.models.minicpm_o.markers import Markers
from omnitide.models.minicpm_o.names import (
    canonical,
    expected_tensors,
    has_qk_norm,
    is_converted,
    optional_tensors,
    vision_layers,
)
from omnitide.models.minicpm_o.reading import parse_config
from omnitide.models.minicpm_o.template import THINKING_CHATML
from omnitide.models.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class OpenedMiniCPM:
    """What a folder holds, but for the weights themselves.

    Attributes:
        config: Of the checkpoint.
        spec: Shapes that the cache needs.
        tensors: Where each weight lies, by canonical name.
        converted: Whether they are laid out as conversions for MLX lay them out.
        template: Chat template and tokenizer.
        layout: Of picture and sound.
        ends: Tokens that end a reply, besides the template's.
        duplex: Tokens for listening and speaking; None if the tokenizer has none.
    """

    config: MiniCPMConfig
    spec: ModelSpec
    tensors: Mapping[str, WeightInfo]
    converted: bool
    template: ChatTemplate
    layout: Layout
    ends: frozenset[int]
    duplex: DuplexTokens | None


def open_minicpm(checkpoint: Checkpoint, name: str) -> OpenedMiniCPM:
    """Read and check everything but the weights.

    Args:
        checkpoint: Its configuration and headers.
        name: For people to read.

    Raises:
        CheckpointError: Configuration, tensors, tokenizer or chat template don't fit.
    """
    stored = checkpoint.tensors
    config = parse_config(checkpoint.config, vision_layers(stored) or None, has_qk_norm(stored))
    converted = is_converted(stored)
    tensors = select_tensors(
        checkpoint, expected_tensors(config, converted), canonical, optional_tensors(config)
    )
    fallback = THINKING_CHATML if config.version == "4.5" else CHATML
    template = ChatTemplate(checkpoint.folder, fallback, enable_thinking=False)
    ends = end_tokens(checkpoint)
    template.check_vocabulary(config.text.vocab_size, ends)
    return OpenedMiniCPM(
        config=config,
        spec=spec_of(config, name, checkpoint.trained),
        tensors=tensors,
        converted=converted,
        template=template,
        layout=Layout(Markers.of(template.tokenizer), config.resampler.num_queries),
        ends=ends,
        duplex=DuplexTokens.read(checkpoint.folder, template.tokenizer, config.text.vocab_size),
    )
