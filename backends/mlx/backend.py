"""The MLX backend: plain MLX operations, and attention through our shaders where it has a launcher.

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

from omnitide.backend import Array, Pools, Weight
from omnitide.backends import checks, host
from omnitide.backends.composed import Composed
from omnitide.backends.eight_bit import EightBitPools, grow_paged
from omnitide.backends.mlx import attention, eight_bit, quantized
from omnitide.backends.mlx.launch import Launch
from omnitide.backends.mlx.paged import PagedAttention, has_instances
from omnitide.backends.mlx.step_arrays import DeviceStep
from omnitide.backends.mlx.write_through import WriteThrough, WriteThroughPools, fault_of, raw
from omnitide.backends.pools import (
    PagedPools,
    check_append,
    check_attention,
    check_kv_bits,
    check_migrate,
    grow_each,
    pool_shape,
)
from omnitide.backends.weights import PACKED, file_dtypes, read_tensors, stored_dtypes
from omnitide.backends.worker import Worker
from omnitide.errors import BackendError
from omnitide.pages import PAGE_SIZE, Slots
from omnitide.quantized import MODES, QuantizedWeight
from omnitide.step import Step

P = ParamSpec("P")
R = TypeVar("R")

CACHE_LIMIT = 1 << 30
"""Bytes of freed buffers that MLX keeps for re-use on Metal. Gathers differ in size from step to
step, and MLX's own limit, nearly all of the memory, would be reached in a long stream. MLX gives
them back before it asks for more than there is."""

CPU_CACHE_LIMIT = 1 << 25
"""The same on the CPU, where it is MLX's own limit too."""

_INTEGERS = ("BOOL", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8")
MLX_READS = frozenset(("F32", "F16", "BF16", "C64", "F8_E4M3", "F8_E8M0", *_INTEGERS))
"""Stored dtypes that `mx.load` takes."""


class MlxBackend(Composed):
    """`Backend` on MLX arrays. Operations are described there.

    MLX computes an array on the thread that made it: call `run` from any thread, and everything
    else, and every operation on arrays, inside a function given to `run`.
    """

    name = "mlx"
    quantized_modes = frozenset(MODES)

    def __init__(
        self,
        dtype: str,
        device: str,
        launcher: Launch | None = None,
        architecture: str = "",
        write_through: bool = False,
    ) -> None:
        """Make the backend.

        Args:
            dtype: Of weights, activations and pools.
            device: The device in words.
            launcher: What runs the shaders. None: attention in plain operations.
            architecture: Metal's name of the GPU, from which the size of launches follows.
            write_through: Whether shaders write into the pools. Tried out first.

        Raises:
            BackendError: Writing through does not work here, or there is nothing to run shaders.
        """
        self.dtype = dtype
        self.device = device
        self._dtype = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}[dtype]
        # On the CPU MLX makes attention of plain products, which hold all scores.
        self._fused = bool(mx.metal.is_available())
        self.kept_bytes = 0 if self._fused else CPU_CACHE_LIMIT
        self._last_step: DeviceStep | None = None
        self._worker = Worker("omnitide-mlx")
        self._worker.run(_prepare)
        self._paged = None if launcher is None else PagedAttention(launcher, architecture)
        self._write: WriteThrough | None = None
        if write_through:
            if launcher is None or self._paged is None:
                raise BackendError(
                    "[backend] only shaders can write into the pools; unset "
                    "OMNITIDE_METAL_WRITE_THROUGH"
                )
            fault = self._worker.run(fault_of, launcher, self._paged)
            if fault is not None:
                raise BackendError(
                    f"[backend] writing into the pools does not work here: {fault}; unset "
                    "OMNITIDE_METAL_WRITE_THROUGH"
                )
            self._write = WriteThrough(launcher)

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
        if not file_dtypes(path) <= MLX_READS:
            # MLX's own reader refuses the whole file, whichever tensors are wanted.
            return {
                name: mx.array(values) if values.dtype.kind == "u" else self.asarray(values)
                for name, values in read_tensors(path, dtypes)
            }
        stored: Any = mx.load(str(path))
        tensors = {}
        for name, dtype in dtypes.items():
            tensor = stored.pop(name)
            tensors[name] = tensor if dtype in PACKED else tensor.astype(self._dtype)
            mx.eval(tensors[name])
        return tensors

    def random_normal(self, shape: Sequence[int], scale: float, seed: int) -> Array:
        """Normal values, of a key of their own."""
        sizes = checks.check_random(shape, scale, seed)
        key = mx.random.key(seed)
        values = mx.random.normal(sizes, dtype=self._dtype, scale=scale, key=key)
        mx.eval(values)  # else what it is made of would be held until it is used
        return values

    def random_words(self, shape: Sequence[int], seed: int) -> Array:
        """Random bytes, of a key of their own: MLX rounds greater integers to float32."""
        sizes = checks.check_random_words(shape, seed)
        count = 4 * math.prod(sizes)
        octets = mx.random.randint(0, 256, (count,), mx.uint8, key=mx.random.key(seed))
        words = mx.view(octets, mx.uint32).reshape(sizes)
        mx.eval(words)
        return words

    def copy(self, array: Array) -> Array:
        """A sum with 0; MLX shares memory where nothing is computed."""
        return array + 0

    def concat(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        """Arrays joined along an axis."""
        checks.check_concat(arrays, axis)
        return mx.concatenate(list(arrays), axis=axis)

    def take(self, array: Weight, rows: ArrayLike) -> Array:
        """Rows by int indices."""
        indices = checks.check_ints("take", "rows", rows, array.shape[0])
        at = mx.array(indices.astype(np.int32))
        if isinstance(array, QuantizedWeight):
            return quantized.rows(array, at, self._dtype)
        return mx.take(array, at, axis=0)

    # -- operations of models -------------------------------------------------------------------
    def linear(
        self, x: Array, weight: Weight, bias: Array | None = None, residual: Array | None = None
    ) -> Array:
        """x @ weight.T + bias + residual."""
        checks.check_linear(x, weight, bias, residual)
        if isinstance(weight, QuantizedWeight):
            out = quantized.product(x, weight)
            out = out if bias is None else out + bias
            return out if residual is None else residual + out
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

    def gelu_tanh(self, x: Array) -> Array:
        """GELU by a hyperbolic tangent, in float32; 0.5 (1 + tanh(y)) is sigmoid(2 y)."""
        wide = x.astype(mx.float32)
        twice = math.sqrt(8 / math.pi) * wide * (1 + 0.044715 * wide * wide)
        return (wide * mx.sigmoid(twice)).astype(x.dtype)

    def relu(self, x: Array) -> Array:
        """max(x, 0)."""
        return mx.maximum(x, 0)

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
        self,
        q: Array,
        k: Array,
        v: Array,
        lengths: Sequence[int],
        scale: float,
        key_lengths: Sequence[int] | None = None,
    ) -> Array:
        """Full attention inside each segment."""
        sizes = checks.check_segments(q, k, v, lengths, key_lengths)
        return attention.segment_attention(q, k, v, *sizes, scale, fused=self._fused)

    # -- the paged cache ------------------------------------------------------------------------
    def new_pools(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_pages: int,
        kv_bits: int | None = None,
    ) -> Pools:
        """Pools, allocated at once."""
        check_kv_bits(kv_bits, self.kv_bits)
        shape = pool_shape(num_layers, num_kv_heads, head_dim, num_pages)
        if kv_bits is not None:
            return eight_bit.new_pools(num_layers, shape)
        keys = [mx.zeros(shape, self._dtype) for _ in range(num_layers)]
        values = [mx.zeros(shape, self._dtype) for _ in range(num_layers)]
        mx.eval(keys, values)
        if self._write is not None and has_instances(keys[0]):
            return WriteThroughPools(keys, values)
        return PagedPools(keys, values)

    def grow_pools(self, pools: Pools, num_pages: int) -> None:
        """Make the pools larger."""
        if isinstance(pools, EightBitPools):
            grow_paged(pools, num_pages, _grown)
        else:
            grow_each(pools, num_pages, _grown)

    def append(self, pools: Pools, layer: int, step: Step, k: Array, v: Array) -> None:
        """Write k and v to `step.query_slots`, in place when the result is computed."""
        check_append(raw(pools), layer, step, k, v)
        if step.num_queries == 0:
            return
        at = self._on_device(step)
        if isinstance(pools, EightBitPools):
            eight_bit.append(pools, layer, at.query_places, k, v)
            return
        if self._write is not None and isinstance(pools, WriteThroughPools):
            self._write.append(pools, layer, at.query_slots, k, v)
            return
        page, row = at.query_places
        pools.keys[layer][page, :, row] = k
        pools.values[layer][page, :, row] = v

    def attention(self, q: Array, pools: Pools, layer: int, step: Step, scale: float) -> Array:
        """Attention over the live cells that each query may see."""
        arrays = raw(pools)
        check_attention(q, arrays, layer, step)
        if step.num_queries == 0:
            return q
        at = self._on_device(step)
        if step.num_cells == 0:
            return mx.zeros_like(q)
        if self._paged is None or not has_instances(q):
            keys, values = self._turned(arrays, layer, at), self._values(arrays, layer, at)
            return attention.paged_attention(q, keys, values, at.cells, scale, fused=self._fused)
        keys, values = arrays.keys[layer], arrays.values[layer]
        if isinstance(pools, EightBitPools):
            keys = eight_bit.paged(self._keys(pools, layer, at, slice(None)))
            values = eight_bit.paged(self._values(pools, layer, at))
            at = at.compact
        if not isinstance(pools, WriteThroughPools):
            return self._paged(q, keys, values, at.tiles, scale)[0]
        after = pools.after(layer)
        out, pools.last[layer] = self._paged(q, keys, values, at.tiles, scale, after)
        return out

    def attention_bytes(
        self,
        num_cells: int,
        num_queries: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        kv_bits: int | None = None,
    ) -> int:
        """Of plain operations, or of the shaders where attention goes through them."""
        sizes = (num_cells, num_queries, num_heads, num_kv_heads, head_dim)
        itemsize = self._dtype.size
        packed = kv_bits is not None
        if self._paged is None or not has_instances(mx.zeros(head_dim, self._dtype)):
            return attention.attention_bytes(*sizes, itemsize, packed=packed, fused=self._fused)
        return self._paged.attention_bytes(*sizes, itemsize, packed=packed)

    def attention_mass(self, q: Array, pools: Pools, layer: int, step: Step, scale: float) -> Array:
        """Attention probability of each cell, summed over queries and heads, float32."""
        check_attention(q, raw(pools), layer, step, "attention_mass")
        at = self._on_device(step)
        keys = self._turned(raw(pools), layer, at) if step.num_cells else None
        mass = attention.paged_mass(q, keys, step, at.cells, scale, fused=self._fused)
        if isinstance(pools, WriteThroughPools) and mass.size:
            pools.last[layer] = mass
        return mass

    def attention_weights(
        self, q: Array, pools: Pools, layer: int, step: Step, scale: float
    ) -> Array:
        """Attention probability of each head, query and cell, float32."""
        check_attention(q, raw(pools), layer, step, "attention_weights")
        at = self._on_device(step)
        keys = self._turned(raw(pools), layer, at) if step.num_cells else None
        weights = attention.paged_weights(q, keys, step, at.cells, scale)
        if isinstance(pools, WriteThroughPools) and weights.size:
            pools.last[layer] = weights
        return weights

    def migrate(self, pools: Pools, source: Slots, destination: Slots) -> None:
        """Gather the rows of all layers, then write them."""
        sources, destinations = check_migrate(raw(pools), source, destination)
        if len(sources) == 0:
            return
        if self._write is not None and isinstance(pools, WriteThroughPools):
            self._migrate_through(self._write, pools, sources, destinations)
            return
        if isinstance(pools, EightBitPools):
            self._migrate_packed(pools, sources, destinations)
            return
        moved = self._gather(pools, sources)
        # Computed now: a pending read of a pool would keep the writes from being in place.
        mx.eval(moved)
        page, row = (mx.array(x.astype(np.int32)) for x in np.divmod(destinations, PAGE_SIZE))
        for layer in reversed(range(len(pools.keys))):
            keys, values = moved.pop()
            pools.keys[layer][page, :, row] = keys
            pools.values[layer][page, :, row] = values
        mx.eval(pools.keys, pools.values)

    def _gather(self, pools: Pools, sources: NDArray[np.int64]) -> list[Array]:
        """Rows of keys and values of each layer, (num_rows, num_kv_heads, head_dim) each."""
        pairs = list(zip(pools.keys, pools.values, strict=True))
        if self._paged is not None and has_instances(pools.keys[0]):
            slots, nothing = mx.array(sources.astype(np.int32)), mx.zeros(1, mx.int32)
            return [self._paged.gathered(*pair, slots, nothing) for pair in pairs]
        page, row = (mx.array(x.astype(np.int32)) for x in np.divmod(sources, PAGE_SIZE))
        return [[array[page, :, row] for array in pair] for pair in pairs]

    def _migrate_packed(
        self,
        pools: EightBitPools,
        sources: NDArray[np.int64],
        destinations: NDArray[np.int64],
    ) -> None:
        """`migrate` of elements and scales."""
        moved = eight_bit.moved(pools, eight_bit.places(sources))
        mx.eval(moved)  # as above
        page, row = eight_bit.places(destinations)
        for arrays, rows in zip(pools.paged, moved, strict=True):
            for layer in range(len(arrays)):
                arrays[layer][page, :, row] = rows[layer]
        mx.eval(pools.paged)

    def _migrate_through(
        self,
        write: WriteThrough,
        pools: WriteThroughPools,
        sources: NDArray[np.int64],
        destinations: NDArray[np.int64],
    ) -> None:
        if self._paged is None:
            return
        slots, to = (mx.array(x.astype(np.int32)) for x in (sources, destinations))
        for layer, pair in enumerate(zip(pools.raw.keys, pools.raw.values, strict=True)):
            moved = self._paged.gathered(*pair, slots, pools.after(layer))
            write.scatter(pools, layer, to, moved)
        pools.settle()

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

    def _turned(self, pools: Pools, layer: int, at: DeviceStep) -> Array:
        """Turned keys of a step's cells, (num_kv_heads, num_cells, head_dim)."""
        return attention.turned_keys(
            lambda part: self._keys(pools, layer, at, part), at.cells, fused=self._fused
        )

    def _keys(self, pools: Pools, layer: int, at: DeviceStep, part: slice) -> Array:
        """Keys of a part of a step's cells, not turned, likewise."""
        if isinstance(pools, EightBitPools):
            return eight_bit.key_rows(pools, layer, at.cells, part, self._dtype)
        return attention.gather(pools.keys[layer], at.cells, part)

    def _values(self, pools: Pools, layer: int, at: DeviceStep) -> Array:
        """Values of all of them, likewise."""
        if isinstance(pools, EightBitPools):
            return eight_bit.value_rows(pools, layer, at.cells, self._dtype)
        return attention.gather(pools.values[layer], at.cells)

    def _on_device(self, step: Step) -> DeviceStep:
        """The step's arrays, made once for all layers of a pass."""
        if self._last_step is None or self._last_step.step is not step:
            self._last_step = DeviceStep(step)
        return self._last_step


def _prepare() -> None:
    """Make the worker thread's stream, and bound what MLX keeps of freed memory."""
    mx.synchronize(mx.default_stream(mx.default_device()))
    mx.set_cache_limit(CACHE_LIMIT if mx.metal.is_available() else CPU_CACHE_LIMIT)


def _grown(array: Array, more_pages: int) -> Array:
    larger = mx.concatenate([array, mx.zeros((more_pages, *array.shape[1:]), array.dtype)])
    mx.eval(larger)
    return larger
