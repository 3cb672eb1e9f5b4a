"""config.json to the model's configuration, together with what the stored tensors show.

Which release a checkpoint is, its tensors say: a config.json of 2.6 gives no version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omnitide.errors import CheckpointError
from omnitide.models.minicpm_o.config import (
    LAYER_NORM_EPS,
    VERSIONS,
    AudioConfig,
    MiniCPMConfig,
    ResamplerConfig,
    SliceConfig,
    VisionConfig,
)
from omnitide.models.section import Section
from omnitide.models.text_config import TextConfig, count_heads
from omnitide.rotary import Rotary


def parse_config(
    config: Mapping[str, Any],
    vision_layers: int | None = None,
    qk_norm: bool | None = None,
) -> MiniCPMConfig:
    """The configuration from the contents of config.json.

    Args:
        config: Contents of config.json.
        vision_layers: Layers of the vision tower that are stored. None: what config.json says.
        qk_norm: Whether norms on q and k are stored. None: what config.json says.

    Raises:
        CheckpointError: A value is missing or out of range, values contradict each other, or the
            checkpoint uses something that is not supported.
    """
    root = Section(config, "config.json")
    _refuse_newer(root)
    version = _version(root, qk_norm)
    text = _text(root, VERSIONS[version])
    vision = _vision(root, vision_layers)
    queries = root.count("query_num", default=64)
    if text.hidden_size % ResamplerConfig.HEAD_DIM:
        raise CheckpointError(
            f"[config] config.json: hidden_size must be a multiple of {ResamplerConfig.HEAD_DIM}, "
            f"the resampler's head size, got {text.hidden_size}"
        )
    resampler = ResamplerConfig(vision.hidden_size, text.hidden_size, queries)
    return MiniCPMConfig(
        version, text, vision, resampler, _slices(root), _audio(root, version, text.hidden_size)
    )


def _refuse_newer(root: Section) -> None:
    """Refuse the decoders of newer releases by what tells them apart."""
    for section in (root, root.section("text_config", optional=True)):
        kinds = section.get("layer_types", [])
        if not isinstance(kinds, list):
            raise CheckpointError(
                f"[config] {section.path}: layer_types must be a list, got {kinds!r}"
            )
        others = sorted({str(k) for k in kinds if k != "full_attention"})
        if others:
            raise CheckpointError(
                f"[config] {section.path}: every layer must have full attention, layer_types has "
                f"{', '.join(others)}; a newer MiniCPM, which is not supported"
            )
        for rope in (
            section.section(k, optional=True) for k in ("rope_parameters", "rope_scaling")
        ):
            kind = rope.get("rope_type", rope.get("type", "default"))
            partial = rope.get("partial_rotary_factor", section.get("partial_rotary_factor", 1))
            if kind != "default" or partial != 1 or rope.get("mrope_section") is not None:
                raise CheckpointError(
                    f"[config] {section.path}: positions must have one axis and turn whole heads, "
                    f"unscaled; got {rope.values!r}, partial_rotary_factor {partial!r}; another "
                    "MiniCPM, which is not supported"
                )


def _version(root: Section, qk_norm: bool | None) -> str:
    """The release: as config.json says, else as the tensors show; both must agree."""
    stated = root.get("version")
    version = str(stated) if stated is not None else ("4.5" if qk_norm else "2.6")
    if version not in VERSIONS:
        raise CheckpointError(
            f"[config] config.json: version must be one of {', '.join(VERSIONS)}, got "
            f"{version!r}; other releases may have another attention, another rotary embedding "
            "and other tokens"
        )
    if qk_norm is not None and qk_norm != VERSIONS[version]:
        has = "norms on q and k" if qk_norm else "no norms on q and k"
        raise CheckpointError(
            f"[config] config.json: version is {version}, but the decoder has {has}; weights and "
            "configuration don't belong together"
        )
    return version


def _text(root: Section, qk_norm: bool) -> TextConfig:
    root.must_be("hidden_act", "silu")
    root.must_be("use_sliding_window", False)
    heads, kv_heads, head_dim = count_heads(root)
    return TextConfig(
        vocab_size=root.count("vocab_size"),
        hidden_size=root.count("hidden_size"),
        intermediate_size=root.count("intermediate_size"),
        num_layers=root.layers("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        rms_norm_eps=root.number("rms_norm_eps", default=1e-6),
        tied=bool(root.get("tie_word_embeddings", False)),
        rotary=Rotary(head_dim, _theta(root)),
        qkv_bias=not qk_norm,
        qk_norm=qk_norm,
    )


def _theta(root: Section) -> float:
    """The base of the rotary frequencies, in the spelling of transformers 4 or 5."""
    rope = root.section("rope_parameters", optional=True)
    return rope.number("rope_theta", default=root.number("rope_theta", default=1e6))


def _vision(root: Section, stored: int | None) -> VisionConfig:
    """The tower as it is run: a flag drops the last layer of a whole one.

    Some files hold the layer that is dropped and some don't, so `stored` decides what there is.
    """
    section = root.section("vision_config")
    stated, drop = section.layers("num_hidden_layers"), root.get("drop_vision_last_layer", True)
    unused = int(bool(drop) and stored is not None and stored >= stated)
    layers = stated - bool(drop) if stored is None else stored - unused
    section.must_be("hidden_act", "gelu_pytorch_tanh")
    patch, size = section.count("patch_size", default=14), section.count("image_size", default=980)
    config = VisionConfig(
        hidden_size=section.count("hidden_size"),
        intermediate_size=section.count("intermediate_size"),
        num_layers=layers,
        num_heads=section.count("num_attention_heads"),
        patch_size=patch,
        table_side=size // patch,
        layer_norm_eps=section.number("layer_norm_eps", default=LAYER_NORM_EPS),
        unused_layers=unused,
    )
    if config.hidden_size % config.num_heads or patch != 14 or not config.table_side:
        raise CheckpointError(
            "[config] vision_config: hidden_size must be a multiple of num_attention_heads and "
            f"patch_size 14, got {config.hidden_size}, {config.num_heads} and {patch}; image_size "
            f"must be at least one patch, got {size}"
        )
    return config


def _slices(root: Section) -> SliceConfig:
    section = root.section("slice_config", optional=True)
    return SliceConfig(
        section.count("max_slice_nums", default=9),
        section.count("scale_resolution", default=448),
    )


def _audio(root: Section, version: str, output_size: int) -> AudioConfig:
    section = root.section("audio_config")
    section.must_be("activation_function", "gelu")
    frames_per_second = 50  # 100 mel frames a second, halved by the second convolution
    seconds = root.number("audio_chunk_length", default=1.0)
    config = AudioConfig(
        hidden_size=section.count("d_model"),
        intermediate_size=section.count("encoder_ffn_dim"),
        num_layers=section.layers("encoder_layers"),
        num_heads=section.count("encoder_attention_heads"),
        num_bands=section.count("num_mel_bins", default=80),
        max_frames=section.count("max_source_positions", default=1500),
        chunk_frames=int(seconds * frames_per_second),
        pool=root.count("audio_pool_step", default=5 if version == "4.5" else 2),
        output_size=output_size,
    )
    if config.hidden_size % config.num_heads or config.num_bands != 80:
        raise CheckpointError(
            "[config] audio_config: d_model must be a multiple of encoder_attention_heads and "
            f"num_mel_bins 80, got {config.hidden_size}, {config.num_heads} and {config.num_bands}"
        )
    if not 1 <= config.chunk_frames <= config.max_frames or config.pool > config.chunk_frames:
        raise CheckpointError(
            "[config] config.json: audio_chunk_length must be between 0.02 s and "
            f"max_source_positions / {frames_per_second}, and audio_pool_step at most one chunk; "
            f"got {seconds:g} s, {config.max_frames} positions and a step of {config.pool}"
        )
    return config
