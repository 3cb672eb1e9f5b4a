"""Small checkpoints of the family's shape with random weights, in the published layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omnitide.models.minicpm_o.config import parse_config
from omnitide.models.minicpm_o.names import expected_tensors, published
from omnitide.models.random_checkpoint import (
    byte_vocab,
    quieten,
    random_weights,
    write_json,
    write_weights,
)
from omnitide.models.tokenizer import byte_level_bpe

# The bytes take ids 0 to 255. Markers of both releases first, then those of 4.5.
_MARKERS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<unk>",
    "<image>",
    "</image>",
    "<slice>",
    "</slice>",
    "<image_id>",
    "</image_id>",
    "<unit>",
    "</unit>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|tts_bos|>",
    "<|tts_eos|>",
)
_DUPLEX_MARKERS = (
    "<|listen|>",
    "<|speak|>",
    "<|turn_eos|>",
    "<|chunk_eos|>",
    "<|chunk_tts_eos|>",
    "<|tts_pad|>",
)
_THOUGHT = ("<think>", "</think>")

_LOUD = {
    "<|listen|>": 2.5,
    "<|speak|>": 2.0,
    "<|turn_eos|>": 3.5,
    "<|chunk_eos|>": 2.5,
    "<|tts_bos|>": 0.3,
}
"""Factors on output rows, so that a random model listens, speaks and comes to an end."""


def tiny_config(
    *,
    version: str = "4.5",
    vocab_size: int = 288,
    hidden: int = 256,
    heads: int = 2,
    kv_heads: int = 1,
    layers: int = 3,
    vision_layers: int = 2,
) -> dict[str, Any]:
    """config.json of a small model of either release. The head size is the published one, 128.

    "trained" is ours: it lets the command line say that the weights are random.
    """
    return {
        "architectures": ["MiniCPMO"],
        "model_type": "minicpmo",
        "version": version,
        "trained": False,
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
        "query_num": 64,
        "drop_vision_last_layer": False,
        "audio_pool_step": 5 if version == "4.5" else 2,
        "audio_chunk_length": 1.0,
        "slice_config": {"max_slice_nums": 9, "patch_size": 14, "scale_resolution": 448},
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 64,
            "image_size": 980,
            "intermediate_size": 96,
            "num_attention_heads": 2,
            "num_hidden_layers": vision_layers,
            "patch_size": 14,
            "hidden_act": "gelu_pytorch_tanh",
            "layer_norm_eps": 1e-6,
        },
        "audio_config": {
            "model_type": "whisper",
            "d_model": 64,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 128,
            "num_mel_bins": 80,
            "max_source_positions": 1500,
            "activation_function": "gelu",
        },
    }


def write_random_checkpoint(
    folder: Path, config: Mapping[str, Any] | None = None, seed: int = 0, num_files: int = 1
) -> None:
    """Write config.json, weights in bfloat16, tokenizer and generation config.

    Changes `folder`, which is made if need be.

    Args:
        folder: Where to write.
        config: As `tiny_config` gives it, or changed; a small model of 4.5 by default.
        seed: Of the weights.
        num_files: Files that the weights are spread over, with an index if more than one.
    """
    config = tiny_config() if config is None else config
    folder.mkdir(parents=True, exist_ok=True)
    parsed = parse_config(config)
    special = _ids(_MARKERS + (_DUPLEX_MARKERS if parsed.version == "4.5" else ()), 256)
    added = _ids(_THOUGHT, 256 + len(special)) if parsed.version == "4.5" else {}
    ends = [special["<|im_end|>"], special["<|endoftext|>"]]
    write_json(folder / "config.json", dict(config))
    write_json(folder / "generation_config.json", {"eos_token_id": ends})
    settings = {"additional_special_tokens": list(special), "bad_token_ids": []}
    write_json(folder / "tokenizer_config.json", settings)
    byte_level_bpe(byte_vocab(), [], special, added).save(str(folder / "tokenizer.json"))
    weights = random_weights(expected_tensors(parsed), seed)
    quieten(weights, {special[m]: factor for m, factor in _LOUD.items() if m in special})
    write_weights(folder, ((published(n), w) for n, w in weights.items()), num_files)


def _ids(tokens: tuple[str, ...], first: int) -> dict[str, int]:
    return {token: first + i for i, token in enumerate(tokens)}
