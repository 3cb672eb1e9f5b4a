"""A prompt cache in a file: what comes back goes on as if it had never been away."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache as own_caches
from mlx_lm.models.cache import save_prompt_cache as own_save

from omnitide.errors import CacheFileError, ConfigError
from omnitide.mlx_lm import (
    cache_stats,
    load_prompt_cache,
    make_prompt_cache,
    save_prompt_cache,
)


def feed(model: Any, caches: list[Any], tokens: Any) -> Any:
    for at in range(0, len(tokens), 8):
        logits = model(mx.array(tokens[at : at + 8])[None], cache=caches)
        mx.eval(logits, [c.state for c in caches])
    return np.array(logits)[0, -1]


def small(model: Any, **options: Any) -> list[Any]:
    return make_prompt_cache(model, 48, low_watermark=32, **options)


@pytest.mark.parametrize("count", [0, 20, 150], ids=["empty", "whole", "evicted"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen3-next", "mistral3"])
def test_a_loaded_cache_goes_on_bit_for_bit(
    name: str, count: int, tiny_model: Callable[..., Any], text: Callable[..., Any], tmp_path: Path
) -> None:
    model, words = tiny_model(name), {"title": "a long talk"}
    caches = small(model, policy="streaming-llm")
    if count:
        feed(model, caches, text(count))
    path = save_prompt_cache(tmp_path / "talk", caches, model, words)
    assert path == tmp_path / "talk.safetensors"
    assert [p.name for p in tmp_path.iterdir()] == ["talk.safetensors"]
    loaded, metadata = load_prompt_cache(path, tiny_model(name), return_metadata=True)
    assert metadata == words
    assert (cache_stats(loaded).tokens_seen, cache_stats(loaded).evictions) == (
        count,
        cache_stats(caches).evictions,
    )
    more = text(90, seed=7)
    twin = tiny_model(name)
    loaded = load_prompt_cache(path, twin)
    np.testing.assert_array_equal(feed(twin, loaded, more), feed(model, caches, more))
    assert cache_stats(loaded) == cache_stats(caches)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_comes_back(
    dtype: Any, tiny_model: Callable[..., Any], text: Callable[..., Any], tmp_path: Path
) -> None:
    model = tiny_model("qwen3", dtype=dtype)
    caches = small(model)
    ids = mx.array(text(100))
    list(generate_step(ids, model, max_tokens=3, prompt_cache=caches, prefill_step_size=9))
    loaded = load_prompt_cache(save_prompt_cache(tmp_path / "c", caches, model), model)
    for ours, theirs in zip(caches, loaded, strict=True):
        for one, other in zip(ours.state[:3], theirs.state[:3], strict=True):
            assert one.dtype == dtype
            assert mx.array_equal(one, other)


def test_a_conversation_with_its_tokenizer(
    tiny_model: Callable[..., Any], tokenizer: Callable[[str], Any], tmp_path: Path
) -> None:
    model, words = tiny_model("llama"), tokenizer("chatml")
    caches = small(model, tokenizer=words)
    talk = [{"role": role, "content": " ".join(["w1"] * 20)} for role in ("user", "assistant") * 4]
    ids = np.array(words.apply_chat_template(talk))
    feed(model, caches, ids[:-20])  # in the middle of a turn
    path = save_prompt_cache(tmp_path / "talk", caches, model)
    loaded = load_prompt_cache(path, model, tokenizer=words)
    for more in (None, ids[-20:], ids):
        if more is not None:
            np.testing.assert_array_equal(feed(model, loaded, more), feed(model, caches, more))
        one, other = caches[0].ledger.state.history, loaded[0].ledger.state.history
        assert one.units == other.units
        for column in ("token", "unit", "span", "role", "order", "position", "slot"):
            np.testing.assert_array_equal(one.cells[column], other.cells[column])
    with pytest.raises(CacheFileError, match="saved with a tokenizer; give load_prompt_cache"):
        load_prompt_cache(path, model)
    with pytest.raises(CacheFileError, match="for another tokenizer: markers"):
        load_prompt_cache(path, model, tokenizer=tokenizer("llama3"))


@pytest.fixture
def saved(tiny_model: Callable[..., Any], text: Callable[..., Any], tmp_path: Path) -> Path:
    model = tiny_model("llama")
    caches = small(model)
    feed(model, caches, text(100))
    return save_prompt_cache(tmp_path / "saved", caches, model)


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, str]], None]) -> Path:
    arrays, texts = mx.load(str(path), return_metadata=True)
    change(arrays, texts)
    out = path.with_name("changed.safetensors")
    mx.save_safetensors(str(out), arrays, texts)
    return out


@pytest.mark.parametrize(
    ("name", "seed", "message"),
    [
        ("llama", 1, r"for another model: model\.weights was "),
        ("qwen2", 0, r"for another model: model\.class was 'llama', is 'qwen2'"),
        ("gemma3", 0, r"for another model: model\.class was 'llama', is 'gemma3_text'"),
    ],
)
def test_another_model_is_refused(
    name: str, seed: int, message: str, saved: Path, tiny_model: Callable[..., Any]
) -> None:
    with pytest.raises(CacheFileError, match=message):
        load_prompt_cache(saved, tiny_model(name, seed))


def test_a_name_without_its_ending_is_the_same_file(
    saved: Path, tiny_model: Callable[..., Any]
) -> None:
    caches = load_prompt_cache(saved.with_suffix(""), tiny_model("llama"))
    assert cache_stats(caches).tokens_seen == 100


def test_a_cache_is_saved_with_its_own_model(
    tiny_model: Callable[..., Any], tmp_path: Path
) -> None:
    """A file that names another model would be loaded for it."""
    model, draft = tiny_model("llama"), tiny_model("llama", 1)
    caches, _ = small(model), small(draft)
    with pytest.raises(
        ConfigError, match=r"made for another model than this mlx_lm\.models\.llama"
    ):
        save_prompt_cache(tmp_path / "talk", caches, draft)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("metadata", [{"a": object()}, {"a": 1}, {1: "a"}])
def test_metadata_are_strings(
    metadata: dict[Any, Any], tiny_model: Callable[..., Any], tmp_path: Path
) -> None:
    model = tiny_model("llama")
    with pytest.raises(ConfigError, match="metadata must be a dict of strings"):
        save_prompt_cache(tmp_path / "talk", small(model), model, metadata)
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_that_was_not_there_is_refused(
    saved: Path, tiny_model: Callable[..., Any], tokenizer: Callable[[str], Any]
) -> None:
    with pytest.raises(CacheFileError, match="saved without a tokenizer; leave out tokenizer"):
        load_prompt_cache(saved, tiny_model("llama"), tokenizer=tokenizer("chatml"))


def set_text(key: str, value: str | None) -> Callable[[Any, dict[str, str]], None]:
    def change(_: Any, texts: dict[str, str]) -> None:
        if value is None:
            del texts[key]
        else:
            texts[key] = value

    return change


def other_watermark(_: Any, texts: dict[str, str]) -> None:
    values = json.loads(texts["configuration"])
    values["options"]["high_watermark"] = 64
    texts["configuration"] = json.dumps(values)


def other_kind(_: Any, texts: dict[str, str]) -> None:
    layers = json.loads(texts["layers"])
    layers[0]["kind"] = "KVCache"
    texts["layers"] = json.dumps(layers)


def fewer_layers(_: Any, texts: dict[str, str]) -> None:
    texts["layers"] = json.dumps(json.loads(texts["layers"])[:-1])


def drop_array(name: str) -> Callable[[dict[str, Any], Any], None]:
    return lambda arrays, _: arrays.pop(name)


def cut_array(name: str, axis: int) -> Callable[[dict[str, Any], Any], None]:
    def change(arrays: dict[str, Any], _: Any) -> None:
        place = [slice(None)] * arrays[name].ndim
        place[axis] = slice(0, -1)
        arrays[name] = arrays[name][tuple(place)]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_text("format", "other"), "holds no prompt cache of omnitide"),
        (set_text("version", "7"), "has version 7, this is version 1"),
        (set_text("version", None), "has version None"),
        (set_text("hash", "0"), "its hash is not that of its configuration"),
        (other_watermark, "its hash is not that of its configuration"),
        (set_text("configuration", "[]"), "does not hold together"),
        (set_text("configuration", "{"), "does not hold together"),
        (set_text("layers", "7"), "does not hold together"),
        (set_text("ledger", "[]"), "does not hold together"),
        (other_kind, "layer 0 is KVCache, the model's is bounded"),
        (fewer_layers, "1 layers for a model of 2"),
        (drop_array("layers.1.values"), "does not hold together"),
        (drop_array("ledger.cells"), "does not hold together"),
        (cut_array("layers.1.keys", 2), "does not hold together"),
        (cut_array("layers.0.keys", 1), "does not hold together"),
        (cut_array("layers.0.values", 3), "not of the model's size"),
        (cut_array("ledger.cells", 0), "does not hold together"),
        (cut_array("ledger.pending", 0), "does not hold together"),
        (cut_array("ledger.written", 0), "does not hold together"),
    ],
)
def test_a_file_that_does_not_hold_together_is_refused(
    change: Callable[[Any, Any], None],
    message: str,
    saved: Path,
    tiny_model: Callable[..., Any],
) -> None:
    with pytest.raises(CacheFileError, match=message) as caught:
        load_prompt_cache(rewritten(saved, change), tiny_model("llama"))
    assert str(caught.value).startswith("[mlx-lm] ")


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_refused(
    share: float, saved: Path, tiny_model: Callable[..., Any]
) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(share * len(data))])
    with pytest.raises(CacheFileError, match=r"\[mlx-lm\] can't read .*saved\.safetensors"):
        load_prompt_cache(saved, tiny_model("llama"))


def test_what_is_no_file_is_refused(
    tmp_path: Path, tiny_model: Callable[..., Any], text: Callable[..., Any]
) -> None:
    model = tiny_model("llama")
    with pytest.raises(CacheFileError, match="there is no prompt cache at"):
        load_prompt_cache(tmp_path / "none.safetensors", model)
    own = own_caches(model)
    feed(model, own, text(10))
    own_save(str(tmp_path / "own.safetensors"), own)
    with pytest.raises(CacheFileError, match="holds no prompt cache of omnitide"):
        load_prompt_cache(tmp_path / "own.safetensors", model)
    with pytest.raises(ConfigError, match="not made by omnitide"):
        save_prompt_cache(tmp_path / "own", own, model)
    with pytest.raises(CacheFileError, match="can't write"):
        save_prompt_cache(tmp_path / "missing" / "c", small(model), model)


def test_a_save_that_fails_leaves_the_old_file(
    saved: Path,
    tiny_model: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = saved.read_bytes()

    def fail(name: str, *_: Any) -> None:
        Path(name).write_bytes(b"half")
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(mx, "save_safetensors", fail)
    model = tiny_model("llama")
    with pytest.raises(CacheFileError, match="the disk is full"):
        save_prompt_cache(saved, small(model), model)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]
