"""Small checkpoints of the family's shape with random weights, in the published layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omnitide.models.chat import CHATML
from omnitide.models.names import LM_HEAD
from omnitide.models.qwen2_5_omni.config import ThinkerConfig, parse_config
from omnitide.models.qwen2_5_omni.names import expected_tensors
from omnitide.models.random_checkpoint import (
    byte_vocab,
    quieten,
    random_weights,
    write_json,
    write_weights,
)
from omnitide.models.tokenizer import byte_level_bpe

# The bytes take ids 0 to 255.
_END_OF_TEXT, _IM_START, _IM_END = 256, 257, 258


def tiny_config(
    *,
    vocab_size: int = 288,
    hidden: int = 256,
    heads: int = 2,
    kv_heads: int = 1,
    layers: int = 3,
    sections: tuple[int, int, int] = (16, 24, 24),
    vision_hidden: int = 64,
    vision_heads: int = 2,
    audio_hidden: int = 64,
) -> dict[str, Any]:
    """config.json of a small model. The head size is the published one, 128, by default.

    "trained" is ours: it lets the command line say that the weights are random.
    """
    return {
        "architectures": ["Qwen2_5OmniModel"],
        "model_type": "qwen2_5_omni",
        "trained": False,
        "thinker_config": {
            "model_type": "qwen2_5_omni_thinker",
            "audio_token_index": 259,
            "audio_start_token_id": 260,
            "audio_end_token_id": 261,
            "vision_start_token_id": 262,
            "vision_end_token_id": 263,
            "image_token_index": 264,
            "video_token_index": 265,
            "position_id_per_seconds": 25,
            "seconds_per_chunk": 2,
            "tie_word_embeddings": False,
            "text_config": {
                "model_type": "qwen2_5_omni_text",
                "vocab_size": vocab_size,
                "hidden_size": hidden,
                "intermediate_size": 96,
                "num_hidden_layers": layers,
                "num_attention_heads": heads,
                "num_key_value_heads": kv_heads,
                "hidden_act": "silu",
                "rms_norm_eps": 1e-6,
                "max_position_embeddings": 32768,
                "use_sliding_window": False,
                "rope_theta": 1000000.0,
                "rope_scaling": {
                    "mrope_section": list(sections),
                    "rope_type": "default",
                    "type": "default",
                },
            },
            "vision_config": {
                "model_type": "qwen2_5_omni_vision_encoder",
                "depth": 4,
                "hidden_size": vision_hidden,
                "intermediate_size": 96,
                "num_heads": vision_heads,
                "out_hidden_size": hidden,
                "in_channels": 3,
                "patch_size": 14,
                "temporal_patch_size": 2,
                "spatial_merge_size": 2,
                "window_size": 112,
                "fullatt_block_indexes": [1, 3],
                "hidden_act": "silu",
            },
            "audio_config": {
                "model_type": "qwen2_5_omni_audio_encoder",
                "num_mel_bins": 128,
                "encoder_layers": 2,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 128,
                "d_model": audio_hidden,
                "max_source_positions": 1500,
                "n_window": 100,
                "output_dim": hidden,
                "activation_function": "gelu",
            },
        },
    }


def write_random_checkpoint(
    folder: Path, config: Mapping[str, Any] | None = None, seed: int = 0, num_files: int = 1
) -> None:
    """Write config.json, weights in bfloat16, tokenizer, chat template and generation config.

    Changes `folder`, which is made if need be.

    Args:
        folder: Where to write.
        config: As `tiny_config` gives it, or changed; a small model by default.
        seed: Of the weights.
        num_files: Files that the weights are spread over, with an index if more than one.
    """
    config = tiny_config() if config is None else config
    folder.mkdir(parents=True, exist_ok=True)
    thinker = parse_config(config)
    write_json(folder / "config.json", dict(config))
    write_json(folder / "generation_config.json", {"eos_token_id": [_IM_END, _END_OF_TEXT]})
    write_json(folder / "chat_template.json", {"chat_template": CHATML})
    byte_level_bpe(byte_vocab(), [], _special_tokens(thinker)).save(str(folder / "tokenizer.json"))
    weights = random_weights(expected_tensors(thinker), seed)
    if LM_HEAD in weights:
        quieten(weights, {})
    stored = ((f"thinker.{name}", weight) for name, weight in weights.items())
    write_weights(folder, stored, num_files)


def _special_tokens(config: ThinkerConfig) -> dict[str, int]:
    ids = config.tokens
    return {
        "<|endoftext|>": _END_OF_TEXT,
        "<|im_start|>": _IM_START,
        "<|im_end|>": _IM_END,
        "<|AUDIO|>": ids.audio,
        "<|audio_bos|>": ids.audio_bos,
        "<|audio_eos|>": ids.audio_eos,
        "<|vision_bos|>": ids.vision_bos,
        "<|vision_eos|>": ids.vision_eos,
        "<|IMAGE|>": ids.image,
        "<|VIDEO|>": ids.video,
    }
