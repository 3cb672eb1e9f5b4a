"""Small checkpoints of the family's shape with random weights, in the published layout.

They run the whole program in seconds where no trained model is at hand. Equal arguments give equal
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers.pre_tokenizers import ByteLevel

from omnitide.models.chat import CHATML
from omnitide.models.headers import INDEX_FILE, SINGLE_FILE, Shape
from omnitide.models.names import EMBEDDING, LM_HEAD
from omnitide.models.qwen2_5_omni.config import ThinkerConfig, parse_config
from omnitide.models.qwen2_5_omni.names import expected_tensors
from omnitide.models.tokenizer import byte_level_bpe

_QUIET = 0.05
"""Factor on the output rows of tokens that are no printable text."""

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
    _write_json(folder / "config.json", dict(config))
    _write_json(folder / "generation_config.json", {"eos_token_id": [_IM_END, _END_OF_TEXT]})
    _write_json(folder / "chat_template.json", {"chat_template": CHATML})
    byte_level_bpe(_byte_vocab(), [], _special_tokens(thinker)).save(str(folder / "tokenizer.json"))
    _write_weights(folder, _random_weights(thinker, seed), num_files)


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


def _byte_vocab() -> dict[str, int]:
    """Ids 0 to 255 by the printable stand-ins of byte-level BPE."""
    return {character: i for i, character in enumerate(sorted(ByteLevel.alphabet()))}


def _random_weights(config: ThinkerConfig, seed: int) -> dict[str, NDArray[np.float32]]:
    """Weights that keep activations near one, by canonical name."""
    random = np.random.default_rng(seed)
    weights = {
        name: _random_tensor(random, name, shape)
        for name, shape in expected_tensors(config).items()
    }
    if LM_HEAD in weights:
        # A random model says random bytes: let it say those that a terminal can show.
        printable = np.zeros(config.text.vocab_size, np.bool_)
        vocab = _byte_vocab()
        printable[[vocab[chr(c)] for c in range(33, 127)]] = True
        weights[LM_HEAD][~printable] *= _QUIET
    return weights


def _random_tensor(random: np.random.Generator, name: str, shape: Shape) -> NDArray[np.float32]:
    noise = random.standard_normal(shape, np.float32)
    if len(shape) > 1:
        return noise * np.float32(0.5 if name == EMBEDDING else prod(shape[1:]) ** -0.5)
    is_norm = "norm" in name or "ln_" in name
    return noise * np.float32(0.1) + np.float32(1.0 if is_norm and name.endswith("weight") else 0.0)


def _write_weights(
    folder: Path, weights: Mapping[str, NDArray[np.float32]], num_files: int
) -> None:
    stored = {f"thinker.{name}": w.astype(ml_dtypes.bfloat16) for name, w in weights.items()}
    if num_files == 1:
        save_file(stored, folder / SINGLE_FILE, metadata={"format": "pt"})
        return
    places: dict[str, str] = {}
    for number in range(num_files):
        file = f"model-{number + 1:05d}-of-{num_files:05d}.safetensors"
        share = {name: stored[name] for name in list(stored)[number::num_files]}
        save_file(share, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(share, file)
    size = sum(tensor.nbytes for tensor in stored.values())
    _write_json(
        folder / INDEX_FILE,
        {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))},
    )


def _write_json(file: Path, contents: dict[str, Any]) -> None:
    file.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")
