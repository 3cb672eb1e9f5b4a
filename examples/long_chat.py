"""A conversation with a model of mlx-lm that may go on all day, and on another day.

    python examples/long_chat.py mlx-community/Llama-3.2-3B-Instruct-4bit --cache-file talk

Type a line, get a reply; an empty line or Ctrl-D ends it. What is held is saved to the file, if one
is named, and read from it the next time.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import mlx_lm

from omnitide.errors import OmnitideError
from omnitide.mlx_lm import (
    cache_stats,
    load_prompt_cache,
    make_prompt_cache,
    save_prompt_cache,
)


def main() -> None:
    """Talk."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--max-kv-size", type=int, default=4096, help="tokens held, in a new talk")
    parser.add_argument("--max-tokens", type=int, default=512, help="of a reply")
    parser.add_argument("--cache-file", type=Path, help="where the conversation is kept")
    options = parser.parse_args()

    try:
        model, tokenizer, *_ = mlx_lm.load(options.model)
    except (OSError, ValueError) as error:
        parser.error(f"can't load {options.model}: {error}")
    if not tokenizer.has_chat_template:
        parser.error(f"{options.model} has no chat template; take a model made for chat")
    file = options.cache_file and options.cache_file.with_suffix(".safetensors")
    if file and file.exists():
        cache = load_prompt_cache(file, model, tokenizer=tokenizer)
    else:
        # The one line: mlx-lm's make_prompt_cache(model) would grow with the conversation.
        cache = make_prompt_cache(model, options.max_kv_size, tokenizer=tokenizer)

    for line in iter(sys.stdin.readline, ""):
        if not line.strip():
            break
        turn = [{"role": "user", "content": line.strip()}]
        prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True)
        for response in mlx_lm.stream_generate(
            model, tokenizer, prompt, max_tokens=options.max_tokens, prompt_cache=cache
        ):
            print(response.text, end="", flush=True)
        stats = cache_stats(cache)
        print(f"\n({stats.tokens_kept:,} of {stats.tokens_seen:,} tokens held)", file=sys.stderr)
    if file:
        save_prompt_cache(file, cache, model)


if __name__ == "__main__":
    try:
        main()
    except OmnitideError as error:
        sys.exit(str(error))
