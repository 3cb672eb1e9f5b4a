"""The language model: Qwen2 or Qwen3 blocks over a paged cache of un-rotated keys.

Keys go into the cache after their norm (Qwen3 has one, Qwen2 has none) and before any rotation.
"""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike

from omnitide.backend import Array, Backend, Pools
from omnitide.models.layers import GatedMLP, Linear, RMSNorm, Weights, attend
from omnitide.models.names import EMBEDDING, LM_HEAD
from omnitide.models.text_config import TextConfig
from omnitide.step import Step


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One block: attention over the cache, then the gated MLP, each after a norm.

    `q_norm` and `k_norm` are of one head, (head_dim,); None in Qwen2.
    """

    attention_norm: RMSNorm
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    q_norm: RMSNorm | None
    k_norm: RMSNorm | None
    mlp: GatedMLP

    @classmethod
    def read(cls, weights: Weights, name: str, config: TextConfig) -> DecoderLayer:
        """The block stored under `name`."""
        eps = config.rms_norm_eps
        q_norm, k_norm = (
            RMSNorm.read(weights, f"{name}.self_attn.{part}_norm", eps) if config.qk_norm else None
            for part in ("q", "k")
        )
        return cls(
            attention_norm=RMSNorm.read(weights, f"{name}.input_layernorm", eps),
            q=Linear.read(weights, f"{name}.self_attn.q_proj"),
            k=Linear.read(weights, f"{name}.self_attn.k_proj"),
            v=Linear.read(weights, f"{name}.self_attn.v_proj"),
            o=Linear.read(weights, f"{name}.self_attn.o_proj"),
            q_norm=q_norm,
            k_norm=k_norm,
            mlp=GatedMLP.read(
                weights,
                f"{name}.mlp",
                RMSNorm.read(weights, f"{name}.post_attention_layernorm", eps),
            ),
        )


class Decoder:
    """The language model: token embeddings, blocks, final norm and vocabulary."""

    def __init__(self, config: TextConfig, backend: Backend, weights: Weights) -> None:
        self.config = config
        self.backend = backend
        self.embedding = weights[EMBEDDING]
        self.layers = [
            DecoderLayer.read(weights, f"model.layers.{layer}", config)
            for layer in range(config.num_layers)
        ]
        self.norm = RMSNorm.read(weights, "model.norm", config.rms_norm_eps)
        self.lm_head = Linear(self.embedding if config.tied else weights[LM_HEAD])

    def embed(self, tokens: ArrayLike) -> Array:
        """Embeddings of token ids, shape (num_tokens, hidden_size)."""
        return self.backend.take(self.embedding, tokens)

    def forward_hidden(self, embeddings: Array, pools: Pools, step: Step) -> Array:
        """Run the blocks; states before the final norm, shape (num_queries, hidden_size).

        Changes `pools` at `step.query_slots`.

        Args:
            embeddings: Of the new tokens, shape (num_queries, hidden_size).
            pools: The cache of this model.
            step: Live cells, the new ones included.
        """
        x = embeddings
        for index in range(len(self.layers)):
            x = self._block(index, x, pools, step)
        return x

    def logits(self, hidden: Array) -> Array:
        """Logits of states that `forward_hidden` gave, shape (num_states, vocab_size)."""
        return self.norm.project(self.backend, hidden, self.lm_head)[0]

    def forward(self, embeddings: Array, pools: Pools, step: Step) -> Array:
        """Run the blocks; logits of the last token alone, shape (vocab_size,). Changes `pools`.

        Of the last block's new tokens, all but the last leave only their keys and values.
        """
        if step.num_queries <= 1 or step.observed:  # then it is asked what all queries attend to
            hidden = self.forward_hidden(embeddings, pools, step)
        else:
            x = embeddings
            last = len(self.layers) - 1
            for index in range(last):
                x = self._block(index, x, pools, step)
            layer = self.layers[last]
            k, v = self._heads(layer, x, layer.k, layer.v)
            self._append(last, k, v, pools, step)
            x = x[-1:]
            (q,) = self._heads(layer, x, layer.q)
            hidden = self._after(last, x, q, pools, step.newest)
        return self.logits(hidden[-1:]).reshape((-1,))

    def _block(self, index: int, x: Array, pools: Pools, step: Step) -> Array:
        layer = self.layers[index]
        q, k, v = self._heads(layer, x, layer.q, layer.k, layer.v)
        self._append(index, k, v, pools, step)
        return self._after(index, x, q, pools, step)

    def _heads(self, layer: DecoderLayer, x: Array, *linears: Linear) -> list[Array]:
        """Products with the norm of x, each of shape (num_tokens, num_heads, head_dim)."""
        parts = layer.attention_norm.project(self.backend, x, *linears)
        return [part.reshape((x.shape[0], -1, self.config.head_dim)) for part in parts]

    def _append(self, index: int, k: Array, v: Array, pools: Pools, step: Step) -> None:
        norm = self.layers[index].k_norm
        k = k if norm is None else norm(self.backend, k)
        self.backend.append(pools, index, step, k, v)

    def _after(self, index: int, x: Array, q: Array, pools: Pools, step: Step) -> Array:
        """The block from attention on."""
        backend, layer = self.backend, self.layers[index]
        q = q if layer.q_norm is None else layer.q_norm(backend, q)
        seen = attend(backend, q, pools, index, step, self.config.head_dim**-0.5)
        x = layer.o(backend, seen.reshape((x.shape[0], -1)), residual=x)
        return layer.mlp(backend, x)
