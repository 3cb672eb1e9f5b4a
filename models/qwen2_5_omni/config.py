"""The thinker's configuration, from config.json in its old and its new spelling.

The published file nests it under "thinker_config" and spells rotary embedding `rope_theta` and
`rope_scaling`; transformers 5 saves a thinker alone at top level and spells `rope_parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omnitide.errors import CheckpointError
from omnitide.model import ModelSpec
from omnitide.models.section import Section
from omnitide.models.text_config import TextConfig
from omnitide.rotary import Rotary

VISION_ROPE_THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The vision tower. Sizes in pixels, patches and merged cells as the names say."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    output_size: int
    in_channels: int
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    window_size: int
    full_attention_layers: frozenset[int]

    @property
    def head_dim(self) -> int:
        """Size of a head."""
        return self.hidden_size // self.num_heads

    @property
    def patch_values(self) -> int:
        """Values of a patch vector."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def window_cells(self) -> int:
        """Merged cells on a side of an attention window."""
        return self.window_size // self.patch_size // self.merge_size


@dataclass(frozen=True, slots=True)
class AudioConfig:
    """The audio tower. `block_frames` mel frames see each other and nothing else."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    output_size: int
    num_bands: int
    block_frames: int

    @property
    def head_dim(self) -> int:
        """Size of a head."""
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, slots=True)
class MediaTokens:
    """Ids of the markers and placeholders of picture and sound."""

    image: int
    video: int
    audio: int
    vision_bos: int
    vision_eos: int
    audio_bos: int
    audio_eos: int


@dataclass(frozen=True, slots=True)
class ThinkerConfig:
    """All that the thinker's code needs to know of a checkpoint."""

    text: TextConfig
    vision: VisionConfig
    audio: AudioConfig
    tokens: MediaTokens
    positions_per_second: int
    seconds_per_chunk: int


def spec_of(config: ThinkerConfig, name: str, trained: bool = True) -> ModelSpec:
    """The shapes that the cache needs.

    Args:
        config: Of the checkpoint.
        name: Of the checkpoint, for people to read.
        trained: Whether its weights are.
    """
    text = config.text
    return ModelSpec(
        name=name,
        family="qwen2_5_omni",
        num_layers=text.num_layers,
        num_heads=text.num_heads,
        num_kv_heads=text.num_kv_heads,
        head_dim=text.head_dim,
        vocab_size=text.vocab_size,
        rotary=text.rotary,
        trained=trained,
    )


def parse_config(config: Mapping[str, Any]) -> ThinkerConfig:
    """The thinker's configuration from the contents of config.json.

    Raises:
        CheckpointError: A value is missing or out of range, values contradict each other, or the
            checkpoint uses something that is not supported (scaled rotary embedding, sliding
            window).
    """
    root = Section(config, "config.json")
    if config.get("thinker_config") is not None:
        root = root.section("thinker_config")
    # The decoder's own tie_word_embeddings says nothing: the thinker's decides.
    text = _text(root.section("text_config"), bool(root.get("tie_word_embeddings", False)))
    vision = _vision(root.section("vision_config"))
    audio = _audio(root.section("audio_config"))
    for name, size in (("vision", vision.output_size), ("audio", audio.output_size)):
        if size != text.hidden_size:
            raise CheckpointError(
                f"[config] the {name} tower must put out text_config.hidden_size = "
                f"{text.hidden_size} values, got {size}"
            )
    tokens = MediaTokens(
        image=root.count("image_token_index", "image_token_id", default=151655),
        video=root.count("video_token_index", "video_token_id", default=151656),
        audio=root.count("audio_token_index", "audio_token_id", default=151646),
        vision_bos=root.count("vision_start_token_id", default=151652),
        vision_eos=root.count("vision_end_token_id", default=151653),
        audio_bos=root.count("audio_start_token_id", default=151647),
        audio_eos=root.count("audio_end_token_id", default=151648),
    )
    largest = max(getattr(tokens, name) for name in MediaTokens.__slots__)
    if largest >= text.vocab_size:
        raise CheckpointError(
            f"[config] token ids must be below text_config.vocab_size = {text.vocab_size}, "
            f"got {largest}"
        )
    return ThinkerConfig(
        text,
        vision,
        audio,
        tokens,
        root.count("position_id_per_seconds", default=25),
        root.count("seconds_per_chunk", default=2),
    )


def _text(section: Section, tied: bool) -> TextConfig:
    section.must_be("hidden_act", "silu")
    section.must_be("use_sliding_window", False)
    hidden, heads = section.count("hidden_size"), section.count("num_attention_heads")
    kv_heads = section.count("num_key_value_heads", default=heads)
    if hidden % heads or heads % kv_heads:
        raise CheckpointError(
            "[config] text_config: hidden_size must be a multiple of num_attention_heads, and that "
            f"of num_key_value_heads, got {hidden}, {heads} and {kv_heads}"
        )
    return TextConfig(
        vocab_size=section.count("vocab_size"),
        hidden_size=hidden,
        intermediate_size=section.count("intermediate_size"),
        num_layers=section.layers("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        rms_norm_eps=section.number("rms_norm_eps", default=1e-6),
        tied=tied,
        rotary=_rotary(section, hidden // heads),
    )


def _rotary(section: Section, head_dim: int) -> Rotary:
    """The decoder's rotary embedding, in either spelling."""
    if section.get("rope_parameters") is not None:
        rope = section.section("rope_parameters")
        theta = rope.number("rope_theta", default=1e6)
    else:
        rope = section.section("rope_scaling", optional=True)
        theta = section.number("rope_theta", default=1e6)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "mrope"):
        raise CheckpointError(
            f"[config] {rope.path}: rope_type must be 'default', got {kind!r}; scaled rotary "
            "embeddings are not supported"
        )
    sections = rope.counts("mrope_section", [16, 24, 24])
    if len(sections) != 3 or 2 * sum(sections) != head_dim:
        raise CheckpointError(
            f"[config] {rope.path}: mrope_section must be three numbers that add up to half the "
            f"head size, {head_dim} / 2, got {sections!r}"
        )
    return Rotary(head_dim, theta, (sections[0], sections[1], sections[2]))


def _vision(section: Section) -> VisionConfig:
    section.must_be("hidden_act", "silu")
    config = VisionConfig(
        hidden_size=section.count("hidden_size"),
        intermediate_size=section.count("intermediate_size"),
        num_layers=section.layers("depth"),
        num_heads=section.count("num_heads"),
        output_size=section.count("out_hidden_size"),
        in_channels=section.count("in_channels", "in_chans", default=3),
        patch_size=section.count("patch_size", default=14),
        temporal_patch_size=section.count("temporal_patch_size", default=2),
        merge_size=section.count("spatial_merge_size", default=2),
        window_size=section.count("window_size", default=112),
        full_attention_layers=frozenset(section.counts("fullatt_block_indexes", [7, 15, 23, 31])),
    )
    if config.hidden_size % (4 * config.num_heads):
        raise CheckpointError(
            "[config] vision_config: the head size must be a multiple of 4, got hidden_size "
            f"{config.hidden_size} and num_heads {config.num_heads}"
        )
    made_for = (config.in_channels, config.patch_size, config.temporal_patch_size)
    if (*made_for, config.merge_size) != (3, 14, 2, 2) or config.window_cells < 1:
        raise CheckpointError(
            "[config] vision_config: in_channels, patch_size, temporal_patch_size and "
            f"spatial_merge_size must be 3, 14, 2 and 2, got {(*made_for, config.merge_size)}; "
            f"window_size must be at least 28, got {config.window_size}"
        )
    return config


def _audio(section: Section) -> AudioConfig:
    section.must_be("activation_function", "gelu")
    config = AudioConfig(
        hidden_size=section.count("d_model"),
        intermediate_size=section.count("encoder_ffn_dim"),
        num_layers=section.layers("encoder_layers"),
        num_heads=section.count("encoder_attention_heads"),
        output_size=section.count("output_dim"),
        num_bands=section.count("num_mel_bins", default=128),
        block_frames=2 * section.count("n_window", default=100),
    )
    if config.hidden_size % config.num_heads or config.hidden_size % 2 or config.hidden_size < 4:
        raise CheckpointError(
            "[config] audio_config: d_model must be even and a multiple of "
            f"encoder_attention_heads, got {config.hidden_size} and {config.num_heads}"
        )
    if config.num_bands != 128 or config.block_frames % 4 or config.block_frames > 6000:
        raise CheckpointError(
            "[config] audio_config: num_mel_bins must be 128 and n_window even and at most 3,000, "
            f"got {config.num_bands} and {config.block_frames // 2}"
        )
    return config
