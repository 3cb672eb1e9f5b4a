"""Every number of the model and of a training row, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PATCH_VALUES = 1176
"""Values of a patch vector: 3 channels, 2 frames, 14 x 14 pixels."""

BANDS = 128
"""Mel bands of a frame."""

STEPS, PATCHES, CELLS = 2, 64, 16
"""Frame pairs of a unit; patches and merged cells of a pair."""

PICTURE_TOKENS, SOUND_TOKENS = STEPS * CELLS, 50
"""Tokens of a unit's pictures and of its sound."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A thinker's shape, and the room of a training row.

    Attributes:
        vocab_size: Rows of the embedding; the tokenizer's ids lie below.
        hidden, layers, heads, kv_heads, ffn: Of the decoder.
        sections: Pairs of a head that time, row and column turn.
        vision_hidden, vision_layers, vision_heads, vision_ffn: Of the vision tower.
        full_attention: Vision layers that attend to a whole picture pair (the others to windows of
            112 pixels, which is the same at our size).
        audio_hidden, audio_layers, audio_heads, audio_ffn: Of the audio tower.
        row_tokens: Tokens of a row, a multiple of 128.
        row_units: Media units that a row has room for.
        row_labels: Labelled tokens that a row has room for.
        row_answers: Answers that a row has room for.
    """

    vocab_size: int = 1024
    hidden: int = 384
    layers: int = 8
    heads: int = 6
    kv_heads: int = 2
    ffn: int = 1024
    sections: tuple[int, int, int] = (8, 12, 12)
    vision_hidden: int = 192
    vision_layers: int = 4
    vision_heads: int = 4
    vision_ffn: int = 576
    full_attention: tuple[int, ...] = (1, 3)
    audio_hidden: int = 192
    audio_layers: int = 3
    audio_heads: int = 4
    audio_ffn: int = 768
    row_tokens: int = 6144
    row_units: int = 48
    row_labels: int = 768
    row_answers: int = 192

    @property
    def head_size(self) -> int:
        """Size of a decoder head."""
        return self.hidden // self.heads

    @property
    def special_tokens(self) -> dict[str, int]:
        """Id of each special token of the family: the last ids of the vocabulary."""
        first = self.vocab_size - len(_SPECIAL)
        return {marker: first + i for i, marker in enumerate(_SPECIAL)}

    def config(self, trained: bool = True) -> dict[str, Any]:
        """config.json of the model in the published layout.

        Args:
            trained: Our own key: False lets the command line say that the weights are random.
        """
        ids = self.special_tokens
        return {
            "architectures": ["Qwen2_5OmniModel"],
            "model_type": "qwen2_5_omni",
            "trained": trained,
            "thinker_config": {
                "model_type": "qwen2_5_omni_thinker",
                "audio_token_index": ids["<|AUDIO|>"],
                "audio_start_token_id": ids["<|audio_bos|>"],
                "audio_end_token_id": ids["<|audio_eos|>"],
                "vision_start_token_id": ids["<|vision_bos|>"],
                "vision_end_token_id": ids["<|vision_eos|>"],
                "image_token_index": ids["<|IMAGE|>"],
                "video_token_index": ids["<|VIDEO|>"],
                "position_id_per_seconds": 25,
                "seconds_per_chunk": 2,
                "tie_word_embeddings": False,
                "text_config": self._text(),
                "vision_config": self._vision(),
                "audio_config": self._audio(),
            },
        }

    def _text(self) -> dict[str, Any]:
        return {
            "model_type": "qwen2_5_omni_text",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768,
            "use_sliding_window": False,
            "rope_theta": 1000000.0,
            "rope_scaling": {
                "mrope_section": list(self.sections),
                "rope_type": "default",
                "type": "default",
            },
        }

    def _vision(self) -> dict[str, Any]:
        return {
            "model_type": "qwen2_5_omni_vision_encoder",
            "depth": self.vision_layers,
            "hidden_size": self.vision_hidden,
            "intermediate_size": self.vision_ffn,
            "num_heads": self.vision_heads,
            "out_hidden_size": self.hidden,
            "in_channels": 3,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "window_size": 112,
            "fullatt_block_indexes": list(self.full_attention),
            "hidden_act": "silu",
        }

    def _audio(self) -> dict[str, Any]:
        return {
            "model_type": "qwen2_5_omni_audio_encoder",
            "num_mel_bins": BANDS,
            "encoder_layers": self.audio_layers,
            "encoder_attention_heads": self.audio_heads,
            "encoder_ffn_dim": self.audio_ffn,
            "d_model": self.audio_hidden,
            "max_source_positions": 1500,
            "n_window": 100,
            "output_dim": self.hidden,
            "activation_function": "gelu",
        }


_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|AUDIO|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<|IMAGE|>",
    "<|VIDEO|>",
)


def small() -> Settings:
    """The model that ships, about 17 million parameters."""
    return Settings()


def tiny() -> Settings:
    """For tests on the CPU: every part is there, streams of up to four units fit."""
    return Settings(
        vocab_size=640,
        hidden=128,
        layers=2,
        heads=2,
        kv_heads=1,
        ffn=192,
        vision_hidden=64,
        vision_layers=2,
        vision_heads=2,
        vision_ffn=96,
        full_attention=(1,),
        audio_hidden=64,
        audio_layers=2,
        audio_heads=2,
        audio_ffn=128,
        row_tokens=768,
        row_units=6,
        row_labels=192,
        row_answers=32,
    )


NAMED = {"small": small, "tiny": tiny}
"""Settings by name."""
