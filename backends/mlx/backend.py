"""The MLX backend, in plain MLX operations.

Invariant: no reference to a pool array is kept outside the pools. MLX writes into an array in
place only while nothing else holds it; a second reference makes every append copy the whole pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import mlx.core as mx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from omnitide.backend import Array, Pools
from omnitide.backends import checks, host
from omnitide.backends.composed import Composed
from omnitide.backends.mlx import attention
from omnitide.backends.mlx.attention import StepArrays, step_arrays
from omnitide.backends.pools import (
    PagedPools,
    check_append,
    check_attention,
    check_migrate,
    grow_each,
    pool_shape,
)
from omnitide.backends.weights import read_tensors, stored_dtypes
from omnitide.backends.worker import Worker
from omnitide.pages import PAGE_SIZE, Slots
from omnitide.step import Step

P = ParamSpec("P")
R = TypeVar("R")

CACHE_LIMIT = 1 << 30
"""Bytes of freed buffers that MLX keeps for re-use on Metal. Gathers differ in size from step to
step, and MLX's own limit, nearly all of the memory, would be reached in a long stream. On the CPU
MLX's limit is 32 MiB."""


class MlxBackend(Composed):
    """`Backend` on MLX arrays. Operations are described there.

    MLX computes an array on the thread that made it: call `run` from any thread, and everything
    else, and every operation on arrays, inside a function given to `run`.
    """

    name = "mlx"

    def __init__(self, dtype: str, device: str) -> None:
        self.dtype = dtype
        self.device = device
        self._dtype = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}[dtype]
        self._last_step: tuple[Step, StepArrays] | None = None
        self._worker = Worker("omnitide-mlx")
        self._worker.run(_prepare)

    # -- arrays -------------------------------------------------------------------------------
    def asarray(self, values: ArrayLike) -> Array:
        """An array in the backend's dtype."""
        return mx.array(np.asarray(values, np.float32)).astype(self._dtype)

    def to_numpy(self, array: Array) -> NDArray[Any]:
        """A float32 copy on the host; NumPy has no bfloat16."""
        return np.array(array.astype(mx.float32))

    def read_safetensors(self, path: Path, names: Iterable[str]) -> dict[str, Array]:
        """The named tensors, read and converted one at a time."""
        dtypes = stored_dtypes(path, names)
        if "F64" in dtypes.values():
            # MLX's own reader refuses a file that holds float64.
            return {name: self.asarray(values) for name, values in read_tensors(path, dtypes)}
        stored: Any = mx.load(str(path))
        tensors = {}
        for name in dtypes:
            tensors[name] = stored.pop(name).astype(self._dtype)
            mx.eval(tensors[name])
        return tensors

    def random_normal(self, shape: Sequence[int], scale: float, seed: int) -> Array:
        """Normal values, of a key of their own."""
        sizes = checks.check_random(shape, scale, seed)
        key = mx.random.key(seed)
        values = mx.random.normal(sizes, dtype=self._dtype, scale=scale, key=key)
        mx.eval(values)  # else what it is made of would be held until it is used
        return values

    def copy(self, array: Array) -> Array:
        """A sum with 0; MLX shares memory where nothing is computed."""
        return array + 0

    def concat(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        """Arrays joined along an axis."""
        checks.check_concat(arrays, axis)
        return mx.concatenate(list(arrays), axis=axis)

    def take(self, array: Array, rows: ArrayLike) -> Array:
        """Rows by int indices."""
        indices = checks.check_ints("take", "rows", rows, array.shape[0])
        return mx.take(array, mx.array(indices.astype(np.int32)), axis=0)

    # -- operations of models -------------------------------------------------------------------
    def linear(
        self, x: Array, weight: Array, bias: Array | None = None, residual: Array | None = None
    ) -> Array:
        """x @ weight.T + bias + residual."""
        checks.check_linear(x, weight, bias, residual)
        out = x @ weight.T if bias is None else mx.addmm(bias, x, weight.T)
        return out if residual is None else residual + out

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """Root-mean-square norm, accumulated in float32 by MLX."""
        checks.check_norm("rms_norm", x, weight)
        return mx.fast.rms_norm(x, weight, eps)

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> Array:
        """Layer norm, accumulated in float32 by MLX."""
        checks.check_norm("layer_norm", x, weight, bias)
        return mx.fast.layer_norm(x, weight, bias, eps)

    def swiglu(self, gate: Array, up: Array) -> Array:
        """gate * sigmoid(gate) * up."""
        checks.check_shape("swiglu", "up", up, *gate.shape)
        return gate * mx.sigmoid(gate) * up

    def gelu(self, x: Array) -> Array:
        """Exact GELU, in float32: 1 + erf cancels below 0."""
        wide = x.astype(mx.float32)
        return (0.5 * wide * (1 + mx.erf(wide * math.sqrt(0.5)))).astype(x.dtype)

    def argmax(self, logits: Array) -> int:
        """Index of the greatest; MLX takes the first of equals."""
        checks.check_logits("argmax", logits)
        best: Array = mx.where(mx.isnan(logits).any(), -1, mx.argmax(logits).astype(mx.int32))
        return int(best.item())

    def log_softmax(self, logits: Array) -> Array:
        """Log-probabilities, float32."""
        checks.check_logits("log_softmax", logits)
        wide = logits.astype(mx.float32)
        return wide - mx.logsumexp(wide)

    def rotate(self, x: Array, cos: ArrayLike, sin: ArrayLike) -> Array:
        """Rotate the pairs (i, i + head_dim / 2)."""
        cosines, sines = np.asarray(cos, np.float32), np.asarray(sin, np.float32)
        checks.check_rotate(x, cosines, sines)
        return attention.rotate(x, mx.array(cosines[:, None]), mx.array(sines[:, None]))

    def segment_attention(
        self, q: Array, k: Array, v: Array, lengths: Sequence[int], scale: float
    ) -> Array:
        """Full attention inside each segment."""
        checks.check_segments(q, k, v, lengths)
        return attention.segment_attention(q, k, v, tuple(lengths), scale)

    # -- the paged cache ------------------------------------------------------------------------
    def new_pools(self, num_layers: int, num_kv_heads: int, head_dim: int, num_pages: int) -> Pools:
        """Pools, allocated at once."""
        shape = pool_shape(num_layers, num_kv_heads, head_dim, num_pages)
        keys = [mx.zeros(shape, self._dtype) for _ in range(num_layers)]
        values = [mx.zeros(shape, self._dtype) for _ in range(num_layers)]
        mx.eval(keys, values)
        return PagedPools(keys, values)

    def grow_pools(self, pools: Pools, num_pages: int) -> None:
        """Make the pools larger."""
        grow_each(pools, num_pages, _grown)

    def append(self, pools: Pools, layer: int, step: Step, k: Array, v: Array) -> None:
        """Write k and v to `step.query_slots`, in place when the result is computed."""
        check_append(pools, layer, step, k, v)
        if step.num_queries == 0:
            return
        at = self._on_device(step)
        pools.keys[layer][at.query_page, :, at.query_row] = k
        pools.values[layer][at.query_page, :, at.query_row] = v

    def attention(self, q: Array, pools: Pools, layer: int, step: Step, scale: float) -> Array:
        """Attention over the live cells that each query may see."""
        check_attention(q, pools, layer, step)
        if step.num_queries == 0:
            return q
        at = self._on_device(step)
        return attention.paged_attention(q, pools.keys[layer], pools.values[layer], at, scale)

    def attention_mass(self, q: Array, pools: Pools, layer: int, step: Step, scale: float) -> Array:
        """Attention probability of each cell, summed over queries and heads, float32."""
        check_attention(q, pools, layer, step, "attention_mass")
        at = self._on_device(step)
        return attention.paged_mass(q, pools.keys[layer], step, at, scale)

    def migrate(self, pools: Pools, source: Slots, destination: Slots) -> None:
        """Gather the rows of all layers, then write them."""
        sources, destinations = check_migrate(pools, source, destination)
        if len(sources) == 0:
            return
        page, row = (mx.array(x.astype(np.int32)) for x in np.divmod(sources, PAGE_SIZE))
        moved = [array[page, :, row] for array in (*pools.keys, *pools.values)]
        # Computed now: a pending read of a pool would keep the writes from being in place.
        mx.eval(moved)
        page, row = (mx.array(x.astype(np.int32)) for x in np.divmod(destinations, PAGE_SIZE))
        for arrays in (pools.values, pools.keys):
            for layer in reversed(range(len(arrays))):
                arrays[layer][page, :, row] = moved.pop()
        mx.eval(pools.keys, pools.values)

    # -- running --------------------------------------------------------------------------------
    def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` on the thread that owns MLX."""
        return self._worker.run(function, *args, **kwargs)

    def synchronize(self, *arrays: Array) -> None:
        """Compute these arrays and wait for all work of the thread's stream."""
        mx.eval(*arrays)
        mx.synchronize()

    def timed(self, function: Callable[[int], Any], repeat: int) -> list[float]:
        """Seconds of each call, by the host's clock; MLX has no events."""
        checks.check_repeat(repeat)
        return host.wall_times(function, repeat, self.synchronize)

    def memory_free(self) -> int:
        """Bytes up to what Metal recommends to use; on the CPU, of main memory."""
        mx.clear_cache()
        if not mx.metal.is_available():
            return host.memory_free()
        most = int(mx.device_info()["max_recommended_working_set_size"])
        return max(most - int(mx.get_active_memory()), 0)

    def peak_memory(self) -> int:
        """Peak bytes of MLX's arrays."""
        return int(mx.get_peak_memory())

    def _on_device(self, step: Step) -> StepArrays:
        """The step's arrays, made once for all layers of a pass."""
        if self._last_step is None or self._last_step[0] is not step:
            self._last_step = (step, step_arrays(step))
        return self._last_step[1]


def _prepare() -> None:
    """Make the worker thread's stream, and bound what MLX keeps of freed memory."""
    mx.synchronize(mx.default_stream(mx.default_device()))
    if mx.metal.is_available():
        mx.set_cache_limit(CACHE_LIMIT)


def _grown(array: Array, more_pages: int) -> Array:
    larger = mx.concatenate([array, mx.zeros((more_pages, *array.shape[1:]), array.dtype)])
    mx.eval(larger)
    return larger
