"""Tiny models of mlx-lm's own classes with random weights, and tokenizers made on the spot."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed")
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")

from mlx.utils import tree_map  # noqa: E402

VOCABULARY = 96

SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
}

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

# Module of mlx-lm, and its arguments beside the small ones.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope_scaling": LLAMA3_ROPE, "max_position_embeddings": 4096}),
    "mistral": ("mistral", {"rope_theta": 10000.0, "tie_word_embeddings": False}),
    "mistral3": (
        "ministral3",
        {
            "num_hidden_layers": 4,
            "max_position_embeddings": 4096,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "sliding_window": 8,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "llama_4_scaling_beta": 0.1,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen2": ("qwen2", {}),
    "qwen3": (
        "qwen3",
        {
            "head_dim": 16,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
            "rope_theta": 1e6,
        },
    ),
    "qwen3-yarn": (
        "qwen3",
        {
            "head_dim": 16,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
            "rope_theta": 1e4,
            "rope_scaling": YARN,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "num_hidden_layers": 4,
            "head_dim": 8,
            "sliding_window": 8,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 8,
        },
    ),
    "phi3-longrope": (
        "phi3",
        {
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 64,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0] * 4,
                "long_factor": [1.0, 1.5, 2.0, 3.0],
            },
        },
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 4, "no_rope_layer_interval": 2}),
    "stablelm": (
        "stablelm",
        {
            "rope_theta": 10000.0,
            "use_qkv_bias": True,
            "partial_rotary_factor": 0.5,
            "layer_norm_eps": 1e-5,
        },
    ),
    "qwen3-next": (
        "qwen3_next",
        {
            "num_hidden_layers": 4,
            "full_attention_interval": 2,
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_conv_kernel_dim": 4,
            "num_experts": 0,
            "num_experts_per_tok": 1,
            "decoder_sparse_step": 1,
            "shared_expert_intermediate_size": 16,
            "mlp_only_layers": [],
            "moe_intermediate_size": 16,
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "max_position_embeddings": 4096,
            "head_dim": 8,
        },
    ),
    "gemma3n": (  # one position for all layers, of the first cache
        "gemma3n",
        {
            "text_config": {
                **SMALL,
                "model_type": "gemma3n",
                "num_hidden_layers": 4,
                "intermediate_size": [64] * 4,
                "num_kv_shared_layers": 0,
                "head_dim": 8,
                "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "max_position_embeddings": 4096,
                "hidden_size_per_layer_input": 8,
                "vocab_size_per_layer_input": VOCABULARY,
                "rope_theta": 1e4,
                "rope_local_base_freq": 1e4,
                "rope_scaling": None,
                "final_logit_softcapping": 30.0,
                "activation_sparsity_pattern": [0.0] * 4,
                "altup_num_inputs": 2,
                "altup_coef_clip": None,
                "altup_correct_scale": True,
                "altup_active_idx": 0,
                "laurel_rank": 4,
                "query_pre_attn_scalar": 8,
            }
        },
    ),
    "gpt2": (
        "gpt2",
        {
            "n_ctx": 4096,
            "n_embd": 32,
            "n_head": 4,
            "n_layer": 2,
            "n_positions": 4096,
            "layer_norm_epsilon": 1e-5,
        },
    ),
    "deepseek-v3": (
        "deepseek_v3",
        {
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "n_routed_experts": None,
            "moe_intermediate_size": 16,
        },
    ),
    "dynamic-ntk": (
        "llama",
        {
            "rope_scaling": {"rope_type": "dynamic", "factor": 4.0},
            "max_position_embeddings": 64,
        },
    ),
    "mamba": (
        "mamba",
        {
            "state_size": 4,
            "conv_kernel": 4,
            "use_bias": False,
            "use_conv_bias": True,
            "time_step_rank": 4,
        },
    ),
}


def _weights(seed: int) -> Callable[[Any], Any]:
    """Draws weights large enough for a text to wander, in place of those that are there."""
    random = np.random.default_rng(seed)

    def draw(weight: Any) -> Any:
        if weight.ndim < 2:
            return weight
        spread = 1.6 / np.sqrt(weight.shape[-1])
        return mx.array(random.normal(0, spread, weight.shape).astype(np.float32))

    return draw


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., Any]:
    """`tiny_model(name, seed=0, dtype=None)`: a new one each time, for it may be listened to."""

    def build(name: str, seed: int = 0, dtype: Any = None) -> Any:
        module, extra = MODELS[name]
        mapped = {"mistral": "llama"}.get(module, module)
        code = importlib.import_module(f"mlx_lm.models.{mapped}")
        mx.random.seed(seed)  # of biases and the like, which stay as the model draws them
        arguments = code.ModelArgs.from_dict({"model_type": module, **SMALL, **extra})
        model = code.Model(arguments)
        draw = _weights(seed)
        model.update(tree_map(draw, model.parameters()))
        if dtype is not None:
            model.set_dtype(dtype)
        mx.eval(model.parameters())
        return model

    return build


@pytest.fixture(scope="session")
def text() -> Callable[..., Any]:
    """`text(count, seed=0)`: random tokens, int32."""

    def draw(count: int, seed: int = 0) -> Any:
        return np.random.default_rng(seed).integers(3, VOCABULARY, count).astype(np.int32)

    return draw


CHATML = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nbe kind<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}<|end|>\n\n{{ m.content }}<|eot|>"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}{% for m in messages %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %}{{ m.content }}</s>{% endif %}{% endfor %}"
)

TEMPLATES: dict[str, tuple[str, tuple[str, ...], str | None, str]] = {
    "chatml": (CHATML, ("<|im_start|>", "<|im_end|>"), None, "<|im_end|>"),
    "llama3": (LLAMA3, ("<|begin|>", "<|start|>", "<|end|>", "<|eot|>"), "<|begin|>", "<|eot|>"),
    "gemma": (GEMMA, ("<bos>", "<start_of_turn>", "<end_of_turn>"), "<bos>", "<end_of_turn>"),
    "mistral": (MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]"), "<s>", "</s>"),
    "plain": ("", ("<s>", "</s>"), "<s>", "</s>"),
}


@pytest.fixture(scope="session")
def tokenizer() -> Callable[[str], Any]:
    """`tokenizer(template)`: words, line breaks and the template's marks are tokens; few others.

    It fits the vocabulary of the tiny models.
    """

    @cache
    def build(name: str) -> Any:
        from mlx_lm.tokenizer_utils import TokenizerWrapper
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        template, special, bos, eos = TEMPLATES[name]
        words = ["<unk>", "\n", "\n\n", " ", "system", "user", "assistant", "model", "be", "kind"]
        words += [f"w{i}" for i in range(60)] + ["!"]
        words += [f"omnitide{i}{word}" for i, word in enumerate(["system", "user", "reply", ""])]
        vocabulary = {word: i for i, word in enumerate(words)}
        inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n\n|\n| |[^\s]+"), "isolated")
        inner.decoder = decoders.Fuse()
        inner.add_special_tokens(list(special))
        plain = PreTrainedTokenizerFast(
            tokenizer_object=inner, bos_token=bos, eos_token=eos, unk_token="<unk>"
        )
        plain.chat_template = template or None
        assert len(plain) <= VOCABULARY
        return TokenizerWrapper(plain)

    return build
