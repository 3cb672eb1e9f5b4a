"""Names of the thinker's tensors: three spellings in, one out, and the shape of each.

The canonical name is the published one without its prefix "thinker.", which is what transformers 4
used in memory. transformers 5 puts the decoder under "model.language_model." and the towers under
"model.". A full checkpoint also holds the talker and the vocoder, which speak; they are left alone.
"""

from __future__ import annotations

from omnitide.models.headers import Shape
from omnitide.models.names import (
    LM_HEAD,
    linear_tensors,
    norm_tensors,
    text_tensors,
    whisper_tensors,
)
from omnitide.models.qwen2_5_omni.config import AudioConfig, ThinkerConfig, VisionConfig

UNUSED = frozenset({"audio_tower.audio_bos_eos_token.weight"})
"""In the published checkpoints, read by no one: the markers' embeddings come from the decoder."""

_LEFT_ALONE = ("talker.", "token2wav.")
_RENAMED = (
    ("model.language_model.", "model."),
    ("model.visual.", "visual."),
    ("model.audio_tower.", "audio_tower."),
)


def canonical(name: str) -> str | None:
    """Canonical name of a stored tensor; None for those of the talker and the vocoder."""
    if name.startswith(_LEFT_ALONE):
        return None
    name = name.removeprefix("thinker.")
    for prefix, replacement in _RENAMED:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def optional_tensors(config: ThinkerConfig) -> frozenset[str]:
    """Canonical names that may be absent and are not read."""
    return UNUSED | {LM_HEAD} if config.text.tied else UNUSED


def expected_tensors(config: ThinkerConfig) -> dict[str, Shape]:
    """Shape of every tensor of a thinker by canonical name, unused ones included."""
    return {**text_tensors(config.text), **_vision(config.vision), **_audio(config.audio)}


def _vision(c: VisionConfig) -> dict[str, Shape]:
    patch = (c.in_channels, c.temporal_patch_size, c.patch_size, c.patch_size)
    merged = c.hidden_size * c.merge_size**2
    tensors: dict[str, Shape] = {
        "visual.patch_embed.proj.weight": (c.hidden_size, *patch),
        "visual.merger.ln_q.weight": (c.hidden_size,),
    }
    tensors |= linear_tensors("visual.merger.mlp.0", merged, merged)
    tensors |= linear_tensors("visual.merger.mlp.2", c.output_size, merged)
    for layer in range(c.num_layers):
        at = f"visual.blocks.{layer}"
        tensors[f"{at}.norm1.weight"] = tensors[f"{at}.norm2.weight"] = (c.hidden_size,)
        for part in ("q", "k", "v", "proj"):
            tensors |= linear_tensors(f"{at}.attn.{part}", c.hidden_size, c.hidden_size)
        tensors |= linear_tensors(f"{at}.mlp.gate_proj", c.intermediate_size, c.hidden_size)
        tensors |= linear_tensors(f"{at}.mlp.up_proj", c.intermediate_size, c.hidden_size)
        tensors |= linear_tensors(f"{at}.mlp.down_proj", c.hidden_size, c.intermediate_size)
    return tensors


def _audio(c: AudioConfig) -> dict[str, Shape]:
    name, size = "audio_tower", c.hidden_size
    return {
        **whisper_tensors(name, c.num_layers, size, c.intermediate_size, c.num_bands),
        f"{name}.audio_bos_eos_token.weight": (2, c.output_size),
        **norm_tensors(f"{name}.ln_post", size),
        **linear_tensors(f"{name}.proj", c.output_size, size),
    }
