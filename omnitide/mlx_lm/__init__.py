"""The bounded cache for models of mlx-lm: keep the model and the script, change one line.

from omnitide.mlx_lm import make_prompt_cache

cache = make_prompt_cache(model, tokenizer=tokenizer, high_watermark=4096)
for response in mlx_lm.stream_generate(model, tokenizer, prompt, prompt_cache=cache):
    print(response.text, end="", flush=True)
"""

from __future__ import annotations

from omnitide.errors import MissingPackageError

try:
    import mlx_lm as _needed  # noqa: F401
except ImportError as error:
    raise MissingPackageError(
        "[mlx-lm] omnitide.mlx_lm needs mlx-lm, which can't be imported "
        f'({error}); pip install "omnitide[mlx-lm]"'
    ) from error

from omnitide.mlx_lm.caches import CacheStats, cache_stats, make_prompt_cache
from omnitide.mlx_lm.files import load_prompt_cache, save_prompt_cache
from omnitide.mlx_lm.layer import BoundedKVCache
from omnitide.mlx_lm.policies import TEXT_POLICIES
from omnitide.mlx_lm.turns import Turns

__all__ = [
    "TEXT_POLICIES",
    "BoundedKVCache",
    "CacheStats",
    "Turns",
    "cache_stats",
    "load_prompt_cache",
    "make_prompt_cache",
    "save_prompt_cache",
]
