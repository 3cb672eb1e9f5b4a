"""The configuration of a decoder, shared by all families."""

from __future__ import annotations

from dataclasses import dataclass

from omnitide.errors import CheckpointError
from omnitide.models.section import Section
from omnitide.rotary import Rotary


@dataclass(frozen=True, slots=True)
class TextConfig:
    """A decoder: RMS norm, SwiGLU, grouped heads.

    Attributes:
        vocab_size: Rows of the embedding and number of logits.
        hidden_size, intermediate_size: Widths of the residual stream and of the MLP.
        num_layers, num_heads, num_kv_heads: Blocks, query heads and key-value heads.
        rms_norm_eps: Of every norm.
        tied: Whether the vocabulary's rows are the embedding's.
        rotary: Also knows the size of a head, which need not be hidden_size / num_heads.
        qkv_bias: Whether q, k and v have biases (Qwen2).
        qk_norm: Whether each head of q and k is normalised before it is rotated (Qwen3).
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    rms_norm_eps: float
    tied: bool
    rotary: Rotary
    qkv_bias: bool = True
    qk_norm: bool = False

    @property
    def head_dim(self) -> int:
        """Size of a head."""
        return self.rotary.head_dim


def count_heads(section: Section) -> tuple[int, int, int]:
    """Query heads, key-value heads and the size of a head, as a section states them.

    Raises:
        CheckpointError: They don't fit each other.
    """
    hidden, heads = section.count("hidden_size"), section.count("num_attention_heads")
    kv_heads = section.count("num_key_value_heads", default=heads)
    if section.get("head_dim") is not None:
        head_dim = section.count("head_dim")
    elif hidden % heads:
        head_dim = 0
    else:
        head_dim = hidden // heads
    if heads % kv_heads or head_dim == 0 or head_dim % 2:
        raise CheckpointError(
            f"[config] {section.path}: hidden_size must be a multiple of num_attention_heads, and "
            "that of num_key_value_heads, with an even head size; got "
            f"{hidden}, {heads} and {kv_heads}"
        )
    return heads, kv_heads, head_dim
