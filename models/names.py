"""Names and shapes of the tensors of parts that families share."""

from __future__ import annotations

from omnitide.models.headers import Shape
from omnitide.models.text_config import TextConfig

LM_HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"


def linear_tensors(name: str, out: int, into: int, bias: bool = True) -> dict[str, Shape]:
    """Shapes of a linear layer (`layers.Linear`) by name."""
    weight: dict[str, Shape] = {f"{name}.weight": (out, into)}
    return {**weight, f"{name}.bias": (out,)} if bias else weight


def norm_tensors(name: str, size: int) -> dict[str, Shape]:
    """Shapes of a layer norm (`layers.LayerNorm`) by name."""
    return {f"{name}.weight": (size,), f"{name}.bias": (size,)}


def text_tensors(c: TextConfig) -> dict[str, Shape]:
    """Shape of every tensor of the decoder by canonical name."""
    tensors: dict[str, Shape] = {
        EMBEDDING: (c.vocab_size, c.hidden_size),
        "model.norm.weight": (c.hidden_size,),
    }
    if not c.tied:
        tensors[LM_HEAD] = (c.vocab_size, c.hidden_size)
    size, inner = c.hidden_size, c.intermediate_size
    width, kv_width = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    for layer in range(c.num_layers):
        at = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{norm}.weight"] = (size,)
        for part, out in (("q", width), ("k", kv_width), ("v", kv_width)):
            tensors |= linear_tensors(f"{at}.self_attn.{part}_proj", out, size, c.qkv_bias)
        tensors |= linear_tensors(f"{at}.self_attn.o_proj", size, width, bias=False)
        for part in ("gate", "up"):
            tensors |= linear_tensors(f"{at}.mlp.{part}_proj", inner, size, bias=False)
        tensors |= linear_tensors(f"{at}.mlp.down_proj", size, inner, bias=False)
        if c.qk_norm:
            for part in ("q", "k"):
                tensors[f"{at}.self_attn.{part}_norm.weight"] = (c.head_dim,)
    return tensors


def whisper_tensors(name: str, layers: int, size: int, ffn: int, bands: int) -> dict[str, Shape]:
    """Shape of every tensor of Whisper's convolutions and blocks, stored under `name`.

    Its norm behind the blocks and its table of positions are the families' own.
    """
    tensors: dict[str, Shape] = {
        f"{name}.conv1.weight": (size, bands, 3),
        f"{name}.conv1.bias": (size,),
        f"{name}.conv2.weight": (size, size, 3),
        f"{name}.conv2.bias": (size,),
    }
    for layer in range(layers):
        at = f"{name}.layers.{layer}"
        tensors |= norm_tensors(f"{at}.self_attn_layer_norm", size)
        tensors |= norm_tensors(f"{at}.final_layer_norm", size)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            tensors |= linear_tensors(f"{at}.self_attn.{part}", size, size, part != "k_proj")
        tensors |= linear_tensors(f"{at}.fc1", ffn, size)
        tensors |= linear_tensors(f"{at}.fc2", size, ffn)
    return tensors
