"""The reference backend. Obvious code; matrix products go through BLAS."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omnitide.backend import Pools
from omnitide.backends import checks, host
from omnitide.backends.composed import Composed
from omnitide.backends.eight_bit import EightBitPools, grow_paged
from omnitide.backends.pools import (
    PagedPools,
    check_append,
    check_attention,
    check_kv_bits,
    check_migrate,
    grow_each,
    pool_shape,
)
from omnitide.backends.reference import attention, eight_bit, gelu
from omnitide.backends.reference.quantized import quantized_product
from omnitide.backends.weights import converted, read_tensors
from omnitide.backends.worker import Worker
from omnitide.dequantize import dequantize
from omnitide.pages import PAGE_SIZE, Slots
from omnitide.quantized import MODES, QuantizedWeight
from omnitide.step import Step

P = ParamSpec("P")
R = TypeVar("R")
Floats = NDArray[Any]


class ReferenceBackend(Composed):
    """`Backend` on NumPy arrays. Operations are described there."""

    name = "reference"
    quantized_modes = frozenset(MODES)
    unpacked_bytes = 1 << 27

    def __init__(self, dtype: str, device: str) -> None:
        self.dtype = dtype
        self.device = device
        self._dtype = np.dtype(dtype)
        self._worker = Worker("omnitide-reference")

    # -- arrays -------------------------------------------------------------------------------
    def asarray(self, values: ArrayLike) -> Floats:
        """A copy in the backend's dtype."""
        return np.array(values, self._dtype)

    def to_numpy(self, array: Floats) -> Floats:
        """A copy on the host."""
        return np.array(array)

    def read_safetensors(self, path: Path, names: Iterable[str]) -> dict[str, Floats]:
        """The named tensors, converted one at a time."""
        return {name: converted(values, self._dtype) for name, values in read_tensors(path, names)}

    def random_normal(self, shape: Sequence[int], scale: float, seed: int) -> Floats:
        """Normal values."""
        sizes = checks.check_random(shape, scale, seed)
        values: Floats = np.random.default_rng(seed).standard_normal(sizes, self._dtype.type)
        values *= self._dtype.type(scale)
        return values

    def random_words(self, shape: Sequence[int], seed: int) -> NDArray[np.uint32]:
        """Random bits."""
        sizes = checks.check_random_words(shape, seed)
        return np.random.default_rng(seed).integers(0, 1 << 32, sizes, np.uint32)

    def copy(self, array: Floats) -> Floats:
        """A copy."""
        return array.copy()

    def concat(self, arrays: Sequence[Floats], axis: int = 0) -> Floats:
        """Arrays joined along an axis."""
        checks.check_concat(arrays, axis)
        return np.concatenate(arrays, axis=axis)

    def take(self, array: Floats | QuantizedWeight, rows: ArrayLike) -> Floats:
        """Rows by int indices."""
        indices = checks.check_ints("take", "rows", rows, array.shape[0])
        if isinstance(array, QuantizedWeight):
            return dequantize(array, self._dtype, indices)
        return array[indices]

    # -- operations of models -------------------------------------------------------------------
    def linear(
        self,
        x: Floats,
        weight: Floats | QuantizedWeight,
        bias: Floats | None = None,
        residual: Floats | None = None,
    ) -> Floats:
        """x @ weight.T + bias + residual."""
        checks.check_linear(x, weight, bias, residual)
        # One matrix product, not one for each leading index.
        flat = x.reshape(-1, x.shape[-1])
        out: Floats = (
            quantized_product(flat, weight)
            if isinstance(weight, QuantizedWeight)
            else flat @ weight.T
        )
        if bias is not None:
            out += bias
        out = out.reshape(*x.shape[:-1], weight.shape[0])
        if residual is not None:
            out += residual
        return out

    def rms_norm(self, x: Floats, weight: Floats, eps: float) -> Floats:
        """x / sqrt(mean(x^2) + eps) * weight."""
        checks.check_norm("rms_norm", x, weight)
        square = np.mean(x * x, axis=-1, keepdims=True)
        out: Floats = x / np.sqrt(square + eps) * weight
        return out

    def layer_norm(self, x: Floats, weight: Floats, bias: Floats, eps: float) -> Floats:
        """(x - mean) / sqrt(variance + eps) * weight + bias."""
        checks.check_norm("layer_norm", x, weight, bias)
        centred = x - np.mean(x, axis=-1, keepdims=True)
        variance = np.mean(centred * centred, axis=-1, keepdims=True)
        out: Floats = centred / np.sqrt(variance + eps) * weight + bias
        return out

    def swiglu(self, gate: Floats, up: Floats) -> Floats:
        """gate / (1 + exp(-gate)) * up."""
        checks.check_shape("swiglu", "up", up, *gate.shape)
        # Far below 0 the exponential overflows, and gate / inf is the 0 that is right.
        out: Floats = np.negative(gate)
        with np.errstate(over="ignore"):
            np.exp(out, out=out)
        out += 1
        np.divide(gate, out, out=out)
        out *= up
        return out

    def gelu(self, x: Floats) -> Floats:
        """Exact GELU."""
        return gelu.gelu(x)

    def gelu_tanh(self, x: Floats) -> Floats:
        """GELU by a hyperbolic tangent."""
        return gelu.gelu_tanh(x)

    def relu(self, x: Floats) -> Floats:
        """max(x, 0)."""
        out: Floats = np.maximum(x, 0)
        return out

    def argmax(self, logits: Floats) -> int:
        """Index of the greatest; NumPy takes the first of equals."""
        checks.check_logits("argmax", logits)
        return -1 if np.isnan(logits).any() else int(logits.argmax())

    def log_softmax(self, logits: Floats) -> Floats:
        """Log-probabilities."""
        checks.check_logits("log_softmax", logits)
        shifted = logits - logits.max()
        out: Floats = shifted - np.log(np.exp(shifted).sum())
        return out

    def rotate(self, x: Floats, cos: ArrayLike, sin: ArrayLike) -> Floats:
        """Rotate the pairs (i, i + head_dim / 2)."""
        cosines, sines = np.asarray(cos), np.asarray(sin)
        checks.check_rotate(x, cosines, sines)
        return attention.rotate(x, cosines, sines)

    def segment_attention(
        self,
        q: Floats,
        k: Floats,
        v: Floats,
        lengths: Sequence[int],
        scale: float,
        key_lengths: Sequence[int] | None = None,
    ) -> Floats:
        """Full attention inside each segment."""
        sizes = checks.check_segments(q, k, v, lengths, key_lengths)
        return attention.segment_attention(q, k, v, *sizes, scale)

    # -- the paged cache ------------------------------------------------------------------------
    def new_pools(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_pages: int,
        kv_bits: int | None = None,
    ) -> Pools:
        """Pools with undefined contents."""
        check_kv_bits(kv_bits, self.kv_bits)
        shape = pool_shape(num_layers, num_kv_heads, head_dim, num_pages)
        if kv_bits is not None:
            return eight_bit.new_pools(num_layers, shape)
        keys = [np.empty(shape, self._dtype) for _ in range(num_layers)]
        values = [np.empty(shape, self._dtype) for _ in range(num_layers)]
        return PagedPools(keys, values)

    def grow_pools(self, pools: Pools, num_pages: int) -> None:
        """Make the pools larger."""
        if isinstance(pools, EightBitPools):
            grow_paged(pools, num_pages, _grown)
        else:
            grow_each(pools, num_pages, _grown)

    def append(self, pools: Pools, layer: int, step: Step, k: Floats, v: Floats) -> None:
        """Write k and v to `step.query_slots`."""
        check_append(pools, layer, step, k, v)
        if isinstance(pools, EightBitPools):
            eight_bit.append(pools, layer, step, k, v)
            return
        page, row = np.divmod(step.query_slots, PAGE_SIZE)
        pools.keys[layer][page, :, row] = k
        pools.values[layer][page, :, row] = v

    def attention(self, q: Floats, pools: Pools, layer: int, step: Step, scale: float) -> Floats:
        """Attention over the live cells that each query may see."""
        check_attention(q, pools, layer, step)
        keys, values = self._keys(pools, layer, step), self._values(pools, layer, step)
        return attention.paged_attention(q, keys, values, step, scale)

    def attention_bytes(
        self,
        num_cells: int,
        num_queries: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        kv_bits: int | None = None,
    ) -> int:
        """Of gathered cells and a block of scores. Packed ones are unpacked before any score."""
        group = num_heads // num_kv_heads
        sizes = (num_cells, num_queries, num_kv_heads, group, head_dim, self._dtype.itemsize)
        return attention.attention_bytes(*sizes)

    def attention_mass(
        self, q: Floats, pools: Pools, layer: int, step: Step, scale: float
    ) -> Floats:
        """Attention probability of each cell, summed over queries and heads."""
        check_attention(q, pools, layer, step, "attention_mass")
        return attention.paged_mass(q, self._keys(pools, layer, step), step, scale)

    def attention_weights(
        self, q: Floats, pools: Pools, layer: int, step: Step, scale: float
    ) -> Floats:
        """Attention probability of each head, query and cell."""
        check_attention(q, pools, layer, step, "attention_weights")
        return attention.paged_weights(q, self._keys(pools, layer, step), step, scale)

    def migrate(self, pools: Pools, source: Slots, destination: Slots) -> None:
        """Gather the rows of all layers, then write them."""
        sources, destinations = check_migrate(pools, source, destination)
        page, row = np.divmod(sources, PAGE_SIZE)
        arrays = [*pools.keys, *pools.values]
        if isinstance(pools, EightBitPools):
            arrays += [*pools.key_scales, *pools.value_scales]
        moved = [array[page, :, row] for array in arrays]
        page, row = np.divmod(destinations, PAGE_SIZE)
        for array, rows in zip(arrays, moved, strict=True):
            array[page, :, row] = rows

    def _keys(self, pools: Pools, layer: int, step: Step) -> Floats:
        """A copy of the keys of a step's cells, floats (num_cells, kv_head, head_dim)."""
        if isinstance(pools, EightBitPools):
            return eight_bit.key_rows(pools, layer, step, self._dtype)
        return attention.gather(pools.keys[layer], step.slots)

    def _values(self, pools: Pools, layer: int, step: Step) -> Floats:
        """Their values, likewise."""
        if isinstance(pools, EightBitPools):
            return eight_bit.value_rows(pools, layer, step, self._dtype)
        return attention.gather(pools.values[layer], step.slots)

    # -- running --------------------------------------------------------------------------------
    def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` on the worker thread, so that an interrupt can't cut it short."""
        return self._worker.run(function, *args, **kwargs)

    def synchronize(self, *arrays: Floats) -> None:
        """NumPy's work is done when a call returns."""

    def timed(self, function: Callable[[int], Any], repeat: int) -> list[float]:
        """Seconds of each call, by the clock."""
        checks.check_repeat(repeat)
        return host.wall_times(function, repeat, self.synchronize)

    def memory_free(self) -> int:
        """Free bytes of main memory."""
        return host.memory_free()

    def peak_memory(self) -> int:
        """Peak resident bytes of the process."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _grown(array: Floats, more_pages: int) -> Floats:
    larger = np.empty((array.shape[0] + more_pages, *array.shape[1:]), array.dtype)
    larger[: array.shape[0]] = array
    return larger
