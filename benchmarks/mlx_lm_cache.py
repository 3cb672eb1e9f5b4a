"""The bounded cache beside mlx-lm's KVCache and RotatingKVCache, on one long text.

    python benchmarks/mlx_lm_cache.py [--tokens 8192] [--policy turns --policy streaming-llm]
    python benchmarks/mlx_lm_cache.py --model MODEL --text book.txt

Every cache takes in the same text in pieces, then decodes; rounds go over all caches in turn, and
medians are shown. Peak memory is MLX's, of one round, weights included. With a model and a text the
perplexity of the text follows from a run of its own, each piece predicted by what the cache then
holds. Without a model, one with random weights is made, which says nothing of quality.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models import llama
from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_lm.models.cache import make_prompt_cache as own_caches
from mlx_lm.utils import load

from omnitide.mlx_lm import TEXT_POLICIES, make_prompt_cache

MIB = 2**20


@dataclass(frozen=True)
class Run:
    """One round of one cache: seconds, bytes and tokens held."""

    prefill: float
    decode: float
    peak: int
    cache: int
    kept: int


def random_model(layers: int, hidden: int) -> Any:
    """A Llama with random weights, and no tokenizer."""
    mx.random.seed(0)
    heads = max(hidden // 64, 1)
    arguments = llama.ModelArgs(
        "llama",
        hidden,
        layers,
        3 * hidden,
        heads,
        1e-5,
        1024,
        num_key_value_heads=max(heads // 2, 1),
    )
    model = llama.Model(arguments)
    mx.eval(model.parameters())
    return model


def rotating(model: Any, size: int) -> list[Any]:
    """mlx-lm's own caches, those of full-attention layers made to rotate."""
    return [
        RotatingKVCache(size, keep=4) if type(cache) is KVCache else cache
        for cache in own_caches(model)
    ]


def pieces(tokens: Any, step: int) -> Iterator[Any]:
    """The tokens, so many at a time, shape (1, step)."""
    for at in range(0, len(tokens), step):
        yield mx.array(tokens[at : at + step])[None]


def measure(model: Any, caches: list[Any], tokens: Any, decode: int, step: int) -> Run:
    """Take in the text and decode greedily."""
    mx.clear_cache()
    mx.reset_peak_memory()
    start = time.perf_counter()
    for ids in pieces(tokens, step):
        logits = model(ids, cache=caches)
        mx.eval([c.state for c in caches])
    token = mx.argmax(logits[:, -1:], axis=-1)
    mx.eval(token)
    between = time.perf_counter()
    for _ in range(decode):
        token = mx.argmax(model(token, cache=caches)[:, -1:], axis=-1)
        mx.eval(token)
    end = time.perf_counter()
    kept = max(int(c.size()) for c in caches)
    size = sum(int(c.nbytes) for c in caches)
    return Run(between - start, end - between, mx.get_peak_memory(), size, kept)


def perplexity(model: Any, caches: list[Any], tokens: Any, step: int) -> float:
    """Of all tokens but the first."""
    total, last = 0.0, None
    for ids in pieces(tokens, step):
        logits = model(ids, cache=caches)
        shown = logits[0, :-1] if last is None else mx.concatenate([last, logits[0, :-1]])
        wanted = ids[0, 1:] if last is None else ids[0]
        loss = nn.losses.cross_entropy(shown.astype(mx.float32), wanted, reduction="sum")
        mx.eval(loss, [c.state for c in caches])
        total += float(loss)
        last = logits[0, -1:]
        mx.eval(last)
    return math.exp(total / (len(tokens) - 1))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="folder or name on the hub; without it, random weights")
    parser.add_argument("--text", type=Path, help="a text file; without it, random tokens")
    parser.add_argument("--tokens", type=int, default=8192, help="of the text")
    parser.add_argument("--decode", type=int, default=64, help="tokens decoded behind it")
    parser.add_argument("--prefill-step-size", type=int, default=512)
    parser.add_argument("--high-watermark", type=int, default=2500)
    parser.add_argument("--low-watermark", type=int, default=1800)
    parser.add_argument("--policy", action="append", choices=TEXT_POLICIES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=4, help="of the random model")
    parser.add_argument("--hidden", type=int, default=256, help="of the random model")
    options = parser.parse_args()
    if options.text is not None and options.model is None:
        parser.error("--text needs --model, whose tokenizer reads it")

    tokenizer: Any = None
    if options.model is None:
        model = random_model(options.layers, options.hidden)
        vocabulary = 1024
    else:
        model, tokenizer, *_ = load(options.model)
        vocabulary = len(tokenizer)
    if options.text is None:
        tokens = np.random.default_rng(0).integers(0, vocabulary, options.tokens)
    else:
        tokens = np.array(tokenizer.encode(options.text.read_text(encoding="utf-8")))
        tokens = tokens[: options.tokens]
    tokens = tokens.astype(np.int32)

    high, low, step = options.high_watermark, options.low_watermark, options.prefill_step_size
    makers: dict[str, Callable[[], list[Any]]] = {
        "KVCache": lambda: own_caches(model),
        "RotatingKVCache": lambda: rotating(model, high),
    }
    for policy in options.policy or ["turns", "streaming-llm"]:
        makers[policy] = lambda policy=policy: make_prompt_cache(  # type: ignore[misc]
            model, tokenizer=tokenizer, policy=policy, high_watermark=high, low_watermark=low
        )

    runs: dict[str, list[Run]] = {name: [] for name in makers}
    measure(model, own_caches(model), tokens[: 2 * step], 2, step)  # what is done once
    for _ in range(options.rounds):
        for name, make in makers.items():
            runs[name].append(measure(model, make(), tokens, options.decode, step))
    print(f"{len(tokens):,} tokens in pieces of {step:,}, then {options.decode} decoded; ", end="")
    print(f"watermarks {high:,} and {low:,}; medians of {options.rounds}")
    ask = options.model is not None and options.text is not None
    print(
        f"{'cache':16} {'prefill s':>10} {'decode ms':>10} {'peak MiB':>9} {'cache MiB':>10} "
        f"{'kept':>7}" + ("  perplexity" if ask else "")
    )
    for name, make in makers.items():
        done = runs[name]
        line = (
            f"{name:16} {median(r.prefill for r in done):10.2f} "
            f"{1e3 * median(r.decode for r in done) / max(options.decode, 1):10.2f} "
            f"{median(r.peak for r in done) / MIB:9.1f} "
            f"{median(r.cache for r in done) / MIB:10.1f} {done[-1].kept:7,}"
        )
        print(line + (f"  {perplexity(model, make(), tokens, step):10.3f}" if ask else ""))


if __name__ == "__main__":
    main()
