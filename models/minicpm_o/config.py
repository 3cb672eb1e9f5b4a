"""The model's configuration: its parts, and what the cache needs of them.

Two releases share the towers: 4.5 has a Qwen3 decoder (norms on q and k, no biases) and pools sound
by 5, 2.6 a Qwen2.5 decoder (biases on q, k and v) and pools by 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from omnitide.model import ModelSpec
from omnitide.models.text_config import TextConfig

FAMILY = "minicpm_o"

VERSIONS = {"4.5": True, "2.6": False}
"""Release -> whether its decoder is Qwen3's (norms on q and k) rather than Qwen2.5's."""

LAYER_NORM_EPS = 1e-6
"""Of the vision tower and the resampler."""


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The vision tower (SigLIP NaViT).

    Attributes:
        hidden_size, intermediate_size, num_layers, num_heads: Of the blocks.
        patch_size: Pixels on a side of a patch.
        table_side: Positions on a side of the square table of learned positions.
        layer_norm_eps: Of every norm.
        unused_layers: Last layers that are stored beside these and not run.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    patch_size: int
    table_side: int
    layer_norm_eps: float
    unused_layers: int = 0

    @property
    def head_dim(self) -> int:
        """Size of a head."""
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, slots=True)
class ResamplerConfig:
    """One cross-attention from learned queries to the patches of a picture.

    Attributes:
        input_size: Width of a patch, the vision tower's.
        hidden_size: Width of queries and output, the decoder's.
        num_queries: Tokens of a picture.
    """

    input_size: int
    hidden_size: int
    num_queries: int

    HEAD_DIM = 128  # of every release; no configuration states it

    @property
    def num_heads(self) -> int:
        """Heads of the cross-attention."""
        return self.hidden_size // self.HEAD_DIM


@dataclass(frozen=True, slots=True)
class SliceConfig:
    """How a large picture is cut.

    Attributes:
        max_slices: Most slices of a picture of a prompt; a live stream has its own limit.
        scale: A picture or slice is brought to about scale x scale pixels.
    """

    max_slices: int
    scale: int


@dataclass(frozen=True, slots=True)
class AudioConfig:
    """The audio tower (Whisper's encoder), its projection and pooling.

    Attributes:
        hidden_size, intermediate_size, num_layers, num_heads, num_bands: Of the encoder.
        max_frames: Rows of the table of learned positions; frames behind the convolutions.
        chunk_frames: Frames behind the convolutions that make a chunk. A frame sees its own chunk
            and all earlier ones.
        pool: Frames behind the convolutions that become one token.
        output_size: Width of a token, the decoder's.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_bands: int
    max_frames: int
    chunk_frames: int
    pool: int
    output_size: int

    @property
    def head_dim(self) -> int:
        """Size of a head."""
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, slots=True)
class MiniCPMConfig:
    """All that the model's code needs to know of a checkpoint. `version` is a key of `VERSIONS`."""

    version: str
    text: TextConfig
    vision: VisionConfig
    resampler: ResamplerConfig
    slices: SliceConfig
    audio: AudioConfig


def spec_of(config: MiniCPMConfig, name: str, trained: bool = True) -> ModelSpec:
    """The shapes that the cache needs.

    Args:
        config: Of the checkpoint.
        name: Of the checkpoint, for people to read.
        trained: Whether its weights are.
    """
    text = config.text
    return ModelSpec(
        name=name,
        family=FAMILY,
        num_layers=text.num_layers,
        num_heads=text.num_heads,
        num_kv_heads=text.num_kv_heads,
        head_dim=text.head_dim,
        vocab_size=text.vocab_size,
        rotary=text.rotary,
        trained=trained,
    )
