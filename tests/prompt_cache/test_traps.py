"""The traps of mlx-lm's cache interface, one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import (
    BatchGenerator,
    generate_step,
    maybe_quantize_kv_cache,
    speculative_generate_step,
)
from mlx_lm.models.base import create_attention_mask, create_causal_mask
from mlx_lm.models.cache import (
    KVCache,
    LRUPromptCache,
    can_trim_prompt_cache,
    trim_prompt_cache,
)
from mlx_lm.models.cache import load_prompt_cache as own_load
from mlx_lm.models.cache import make_prompt_cache as own_caches
from mlx_lm.models.cache import save_prompt_cache as own_save

from omnitide.errors import CacheFileError, ConfigError, SessionError
from omnitide.mlx_lm import BoundedKVCache, cache_stats, make_prompt_cache


@pytest.fixture
def model(tiny_model: Callable[..., Any]) -> Any:
    return tiny_model("llama")


def feed(model: Any, caches: list[Any], tokens: Any, step: int = 8) -> Any:
    """Give tokens in pieces. Logits of the last one."""
    for at in range(0, len(tokens), step):
        logits = model(mx.array(tokens[at : at + step])[None], cache=caches)
        mx.eval(logits, [c.state for c in caches])
    return np.array(logits)[0, -1]


def held(caches: list[Any]) -> Any:
    ledger = next(c for c in caches if isinstance(c, BoundedKVCache)).ledger
    return np.concatenate([ledger.state.history.cells["token"], ledger.pending.read()])


def first_keys(model: Any, tokens: Any) -> Any:
    """Keys that layer 0 makes of tokens in a row, which depend on nothing but them."""
    layer = model.layers[0]
    hidden = layer.input_layernorm(model.model.embed_tokens(mx.array(tokens)[None]))
    keys = layer.self_attn.k_proj(hidden).reshape(1, len(tokens), 2, -1).transpose(0, 2, 1, 3)
    return np.array(layer.self_attn.rope(keys))


def small(model: Any, **options: Any) -> list[Any]:
    return make_prompt_cache(model, 48, low_watermark=32, policy="streaming-llm", **options)


def test_offset_is_the_position_that_the_next_token_gets(
    model: Any, text: Callable[..., Any]
) -> None:
    caches = small(model)
    feed(model, caches, text(100))
    assert cache_stats(caches).evictions > 0
    assert caches[0].offset == caches[0].size() == caches[1].offset < 100
    count = caches[0].offset
    feed(model, caches, text(1))
    assert caches[0].offset == count + 1


def test_rows_leave_between_passes_and_never_inside_one(
    model: Any, text: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a pass fetches holds all rows from before it and all of its own, in each layer."""
    caches = small(model)
    seen: list[tuple[int, int, int]] = []
    fetch = BoundedKVCache.update_and_fetch

    def watched(self: Any, keys: Any, values: Any) -> Any:
        before = self.offset
        out = fetch(self, keys, values)
        seen.append((before, keys.shape[2], out[0].shape[2]))
        assert out[0].shape[2] == out[1].shape[2]
        return out

    monkeypatch.setattr(BoundedKVCache, "update_and_fetch", watched)
    feed(model, caches, text(200), step=5)
    assert cache_stats(caches).evictions > 3
    assert all(rows == before + count for before, count, rows in seen)
    assert seen[::2] == seen[1::2]  # both layers of each pass
    rows = [c.keys_and_values()[0].shape[2] for c in caches]
    assert rows == [caches[0].size()] * 2


def test_a_prompt_cache_stays_below_its_watermark(model: Any, text: Callable[..., Any]) -> None:
    caches = small(model)
    for token in text(150):
        feed(model, caches, np.array([token]))
        assert caches[0].size() <= 48


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("return_array", [False, True])
@pytest.mark.parametrize("layer", [0, 1])
def test_one_mask_fits_all_layers(
    count: int,
    window: int | None,
    return_array: bool,
    layer: int,
    model: Any,
    text: Callable[..., Any],
) -> None:
    caches = small(model)
    feed(model, caches, text(90))
    hidden = mx.zeros((1, count, 32))
    mask = create_attention_mask(hidden, caches[layer], window, return_array)
    rows = caches[0].size()
    if window is None and count == 1:
        assert mask is None
    elif window is None and not return_array:
        assert mask == "causal"
    else:
        own = create_causal_mask(count, rows, window_size=window)
        assert mask.shape == (count, rows + count)
        assert mx.array_equal(mask, own)


def test_an_empty_cache_is_true(model: Any) -> None:
    """mlx-lm asks `if cache and ...`, so a length of 0 would lose the mask."""
    caches = make_prompt_cache(model)
    assert all(bool(c) and c.empty() and c.size() == 0 and c.nbytes == 0 for c in caches)
    assert caches[0].keys_and_values() == (None, None)
    mx.eval([c.state for c in caches])


def test_nothing_makes_mlx_lm_take_it_for_another_cache(
    model: Any, text: Callable[..., Any]
) -> None:
    caches = small(model)
    for name in ("bits", "group_size", "to_quantized", "merge", "extend", "filter", "extract"):
        assert not hasattr(caches[0], name), name
    assert BoundedKVCache.__mro__ == (BoundedKVCache, object)
    feed(model, caches, text(20))
    before = list(caches)
    maybe_quantize_kv_cache(caches, 0, 64, 4)
    assert all(one is other for one, other in zip(caches, before, strict=True))


def test_batches_are_refused(model: Any, text: Callable[..., Any]) -> None:
    caches = small(model)
    with pytest.raises(SessionError, match=r"\[mlx-lm\] .* one sequence, got a batch of 2"):
        model(mx.array(text(8).reshape(2, 4)), cache=caches)
    assert cache_stats(caches).tokens_seen == 0
    feed(model, caches, text(8))
    assert caches[0].size() == 8
    generator = BatchGenerator(model, max_tokens=2)
    generator.insert([text(4).tolist()], caches=[caches])
    with pytest.raises(ValueError, match="does not yet support batching with history"):
        generator.next()


def test_mlx_lm_saves_it_but_can_not_load_it(
    model: Any, text: Callable[..., Any], tmp_path: Any
) -> None:
    """Why there are functions of our own."""
    caches = small(model)
    feed(model, caches, text(100))
    own_save(str(tmp_path / "own.safetensors"), caches)
    with pytest.raises(KeyError, match="BoundedKVCache"):
        own_load(str(tmp_path / "own.safetensors"))


@pytest.mark.parametrize("count", [20, 100], ids=["whole", "evicted"])
def test_state_is_values_and_sets_a_cache_anew(
    count: int, model: Any, text: Callable[..., Any]
) -> None:
    caches = small(model)
    feed(model, caches, text(count))

    def check(value: Any) -> None:
        if isinstance(value, tuple):
            for part in value:
                check(part)
        else:
            assert value is None or isinstance(value, (mx.array, int, float, str, bool))

    states = [c.state for c in caches]
    check(tuple(states))
    other = small(model)
    for cache, state in zip(other, states, strict=True):
        cache.state = state
    more = text(60, seed=5)
    np.testing.assert_array_equal(feed(model, other, more), feed(model, caches, more))
    assert cache_stats(other) == cache_stats(caches)
    np.testing.assert_array_equal(held(other), held(caches))


@pytest.mark.parametrize("parts", [1, 2], ids=["mlx-lm", "mlx-vlm"])
def test_a_layer_is_made_from_its_state_in_both_forms(
    parts: int, model: Any, text: Callable[..., Any]
) -> None:
    caches = small(model)
    feed(model, caches, text(100))
    for cache in caches:
        given = (cache.state,) if parts == 1 else (cache.state, cache.meta_state)
        made = BoundedKVCache.from_state(*given)
        assert made.offset == made.size() == cache.size()
        for ours, theirs in zip(made.keys_and_values(), cache.keys_and_values(), strict=True):
            assert mx.array_equal(ours, theirs)
        with pytest.raises(ConfigError, match="does not know its model"):
            made.update_and_fetch(mx.zeros((1, 2, 1, 8)), mx.zeros((1, 2, 1, 8)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s[:3], "has 4 parts"),
        (lambda s: (*s[:3], (99, *s[3][1:])), "version 99"),
        (lambda s: (s[0][..., :-1, :], *s[1:]), "does not hold together"),
        (lambda s: (None, *s[1:]), "no keys"),
        (lambda s: (*s[:3], (*s[3][:1], "{}", *s[3][2:])), "does not hold together"),
        (lambda s: (*s[:3], (*s[3][:2], s[3][2][:-1], *s[3][3:])), "does not hold together"),
        (lambda s: (*s[:3], (*s[3][:3], s[3][3][:-1], s[3][4])), "does not hold together"),
        (lambda s: (*s[:2], s[2][..., :-1, :], s[3]), "does not hold together"),
    ],
)
def test_a_state_that_does_not_hold_together_changes_nothing(
    change: Callable[[Any], Any], message: str, model: Any, text: Callable[..., Any]
) -> None:
    caches, other = small(model), small(model)
    feed(model, caches, text(100))
    feed(model, other, text(30))
    before = held(other)
    with pytest.raises(CacheFileError, match=message):
        other[0].state = change(caches[0].state)
    np.testing.assert_array_equal(held(other), before)
    with pytest.raises(CacheFileError, match="no second part"):
        BoundedKVCache.from_state(caches[0].state, "more")


def test_tokens_can_be_taken_back_while_they_are_held_as_they_came(
    model: Any, text: Callable[..., Any]
) -> None:
    caches, straight = small(model, draft_tokens=6), small(model, draft_tokens=6)
    tokens = text(44)
    feed(model, straight, tokens[:30])
    feed(model, caches, tokens, step=11)
    assert cache_stats(caches).evictions == 0
    assert trim_prompt_cache(caches, 14) == 14
    assert [c.offset for c in caches] == [30, 30]
    np.testing.assert_array_equal(held(caches), tokens[:30])
    more = text(5, seed=9)
    np.testing.assert_array_equal(feed(model, caches, more), feed(model, straight, more))
    assert trim_prompt_cache(caches, 0) == 0
    assert trim_prompt_cache(caches, 10_000) == 35
    assert caches[0].empty() is False
    assert caches[0].size() == 0


def test_the_newest_tokens_can_be_taken_back_right_after_an_eviction(
    model: Any, text: Callable[..., Any]
) -> None:
    """As speculative decoding does it; what comes then is what would have come without."""
    tokens = text(60)
    caches = small(model, draft_tokens=4)
    feed(model, caches, tokens[:47], step=47)
    feed(model, caches, tokens[47:52], step=5)
    assert cache_stats(caches).evictions == 1
    before = held(caches)
    assert trim_prompt_cache(caches, 4) == 4
    np.testing.assert_array_equal(held(caches), before[:-4])
    keys = [np.array(c.keys_and_values()[0]) for c in caches]
    feed(model, caches, tokens[48:52], step=4)
    np.testing.assert_array_equal(held(caches), before)
    for cache, old in zip(caches, keys, strict=True):
        np.testing.assert_array_equal(np.array(cache.keys_and_values()[0])[:, :, :-4], old)
    # Keys as written of rows that were written over must not come back at the next eviction.
    assert trim_prompt_cache(caches, 4) == 4
    feed(model, caches, text(24, seed=2))
    assert cache_stats(caches).evictions == 2
    np.testing.assert_allclose(
        np.array(caches[0].keys_and_values()[0]), first_keys(model, held(caches)), atol=1e-5
    )


def test_taking_back_what_was_cut_is_refused(model: Any, text: Callable[..., Any]) -> None:
    caches = small(model, draft_tokens=4)
    feed(model, caches, text(100))
    before = held(caches)
    with pytest.raises(SessionError, match=r"\[mlx-lm\] the newest 30 tokens are asked back"):
        trim_prompt_cache(caches, 30)
    np.testing.assert_array_equal(held(caches), before)


@pytest.mark.parametrize("high", [1000, 40], ids=["whole", "evicted"])
def test_speculative_decoding(
    high: int, model: Any, tiny_model: Callable[..., Any], text: Callable[..., Any]
) -> None:
    draft, prompt = tiny_model("llama", seed=0), mx.array(text(30))
    draft.model.layers[1].mlp.down_proj.weight *= 0.9  # right now and then
    options = {"policy": "streaming-llm", "low_watermark": high * 3 // 4, "draft_tokens": 3}
    caches = [make_prompt_cache(m, high, **options) for m in (model, draft)]
    tokens = [
        t
        for t, _, _ in speculative_generate_step(
            prompt,
            model,
            draft,
            num_draft_tokens=3,
            max_tokens=60,
            prompt_cache=[*caches[0], *caches[1]],
        )
    ]
    said = [*np.array(prompt).tolist(), *tokens]
    if high == 1000:
        plain = generate_step(prompt, model, max_tokens=60, prompt_cache=own_caches(model))
        assert tokens == [t for t, _ in plain]
    else:
        assert cache_stats(caches[0]).evictions > 1
    kept = held(caches[0]).tolist()
    seen = cache_stats(caches[0]).tokens_seen
    assert kept[-10:] == said[seen - 10 : seen]


def test_speculative_decoding_without_draft_tokens_is_refused(
    model: Any, text: Callable[..., Any]
) -> None:
    """It would go on in silence with a cache that can't take tokens back."""
    caches = [*small(model), *small(model)]
    assert not can_trim_prompt_cache(caches)
    with pytest.raises(ValueError, match=r"trimmable prompt cache .*BoundedKVCache"):
        next(speculative_generate_step(mx.array(text(9)), model, model, prompt_cache=caches))


def test_the_prompt_cache_of_a_server(model: Any, text: Callable[..., Any]) -> None:
    """Copies are independent, sizes are counted, and nothing is trimmed behind our back."""
    store = LRUPromptCache()
    tokens = text(100).tolist()
    caches = small(model)
    feed(model, caches, np.array(tokens))
    store.insert_cache("m", tokens, caches)
    assert store.nbytes == sum(c.nbytes for c in caches) > 0
    one, rest = store.fetch_nearest_cache("m", [*tokens, 5, 6, 7])
    assert rest == [5, 6, 7]
    two, rest = store.fetch_nearest_cache("m", tokens)
    assert rest == []
    assert one[0].ledger is one[1].ledger is not caches[0].ledger
    before = held(caches)
    more = text(40, seed=4)
    first = feed(model, one, more)
    np.testing.assert_array_equal(held(caches), before)
    np.testing.assert_array_equal(feed(model, two, more), first)
    np.testing.assert_array_equal(feed(model, caches, more), first)
    nothing, rest = store.fetch_nearest_cache("m", tokens[:50])
    assert nothing is None
    assert rest == tokens[:50]


def test_a_copy_shares_the_model_and_nothing_else(model: Any, text: Callable[..., Any]) -> None:
    caches = small(model)
    feed(model, caches, text(60))
    twin = copy.deepcopy(caches)
    assert twin[0].ledger._rotations[0] is caches[0].ledger._rotations[0]
    assert twin[0].ledger.heard is caches[0].ledger.heard
    assert twin[0].ledger.state.layers[0].keys is not caches[0].ledger.state.layers[0].keys


def test_a_pass_that_breaks_off_is_forgotten(model: Any, text: Callable[..., Any]) -> None:
    caches, calm = small(model), small(model)
    tokens = text(70)
    feed(model, caches, tokens[:40])
    feed(model, calm, tokens[:40])
    block = model.model.layers[1]
    inner = block.self_attn

    class Breaks:
        def __call__(self, *_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

    del block.self_attn
    object.__setattr__(block, "self_attn", Breaks())
    with pytest.raises(KeyboardInterrupt):
        model(mx.array(text(6, seed=8))[None], cache=caches)
    object.__delattr__(block, "self_attn")
    block.self_attn = inner
    assert cache_stats(caches).tokens_seen == 40
    assert [c.offset for c in caches] == [40, 40]
    np.testing.assert_array_equal(
        feed(model, caches, tokens[40:], step=6), feed(model, calm, tokens[40:], step=6)
    )
    np.testing.assert_array_equal(held(caches), held(calm))


def test_embeddings_in_place_of_tokens_are_held_without_ids(
    model: Any, text: Callable[..., Any]
) -> None:
    caches = small(model)
    given = model.model.embed_tokens(mx.array(text(30)))
    assert list(generate_step(mx.array([], mx.int32), model, max_tokens=1, prompt_cache=caches,
                              input_embeddings=given))  # fmt: skip
    assert (held(caches)[:29] == -1).all()
    # The ids of the pass before are not taken for those of one that has none.
    feed(model, caches, text(8))
    rows = model.model.embed_tokens.weight[mx.array(text(8))]
    model(mx.zeros((1, 8), mx.int32), cache=caches, input_embeddings=rows[None])
    assert (held(caches)[-8:] == -1).all()
    feed(model, caches, text(80))
    assert cache_stats(caches).evictions > 0


def test_tokens_of_the_probe_are_not_taken_for_those_of_a_text(
    model: Any, text: Callable[..., Any]
) -> None:
    """The probe runs on eight tokens; so does the first pass here, which has no ids of its own."""
    caches = small(model)
    rows = model.model.embed_tokens.weight[mx.array(text(8))]
    model(mx.zeros((1, 8), mx.int32), cache=caches, input_embeddings=rows[None])
    assert (held(caches) == -1).all()


def test_a_run_of_the_token_that_ends_a_text_is_bounded(
    model: Any, tokenizer: Callable[[str], Any]
) -> None:
    words = tokenizer("chatml")
    caches = make_prompt_cache(model, 96, tokenizer=words)
    feed(model, caches, np.full(400, words.eos_token_id, np.int32))
    stats = cache_stats(caches)
    assert stats.tokens_kept <= 96
    assert stats.tokens_seen == 400


def test_reading_tokens_never_waits_while_decoding(
    model: Any, text: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens stay on the device until an eviction needs them."""
    from omnitide.mlx_lm.pending import Pending

    reads = []
    read = Pending.read
    monkeypatch.setattr(Pending, "read", lambda self: reads.append(1) or read(self))
    caches = small(model)
    for _ in generate_step(mx.array(text(2)), model, max_tokens=80, prompt_cache=caches):
        pass
    # Once for the prompt, whose state mlx-lm evaluates, then once an eviction.
    assert len(reads) == 1 + cache_stats(caches).evictions


def test_own_cache_of_mlx_lm_is_not_ours(model: Any) -> None:
    with pytest.raises(ConfigError, match=r"not made by omnitide\.mlx_lm\.make_prompt_cache"):
        cache_stats([KVCache()])
