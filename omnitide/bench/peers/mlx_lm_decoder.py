"""mlx-lm's own model of the same sizes with its own cache, on Metal, the CPU or MLX's CUDA build.

Weights and cache are random. Matrices are quantised as `mlx.nn.quantize` does it, the token
embeddings too. An update is one pass; the vocabulary is for its last token alone, as it is in ours.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import wired_limit
from mlx_lm.models import qwen2, qwen3
from mlx_lm.models.cache import make_prompt_cache

from omnitide.backend import Backend
from omnitide.bench.packing import MODE, Packing
from omnitide.bench.settings import MOST_CELLS, Course, Settings
from omnitide.bench.shapes import ModelShape
from omnitide.bench.timing import WARM_UP
from omnitide.errors import first_line_of
from omnitide.models.text_config import TextConfig

NAME = "mlx-lm"

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
"""By the backend's dtype."""


def peers(backend: Backend, course: Course) -> list[MlxLmModel]:
    """One, where MLX can use the backend's device and dtype."""
    if backend.dtype not in DTYPES:
        course.note(f"peer {NAME} is left out: its models don't compute in {backend.dtype}")
        return []
    if backend.name == "cuda" and not mx.cuda.is_available():
        course.note(f"peer {NAME} is left out: this build of MLX can't use the GPU")
        return []
    device = mx.Device(mx.gpu) if backend.name == "cuda" else mx.Device(mx.cpu)
    if backend.name == "mlx":
        device = mx.default_device()
    return [MlxLmModel(device, DTYPES[backend.dtype], course)]


class MlxLmModel:
    """Builds the model when it is asked for times, and gives its memory back."""

    def __init__(self, device: mx.Device, dtype: mx.Dtype, course: Course) -> None:
        self._device, self._dtype, self._course = device, dtype, course

    def times(
        self, shape: ModelShape, settings: Settings, histories: Sequence[int], queries: int
    ) -> Iterator[tuple[int, str, list[float]]]:
        """Seconds of a pass of `queries` tokens after each history."""
        with mx.stream(self._device):
            model = new_model(shape.text, settings.seed)
        if model is None:
            self._course.note(f"peer {NAME} refused {shape.name}: it has no model of this shape")
            return
        try:
            self._course.tell(f"weights of peer {NAME}")
            with mx.stream(self._device):
                _fill(model, self._dtype, settings.packing)
            for history in histories:
                self._course.tell(f"{queries:,} tokens after {history:,}, {NAME}")
                with mx.stream(self._device), _as_it_runs(model):
                    step = Step(model, shape.text, self._dtype, history, queries)
                    seconds = step.seconds(settings.repeat)
                    del step
                yield history, NAME, seconds
        except (RuntimeError, ValueError) as error:
            self._course.note(f"peer {NAME} refused {queries:,} tokens: {first_line_of(error)}")
        finally:
            del model
            mx.clear_cache()


def new_model(text: TextConfig, seed: int) -> Any:
    """mlx-lm's model of these sizes, its weights not yet computed. None: it has no such model.

    Sets the seed of MLX's random numbers, which the layers of a new model draw from.
    """
    mx.random.seed(seed)
    sizes: dict[str, Any] = {
        "hidden_size": text.hidden_size,
        "num_hidden_layers": text.num_layers,
        "intermediate_size": text.intermediate_size,
        "num_attention_heads": text.num_heads,
        "rms_norm_eps": text.rms_norm_eps,
        "vocab_size": text.vocab_size,
        "num_key_value_heads": text.num_kv_heads,
        "max_position_embeddings": MOST_CELLS,
        "rope_theta": text.rotary.theta,
        "tie_word_embeddings": text.tied,
    }
    if text.qk_norm and not text.qkv_bias:
        sizes |= {"model_type": "qwen3", "head_dim": text.head_dim}
        return qwen3.Model(qwen3.ModelArgs(**sizes))
    if text.qk_norm or not text.qkv_bias or text.num_heads * text.head_dim != text.hidden_size:
        return None
    return qwen2.Model(qwen2.ModelArgs(model_type="qwen2", **sizes))


def _fill(model: Any, dtype: mx.Dtype, packing: Packing | None) -> None:
    """Compute the weights that a new model starts from, in the dtype or quantised.

    One block after the other, so that little of what they are made from is held.
    """
    model.set_dtype(dtype)
    if packing is not None:
        nn.quantize(model, packing.group_size, packing.bits, mode=MODE)
    for block in model.layers:
        mx.eval(block.parameters())
    mx.eval(model.parameters())
    mx.clear_cache()


@contextmanager
def _as_it_runs(model: Any) -> Iterator[None]:
    """MLX's own bounds on memory, as under `mlx_lm.generate`; our backend sets others on Metal."""
    before = mx.set_cache_limit(mx.get_memory_limit()) if mx.metal.is_available() else None
    try:
        # It may warn of a large model by printing, and what is printed here may be JSON.
        with redirect_stdout(sys.stderr), wired_limit(model):
            yield
    finally:
        if before is not None:
            mx.set_cache_limit(before)


class Step:
    """A pass that can be made again and again: the cache is cut back to its history after it.

    Attributes:
        caches: Of each layer, mlx-lm's own; they hold `history` random cells.
        x: Stand-ins for embeddings, shape (1, queries, hidden_size).
    """

    def __init__(
        self, model: Any, text: TextConfig, dtype: mx.Dtype, history: int, queries: int
    ) -> None:
        self.model, self.queries = model, queries
        self.caches: list[Any] = make_prompt_cache(model)
        cells = (1, text.num_kv_heads, history, text.head_dim)
        for cache in self.caches:
            cache.update_and_fetch(*(mx.random.normal(cells, dtype=dtype) for _ in range(2)))
            mx.eval(cache.state)
        self.x = mx.random.normal((1, queries, text.hidden_size), dtype=dtype)
        mx.eval(self.x)

    def __call__(self) -> mx.array:
        """Logits of the last token, shape (1, 1, vocab_size). The caches are as before."""
        inner = self.model.model
        hidden = inner(None, cache=self.caches, input_embeddings=self.x)[:, -1:]
        tied = self.model.args.tie_word_embeddings
        head = inner.embed_tokens.as_linear if tied else self.model.lm_head
        logits: mx.array = head(hidden)
        mx.eval(logits)
        for cache in self.caches:
            cache.trim(self.queries)
        return logits

    def seconds(self, repeat: int) -> list[float]:
        """Of each pass by the host's clock, launches included; the first few are left out."""
        found = []
        for _ in range(WARM_UP + repeat):
            mx.synchronize()
            started = time.perf_counter()
            self()
            mx.synchronize()
            found.append(time.perf_counter() - started)
        return found[WARM_UP:]
