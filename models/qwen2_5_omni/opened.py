"""A thinker's checkpoint, opened and checked, before a weight is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from omnitide.model import ModelSpec
from omnitide.models.checkpoint import Checkpoint, WeightInfo, end_tokens, select_tensors
from omnitide.models.qwen2_5_omni.config import ThinkerConfig, parse_config, spec_of
from omnitide.models.qwen2_5_omni.names import canonical, expected_tensors, optional_tensors
from omnitide.models.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class OpenedThinker:
    """What a folder holds, but for the weights themselves.

    Attributes:
        config: Of the thinker.
        spec: Shapes that the cache needs.
        tensors: Where each weight lies, by canonical name.
        template: Chat template and tokenizer.
        ends: Tokens that end a reply, besides the template's.
    """

    config: ThinkerConfig
    spec: ModelSpec
    tensors: Mapping[str, WeightInfo]
    template: ChatTemplate
    ends: frozenset[int]


def open_thinker(checkpoint: Checkpoint, name: str) -> OpenedThinker:
    """Read and check everything but the weights.

    Args:
        checkpoint: Its configuration and headers.
        name: For people to read.

    Raises:
        CheckpointError: Configuration, tensors, tokenizer or chat template don't fit.
    """
    config = parse_config(checkpoint.config)
    tensors = select_tensors(
        checkpoint, expected_tensors(config), canonical, optional_tensors(config)
    )
    template = ChatTemplate(checkpoint.folder)
    ends = end_tokens(checkpoint)
    template.check_vocabulary(config.text.vocab_size, ends)
    return OpenedThinker(config, spec_of(config, name, checkpoint.trained), tensors, template, ends)
