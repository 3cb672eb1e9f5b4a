"""The caches of a model: bounded ones for full-attention layers, its own for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omnitide.errors import BackendError, ConfigError
from omnitide.mlx_lm.layer import BoundedKVCache
from omnitide.mlx_lm.ledger import Ledger
from omnitide.mlx_lm.markers import Markers, learn_markers
from omnitide.mlx_lm.options import CacheOptions, cache_options
from omnitide.mlx_lm.policies import make_text_policy
from omnitide.mlx_lm.probe import probe


def make_prompt_cache(
    model: Any,
    max_kv_size: int | None = None,
    *,
    tokenizer: Any = None,
    policy: str = "turns",
    high_watermark: int | None = None,
    low_watermark: int | None = None,
    draft_tokens: int = 0,
    **knobs: Any,
) -> list[Any]:
    """The caches of a model of mlx-lm, for `stream_generate(..., prompt_cache=...)` and the like.

    Runs the model on a few tokens, a few times, to see what it does with its caches. Listens to the
    embedding of the model from then on. Make the caches when the model is final: quantised, with
    its adapters.

    Args:
        model: As `mlx_lm.load` returns it.
        max_kv_size: Another name of `high_watermark`, as in mlx-lm.
        tokenizer: As `mlx_lm.load` returns it: what turns and paragraphs are. Without it, units are
            blocks of tokens.
        policy: `turns`, `omnipick`, `streaming-llm`, `streaming-vlm`, `token-sliding`, `fifo` or
            `full`.
        high_watermark: A cache that holds more tokens after a forward pass is cut. 2,500 if not
            given.
        low_watermark: To how many, as a target. 1,800, or less with a high watermark below 2,500.
        draft_tokens: Most tokens that speculative decoding takes back at once (mlx-lm's
            `num_draft_tokens`); needed for it.
        **knobs: Budgets of the policies: fields of `omnitide.RetentionConfig` such as
            `text_budget`, `sink_tokens` and `recent_units`.

    Returns:
        One cache a layer. Layers that the model gives another kind of cache (sliding window,
        recurrent) keep it.

    Raises:
        ConfigError: An option makes no sense, or no layer keeps a full history.
        BackendError: The model's keys can't be moved to other positions, or its tokens not heard.
    """
    options = cache_options(policy, max_kv_size, high_watermark, low_watermark, draft_tokens, knobs)
    return caches_of(model, options, tokenizer)


def caches_of(model: Any, options: CacheOptions, tokenizer: Any) -> list[Any]:
    """The caches of a model, for options that have been checked. Raises as `make_prompt_cache`."""
    chosen = make_text_policy(options.policy)
    markers = Markers() if tokenizer is None else learn_markers(tokenizer)
    probed = probe(model)
    if tokenizer is not None and probed.heard is None:
        raise BackendError(
            f"[mlx-lm] the tokens of {type(model).__module__} can't be heard, because it has no "
            "plain embedding; leave out tokenizer, then units are blocks of tokens"
        )
    ledger = Ledger(options, chosen, markers, probed.rotations, probed.shapes, probed.heard)
    caches = list(probed.own)
    for index, layer in enumerate(probed.bounded):
        caches[layer] = BoundedKVCache(ledger, index)
    return caches


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Figures of a prompt cache.

    Attributes:
        tokens_seen: Tokens ever given.
        tokens_kept: Tokens that the bounded layers hold.
        evictions: How often some were deleted.
        nbytes: Bytes of the buffers of all layers.
    """

    tokens_seen: int
    tokens_kept: int
    evictions: int
    nbytes: int


def cache_stats(caches: Sequence[Any]) -> CacheStats:
    """Figures of the caches that `make_prompt_cache` returned.

    Raises:
        ConfigError: They are others.
    """
    state = ledger_of(caches).state
    return CacheStats(
        state.tokens_seen, state.rows, state.evictions, sum(int(c.nbytes) for c in caches)
    )


def ledger_of(caches: Sequence[Any]) -> Ledger:
    """What the bounded layers share.

    Raises:
        ConfigError: There are none.
    """
    for cache in caches:
        if isinstance(cache, BoundedKVCache):
            return cache.ledger
    raise ConfigError("[mlx-lm] these caches were not made by omnitide.mlx_lm.make_prompt_cache")
