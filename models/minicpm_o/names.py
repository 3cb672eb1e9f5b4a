"""Names of the model's tensors: two layouts in, one out, and the shape of each.

The canonical name is the published one without the decoder's prefix "llm.". Conversions for MLX
rename the parts, store convolutions with their input channels last and the resampler's fused
projection in three. Both also hold the part that speaks ("tts."), which is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from omnitide.backend import Array, Weight
from omnitide.models.headers import Shape
from omnitide.models.minicpm_o.config import (
    AudioConfig,
    MiniCPMConfig,
    ResamplerConfig,
    VisionConfig,
)
from omnitide.models.names import (
    LM_HEAD,
    linear_tensors,
    norm_tensors,
    text_tensors,
    whisper_tensors,
)

_LEFT_ALONE = ("tts.", "audio_avg_pooler.")
_COMPUTED = (".inv_freq", ".position_ids", "resampler.pos_embed")
"""Tables that some files hold and that are made anew."""

_RENAMED = (
    ("llm.", ""),
    ("language_model.", ""),
    ("vision_tower.", "vpm."),
    ("audio_tower.", "apm."),
)
_OF_MLX = ("language_model.", "vision_tower.", "audio_tower.")

PATCHES = "vpm.embeddings.patch_embedding.weight"
CONVOLUTIONS = (PATCHES, "apm.conv1.weight", "apm.conv2.weight")
FUSED = ("resampler.attn.in_proj_weight", "resampler.attn.in_proj_bias")

_VISION_LAYER = "vpm.encoder.layers."


def canonical(name: str) -> str | None:
    """Canonical name of a stored tensor; None for those that are not read."""
    if name.startswith(_LEFT_ALONE) or name.endswith(_COMPUTED):
        return None
    for prefix, replacement in _RENAMED:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def published(name: str) -> str:
    """Published name of a tensor by its canonical one."""
    return f"llm.{name}" if name.startswith(("model.", "lm_head.")) else name


def is_converted(stored: Iterable[str]) -> bool:
    """Whether stored names are those of a conversion for MLX."""
    return any(name.startswith(_OF_MLX) for name in stored)


def vision_layers(stored: Iterable[str]) -> int:
    """Layers of the vision tower that are stored, whatever config.json says.

    The published code drops the last layer where a flag says so; files have been seen with it and
    without it.
    """
    names = (canonical(name) or "" for name in stored)
    numbers = (n.removeprefix(_VISION_LAYER).split(".")[0] for n in names if _VISION_LAYER in n)
    return max((int(n) + 1 for n in numbers if n.isdecimal()), default=0)


def has_qk_norm(stored: Iterable[str]) -> bool:
    """Whether the decoder norms each head of q and k."""
    return any((canonical(n) or "").endswith("self_attn.q_norm.weight") for n in stored)


def optional_tensors(config: MiniCPMConfig) -> frozenset[str]:
    """Canonical names that may be absent and are not read."""
    spared = {name for name in _vision(config.vision) if _is_unused(name, config.vision)}
    return frozenset(spared | {LM_HEAD} if config.text.tied else spared)


def expected_tensors(config: MiniCPMConfig, converted: bool = False) -> dict[str, Shape]:
    """Shape of every tensor by canonical name, as it is stored.

    Args:
        config: Of the checkpoint.
        converted: Whether it is a conversion for MLX.
    """
    tensors = {
        **text_tensors(config.text),
        **_vision(config.vision),
        **_resampler(config.resampler),
        **_audio(config.audio),
    }
    if converted:
        for name in CONVOLUTIONS:
            out, into, *kernel = tensors[name]
            tensors[name] = (out, *kernel, into)
        size = config.resampler.hidden_size
        for name in FUSED:
            del tensors[name]
        for part in "qkv":
            tensors |= linear_tensors(f"resampler.attn.{part}_proj", size, size)
    return tensors


def arrange(weights: Mapping[str, Weight], converted: bool) -> dict[str, Weight]:
    """Weights by canonical name with the published shapes, whichever layout they were stored in.

    The resampler's projection stays fused or in three, as it is: parts may be quantised.
    """
    arranged = dict(weights)
    if not converted:
        return arranged
    for name in CONVOLUTIONS:
        kernel: Array = arranged[name]
        last = len(kernel.shape) - 1
        arranged[name] = kernel.transpose(0, last, *range(1, last))
    return arranged


def _vision(c: VisionConfig) -> dict[str, Shape]:
    size = c.hidden_size
    tensors: dict[str, Shape] = {
        PATCHES: (size, 3, c.patch_size, c.patch_size),
        "vpm.embeddings.patch_embedding.bias": (size,),
        "vpm.embeddings.position_embedding.weight": (c.table_side**2, size),
    }
    tensors |= norm_tensors("vpm.post_layernorm", size)
    for layer in range(c.num_layers + c.unused_layers):
        at = f"{_VISION_LAYER}{layer}"
        tensors |= norm_tensors(f"{at}.layer_norm1", size)
        tensors |= norm_tensors(f"{at}.layer_norm2", size)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            tensors |= linear_tensors(f"{at}.self_attn.{part}", size, size)
        tensors |= linear_tensors(f"{at}.mlp.fc1", c.intermediate_size, size)
        tensors |= linear_tensors(f"{at}.mlp.fc2", size, c.intermediate_size)
    return tensors


def _is_unused(name: str, c: VisionConfig) -> bool:
    number = name.removeprefix(_VISION_LAYER).partition(".")[0]
    return name.startswith(_VISION_LAYER) and int(number) >= c.num_layers


def _resampler(c: ResamplerConfig) -> dict[str, Shape]:
    size = c.hidden_size
    weight, bias = FUSED
    tensors: dict[str, Shape] = {
        "resampler.query": (c.num_queries, size),
        "resampler.proj": (size, size),
        weight: (3 * size, size),
        bias: (3 * size,),
    }
    tensors |= linear_tensors("resampler.kv_proj", size, c.input_size, bias=False)
    tensors |= linear_tensors("resampler.attn.out_proj", size, size)
    for norm in ("ln_q", "ln_kv", "ln_post"):
        tensors |= norm_tensors(f"resampler.{norm}", size)
    return tensors


def _audio(c: AudioConfig) -> dict[str, Shape]:
    size, out = c.hidden_size, c.output_size
    return {
        **whisper_tensors("apm", c.num_layers, size, c.intermediate_size, c.num_bands),
        "apm.embed_positions.weight": (c.max_frames, size),
        **norm_tensors("apm.layer_norm", size),
        **linear_tensors("audio_projection_layer.linear1", out, size),
        **linear_tensors("audio_projection_layer.linear2", out, out),
    }
