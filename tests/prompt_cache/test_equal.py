"""While the budget is not reached, the bounded cache is mlx-lm's own, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step, stream_generate
from mlx_lm.models.cache import KVCache
from mlx_lm.models.cache import make_prompt_cache as own_caches

from omnitide.mlx_lm import BoundedKVCache, cache_stats, make_prompt_cache

BOUNDED = {
    "llama": (0, 1),
    "mistral": (0, 1),
    "mistral3": (0, 2),
    "qwen2": (0, 1),
    "qwen3": (0, 1),
    "qwen3-yarn": (0, 1),
    "gemma3": (1, 3),
    "phi3-longrope": (0, 1),
    "smollm3": (0, 1, 2, 3),
    "stablelm": (0, 1),
    "qwen3-next": (1, 3),
}


def generated(model: Any, prompt: Any, caches: list[Any], step: int) -> tuple[list[int], Any]:
    """Tokens and log probabilities of a greedy reply."""
    pairs = list(
        generate_step(
            mx.array(prompt), model, max_tokens=24, prompt_cache=caches, prefill_step_size=step
        )
    )
    return [int(t) for t, _ in pairs], np.array(mx.stack([p for _, p in pairs]).astype(mx.float32))


@pytest.mark.parametrize("step", [7, 2048])
@pytest.mark.parametrize("name", BOUNDED)
def test_a_large_budget_changes_no_bit(
    name: str, step: int, tiny_model: Callable[..., Any], text: Callable[..., Any]
) -> None:
    model, prompt = tiny_model(name), text(60)
    tokens, scores = generated(model, prompt, own_caches(model), step)
    caches = make_prompt_cache(model, 1000)
    ours, our_scores = generated(model, prompt, caches, step)
    assert len(set(tokens)) > 5  # a text that wanders
    assert ours == tokens
    np.testing.assert_array_equal(our_scores, scores)
    stats = cache_stats(caches)
    assert (stats.tokens_seen, stats.tokens_kept, stats.evictions) == (84, 84, 0)


@pytest.mark.parametrize("name", BOUNDED)
def test_full_layers_are_bounded_and_others_keep_their_cache(
    name: str, tiny_model: Callable[..., Any]
) -> None:
    model = tiny_model(name)
    caches = make_prompt_cache(model)
    own = own_caches(model)
    assert tuple(i for i, c in enumerate(caches) if isinstance(c, BoundedKVCache)) == BOUNDED[name]
    for ours, theirs in zip(caches, own, strict=True):
        assert isinstance(ours, BoundedKVCache) == (type(theirs) is KVCache)
        assert isinstance(ours, BoundedKVCache) or type(ours) is type(theirs)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_changes_no_bit_either(
    dtype: Any, tiny_model: Callable[..., Any], text: Callable[..., Any]
) -> None:
    model = tiny_model("llama", dtype=dtype)
    theirs = generated(model, text(60), own_caches(model), 16)
    ours = generated(model, text(60), make_prompt_cache(model, 1000), 16)
    assert ours[0] == theirs[0]


def test_the_full_policy_never_evicts(
    tiny_model: Callable[..., Any], text: Callable[..., Any]
) -> None:
    model = tiny_model("qwen3")
    theirs = generated(model, text(60), own_caches(model), 16)
    caches = make_prompt_cache(model, 20, policy="full")
    assert generated(model, text(60), caches, 16)[0] == theirs[0]
    assert cache_stats(caches).tokens_kept == 84


def test_a_conversation_goes_on_in_the_same_cache(
    tiny_model: Callable[..., Any], tokenizer: Callable[[str], Any]
) -> None:
    model, words = tiny_model("llama"), tokenizer("llama3")
    ours, theirs = make_prompt_cache(model, 4000, tokenizer=words), own_caches(model)
    for turn in range(3):
        prompt = words.apply_chat_template(
            [{"role": "user", "content": f"w{turn} w7 \n\n w9"}], add_generation_prompt=True
        )
        replies = [
            [r.token for r in stream_generate(model, words, prompt, 12, prompt_cache=caches)]
            for caches in (ours, theirs)
        ]
        assert replies[0] == replies[1]


def test_a_quantised_model_is_listened_to_as_well(
    tiny_model: Callable[..., Any], text: Callable[..., Any]
) -> None:
    import mlx.nn as nn

    model = tiny_model("llama")
    nn.quantize(model, group_size=32, bits=8)
    caches = make_prompt_cache(model, 1000)
    theirs = generated(model, text(40), own_caches(model), 16)
    assert generated(model, text(40), caches, 16)[0] == theirs[0]
    held = caches[0].ledger.pending.read()
    np.testing.assert_array_equal(held, [*text(40), *theirs[0]])


def test_listening_changes_no_parameter_and_no_name(tiny_model: Callable[..., Any]) -> None:
    from mlx.utils import tree_flatten

    model = tiny_model("llama")
    before = {n: np.array(w) for n, w in tree_flatten(model.parameters())}
    printed = str(model)
    make_prompt_cache(model)
    make_prompt_cache(model)
    after = dict(tree_flatten(model.parameters()))
    assert list(after) == list(before)
    assert all(np.array_equal(before[n], np.array(after[n])) for n in before)
    assert str(model) == printed
