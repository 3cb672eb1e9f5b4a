"""Configurations of the published checkpoints, but for the part that speaks."""

from __future__ import annotations

from typing import Any

_VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "image_size": 980,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
_AUDIO = {
    "model_type": "whisper",
    "d_model": 1024,
    "encoder_layers": 24,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "num_mel_bins": 80,
    "max_source_positions": 1500,
    "activation_function": "gelu",
}


def _published(version: str, pool: int, drops_layer: bool, **text: Any) -> dict[str, Any]:
    """config.json of a release. Both share the towers; what the resampler puts out differs."""
    return {
        "architectures": ["MiniCPMO"],
        "model_type": "minicpmo",
        "version": version,
        "query_num": 64,
        "drop_vision_last_layer": drops_layer,
        "audio_pool_step": pool,
        "audio_chunk_length": 1.0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "slice_config": {"max_slice_nums": 9, "patch_size": 14, "scale_resolution": 448},
        "vision_config": _VISION,
        "audio_config": _AUDIO,
        **text,
    }


PRESETS: dict[str, dict[str, Any]] = {
    "openbmb/MiniCPM-o-4_5": _published(
        "4.5",
        5,
        True,
        vocab_size=151748,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
    ),
    "openbmb/MiniCPM-o-2_6": _published(
        "2.6",
        2,
        False,
        vocab_size=151700,
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
    ),
}
"""config.json by repository name, as far as it is known.

They serve to count parameters and tokens. Of a checkpoint at hand config.json itself is read, and
the layers of its vision tower are counted from the stored tensors.
"""
