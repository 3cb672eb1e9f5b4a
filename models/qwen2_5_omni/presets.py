"""Configurations of the published checkpoints as their config.json has them, thinker only."""

from __future__ import annotations

from typing import Any


def _published(
    hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, vocab: int
) -> dict[str, Any]:
    """config.json of a size. All sizes share the towers, but for the width they put out."""
    return {
        "architectures": ["Qwen2_5OmniModel"],
        "model_type": "qwen2_5_omni",
        "thinker_config": {
            "model_type": "qwen2_5_omni_thinker",
            "audio_token_index": 151646,
            "audio_start_token_id": 151647,
            "audio_end_token_id": 151648,
            "vision_start_token_id": 151652,
            "vision_end_token_id": 151653,
            "image_token_index": 151655,
            "video_token_index": 151656,
            "user_token_id": 872,
            "position_id_per_seconds": 25,
            "seconds_per_chunk": 2,
            "tie_word_embeddings": False,
            "text_config": {
                "model_type": "qwen2_5_omni_text",
                "vocab_size": vocab,
                "hidden_size": hidden,
                "intermediate_size": ffn,
                "num_hidden_layers": layers,
                "num_attention_heads": heads,
                "num_key_value_heads": kv_heads,
                "hidden_act": "silu",
                "rms_norm_eps": 1e-6,
                "max_position_embeddings": 32768,
                "use_sliding_window": False,
                "rope_theta": 1000000.0,
                "rope_scaling": {
                    "mrope_section": [16, 24, 24],
                    "rope_type": "default",
                    "type": "default",
                },
            },
            "vision_config": {
                "model_type": "qwen2_5_omni_vision_encoder",
                "depth": 32,
                "hidden_size": 1280,
                "intermediate_size": 3420,
                "num_heads": 16,
                "out_hidden_size": hidden,
                "in_channels": 3,
                "patch_size": 14,
                "temporal_patch_size": 2,
                "spatial_merge_size": 2,
                "window_size": 112,
                "fullatt_block_indexes": [7, 15, 23, 31],
                "hidden_act": "silu",
            },
            "audio_config": {
                "model_type": "qwen2_5_omni_audio_encoder",
                "num_mel_bins": 128,
                "encoder_layers": 32,
                "encoder_attention_heads": 20,
                "encoder_ffn_dim": 5120,
                "d_model": 1280,
                "max_source_positions": 1500,
                "n_window": 100,
                "output_dim": hidden,
                "activation_function": "gelu",
            },
        },
    }


PRESETS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-Omni-3B": _published(2048, 11008, 36, 16, 2, 151936),
    "Qwen/Qwen2.5-Omni-7B": _published(3584, 18944, 28, 28, 4, 152064),
}
"""config.json by repository name."""
