"""What can be asked for, what is refused, and what the message says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import KVCache

from omnitide.errors import BackendError, ConfigError
from omnitide.mlx_lm import BoundedKVCache, cache_stats, make_prompt_cache


def retention(caches: list[Any]) -> Any:
    return next(c for c in caches if isinstance(c, BoundedKVCache)).ledger.options.retention


def test_watermarks(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama")
    for options, wanted in (
        ({}, (2500, 1800)),
        ({"high_watermark": 1000}, (1000, 720)),
        ({"max_kv_size": 1000}, (1000, 720)),
        ({"high_watermark": 8000}, (8000, 1800)),
        ({"high_watermark": 8000, "low_watermark": 6000}, (8000, 6000)),
    ):
        config = retention(make_prompt_cache(model, **options))
        assert (config.high_watermark, config.low_watermark) == wanted
    config = retention(make_prompt_cache(model, text_budget=7, sink_tokens=9))
    assert (config.text_budget, config.sink_tokens) == (7, 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "h2o"}, "h2o chooses by attention mass"),
        ({"policy": "best"}, "policy must be one of turns, "),
        ({"low_watermark": 3000}, "low watermark 3,000 is above the high watermark 2,500"),
        ({"high_watermark": 0}, "high_watermark must be at least 1"),
        ({"max_kv_size": 10, "high_watermark": 10}, "max_kv_size .* is another name"),
        ({"budget": 3}, "budget is no option of make_prompt_cache"),
        ({"draft_tokens": 901}, r"draft_tokens must be in \[0, 900\]"),
        ({"draft_tokens": -1}, r"draft_tokens must be in \[0, 900\]"),
        ({"tokenizer": 7}, "int has no encode"),
        ({"max_kv_size": "4096"}, r"must be a whole number, got '4096' \(str\)"),
        ({"max_kv_size": object()}, r"must be a whole number, got <object .* \(object\)"),
        ({"high_watermark": 4096.0}, r"must be a whole number, got 4096\.0 \(float\)"),
        ({"low_watermark": True}, "low_watermark must be a whole number, got True"),
        ({"draft_tokens": 2.5}, "draft_tokens must be a whole number, got 2.5"),
        ({"draft_tokens": None}, "draft_tokens must be a whole number, got None"),
        ({"text_budget": "x"}, "text_budget must be a whole number, got 'x'"),
        ({"recent_share": "x"}, "recent_share must be a number, got 'x'"),
    ],
)
def test_options_that_make_no_sense(
    options: dict[str, Any], message: str, tiny_model: Callable[..., Any]
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_prompt_cache(tiny_model("llama"), **options)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("gpt2", BackendError, "layer 0 of gpt2 .* values depend on the position"),
        ("deepseek-v3", BackendError, "layer 0 of deepseek_v3 .* values depend on the position"),
        ("dynamic-ntk", BackendError, "no rotary embedding turns a key"),
        (
            "gemma3n",
            BackendError,
            r"layer 1 of gemma3n .* positions from the cache of another layer",
        ),
        ("mamba", ConfigError, r"no layer of mamba .* keeps a full history \(it has ArraysCache"),
    ],
)
def test_models_whose_keys_can_not_be_moved(
    name: str, error: type[Exception], message: str, tiny_model: Callable[..., Any]
) -> None:
    with pytest.raises(error, match=message):
        make_prompt_cache(tiny_model(name))


@pytest.mark.parametrize("thing", [7, object()])
def test_what_is_no_model(thing: Any) -> None:
    with pytest.raises(BackendError, match="is no model of mlx-lm"):
        make_prompt_cache(thing)


def test_a_model_that_scales_keys_by_position_is_found_out(
    tiny_model: Callable[..., Any],
) -> None:
    """The probe does not believe a rotary embedding that it has not seen at work."""
    model = tiny_model("llama")
    attention = model.model.layers[1].self_attn
    inner = attention.rope

    class Scaled(type(inner)):  # type: ignore[misc]
        def __call__(self, x: Any, offset: Any = 0) -> Any:
            scale = 1.0 + (offset if isinstance(offset, int) else 0) / 1000
            return super().__call__(x, offset) * scale

    inner.__class__ = Scaled
    with pytest.raises(BackendError, match=r"layer 1 of llama .* no rotary embedding turns a key"):
        make_prompt_cache(model)


def test_a_cache_that_the_model_does_not_use_stays_its_own(
    tiny_model: Callable[..., Any], text: Callable[..., Any]
) -> None:
    model = tiny_model("qwen2")
    kind = type(model)
    spare = type(kind.__name__, (kind,), {"__module__": kind.__module__})
    spare.make_cache = lambda self: [KVCache() for _ in range(3)]
    model.__class__ = spare
    caches = make_prompt_cache(model, 40, low_watermark=24)
    assert [type(c) for c in caches] == [BoundedKVCache, BoundedKVCache, KVCache]
    for at in range(0, 100, 10):
        mx.eval(model(mx.array(text(100)[at : at + 10])[None], cache=caches))
    assert caches[0].size() <= 40


def test_a_system_prefix_that_is_too_long(
    tiny_model: Callable[..., Any], tokenizer: Callable[[str], Any]
) -> None:
    model, words = tiny_model("llama"), tokenizer("chatml")
    caches = make_prompt_cache(model, 64, low_watermark=32, tokenizer=words)
    prompt = "<|im_start|>system\n" + " ".join(["w1"] * 60) + "<|im_end|>\n"
    ids = mx.array(words.encode(prompt))[None]
    with pytest.raises(ConfigError, match=r"\[mlx-lm\] the system prefix has \d+ tokens or more"):
        model(ids, cache=caches)


def test_system_and_first_words_stay_and_the_rest_is_cut_by_paragraphs(
    tiny_model: Callable[..., Any], tokenizer: Callable[[str], Any]
) -> None:
    """A long conversation, as a user of mlx-lm has it."""
    model, words = tiny_model("qwen3"), tokenizer("chatml")
    caches = make_prompt_cache(model, 200, low_watermark=140, tokenizer=words)
    start = words.encode("<|im_start|>system\nbe kind<|im_end|>\n")
    said = list(start)
    mx.eval(model(mx.array(start)[None], cache=caches))
    for turn in range(40):
        paragraphs = "\n\n".join(" ".join([f"w{turn}"] * 10) for _ in range(1 + turn % 3))
        role = ("user", "assistant")[turn % 2]
        ids = words.encode(f"<|im_start|>{role}\n{paragraphs}<|im_end|>\n")
        said += ids
        for token in np.array_split(np.array(ids), 3):
            mx.eval(model(mx.array(token)[None], cache=caches))
        ledger = caches[0].ledger
        held = [*ledger.state.history.cells["token"].tolist(), *ledger.pending.read().tolist()]
        assert len(held) <= 200
        assert held[: len(start)] == start
        assert held[-40:] == said[-len(held) :][-40:]
        text = words.decode(held)
        assert text.count("<|im_start|>") - text.count("<|im_end|>") in (0, 1)
    assert cache_stats(caches).evictions >= 5
    assert cache_stats(caches).tokens_seen == len(said)


def test_without_mlx_lm_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['mlx_lm'] = None; import omnitide; import omnitide.mlx_lm"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert 'pip install "omnitide[mlx-lm]"' in done.stderr
    caught = (
        "import sys; sys.modules['mlx_lm'] = None\ntry:\n    import omnitide.mlx_lm\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", caught], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("[mlx-lm] omnitide.mlx_lm needs mlx-lm")
