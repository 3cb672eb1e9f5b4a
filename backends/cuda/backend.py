"""The CUDA backend.

This file checks arguments and hands them on. Which attention kernel runs is chosen in
`attention.py`, which matrix product in `matrices.py`; pools, steps and recorded passes are in
`paged.py`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

from omnitide.backend import Array, Matrix, Pools, Weight
from omnitide.backends import checks, eight_bit
from omnitide.backends.cuda.arrays import copied, cp
from omnitide.backends.cuda.attention import Attention
from omnitide.backends.cuda.cache_writes import CacheWrites
from omnitide.backends.cuda.clock import timed
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.device import Device
from omnitide.backends.cuda.eight_bit import EightBitRows
from omnitide.backends.cuda.eight_bit_pools import Scratch
from omnitide.backends.cuda.elementwise import Elementwise
from omnitide.backends.cuda.matrices import Matrices
from omnitide.backends.cuda.memory import enough_memory
from omnitide.backends.cuda.norms import Norms
from omnitide.backends.cuda.paged import PagedCache
from omnitide.backends.cuda.sampling import Sampling
from omnitide.backends.pools import (
    check_attention,
    check_kv_bits,
    check_migrate,
    check_queries,
    check_rows,
    pool_shape,
)
from omnitide.backends.reference.attention import paged_weights
from omnitide.backends.weights import converted, read_tensors
from omnitide.backends.worker import Worker
from omnitide.pages import PAGE_SIZE, Slots
from omnitide.quantized import MODES, QuantizedWeight
from omnitide.step import Step

P = ParamSpec("P")
R = TypeVar("R")

RANDOM_AT_ONCE = 1 << 26
"""Random values made at a time; 256 MiB of four bytes each."""


class CudaBackend:
    """`Backend` on CuPy arrays. Operations are described there.

    Work goes to one stream, which belongs to the backend's thread: call `run` from any thread, and
    everything else inside a function given to `run`.
    """

    name = "cuda"
    prefill_step = 4096
    quantized_modes = frozenset(MODES)
    pool_arrays = 3
    in_main_memory = False
    kept_bytes = 0
    keeps_passes = True
    unpacked_bytes = 0
    kv_bits = frozenset({eight_bit.BITS})

    def __init__(self, dtype: str, device: Device) -> None:
        self.dtype = dtype
        self.device = str(device)
        self._dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        self._peak = 0
        self._worker = Worker("omnitide-cuda")
        self._worker.run(self._prepare, device)

    def _prepare(self, device: Device) -> None:
        """On the backend's thread: take a stream, and make what works on it."""
        cp.cuda.Stream(non_blocking=True).use()
        self._compiler = compiler = Compiler()
        norms, elementwise = Norms(compiler), Elementwise(compiler)
        self._norms, self._elementwise = norms, elementwise
        self._sampling = Sampling(compiler)
        self._matrices = Matrices(compiler, device.multiprocessors, norms, elementwise)
        self._attention = Attention(compiler, device)
        self._cache = PagedCache(CacheWrites(compiler), EightBitRows(compiler), self._attention)

    # -- arrays -------------------------------------------------------------------------------
    def asarray(self, values: ArrayLike) -> Array:
        """An array in the backend's dtype."""
        return cp.asarray(np.asarray(values, np.float32).astype(self._dtype))

    def to_numpy(self, array: Array) -> NDArray[Any]:
        """A float32 copy on the host."""
        host: NDArray[Any] = cp.asnumpy(array)
        return host.astype(np.float32)

    def read_safetensors(self, path: Path, names: Iterable[str]) -> dict[str, Array]:
        """The named tensors, read and converted one at a time."""
        return {
            name: cp.asarray(converted(values, self._dtype))
            for name, values in read_tensors(path, names)
        }

    def random_normal(self, shape: Sequence[int], scale: float, seed: int) -> Array:
        """Normal values, made slice by slice so that no whole array is held in float32."""
        sizes = checks.check_random(shape, scale, seed)
        out = cp.empty(sizes, self._dtype)
        flat, random = out.reshape(-1), cp.random.default_rng(seed)
        for start in range(0, flat.size, RANDOM_AT_ONCE):
            part = flat[start : start + RANDOM_AT_ONCE]
            part[...] = random.standard_normal(part.size, dtype=np.float32) * np.float32(scale)
        return out

    def random_words(self, shape: Sequence[int], seed: int) -> Array:
        """Random bits of the host, slice by slice: CuPy gives no number of 32 bits at once."""
        sizes = checks.check_random_words(shape, seed)
        out = cp.empty(sizes, np.uint32)
        flat, random = out.reshape(-1), np.random.default_rng(seed)
        for start in range(0, flat.size, RANDOM_AT_ONCE):
            part = flat[start : start + RANDOM_AT_ONCE]
            part[...] = cp.asarray(random.integers(0, 1 << 32, part.size, np.uint32))
        return out

    def copy(self, array: Array) -> Array:
        """A copy by the device's copy engine."""
        # `ascontiguousarray` would give an array without axes one.
        return copied(array if array.flags.c_contiguous else cp.ascontiguousarray(array))

    def concat(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        """Arrays joined along an axis."""
        checks.check_concat(arrays, axis)
        return cp.concatenate(list(arrays), axis=axis)

    def take(self, array: Weight, rows: ArrayLike) -> Array:
        """Rows by int indices."""
        checked = checks.check_ints("take", "rows", rows, array.shape[0])
        indices = cp.asarray(checked.astype(np.int32))
        if isinstance(array, QuantizedWeight):
            return self._matrices.take(array, indices, self._dtype)
        return self._elementwise.take(cp.ascontiguousarray(array), indices)

    # -- operations of models -------------------------------------------------------------------
    def linear(
        self, x: Array, weight: Weight, bias: Array | None = None, residual: Array | None = None
    ) -> Array:
        """x @ weight.T + bias + residual."""
        checks.check_linear(x, weight, bias, residual)
        return self._matrices.linear(x, weight, bias, residual)

    def project(
        self, x: Array, norm_weight: Array, eps: float, matrices: Sequence[Matrix]
    ) -> list[Array]:
        """`linear` of the norm of x by each matrix."""
        checks.check_norm("rms_norm", x, norm_weight)
        for weight, bias in matrices:
            checks.check_linear(x, weight, bias)
        return self._matrices.project(x, norm_weight, eps, matrices)

    def gated_mlp(
        self, x: Array, norm_weight: Array, eps: float, gate: Matrix, up: Matrix, down: Matrix
    ) -> Array:
        """x + down(swiglu(gate(n), up(n))), n the norm of x."""
        checks.check_gated_mlp(x, norm_weight, gate, up, down)
        return self._matrices.gated_mlp(x, norm_weight, eps, gate, up, down)

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """Root-mean-square norm, accumulated in float32."""
        checks.check_norm("rms_norm", x, weight)
        return self._norms.rms_norm(cp.ascontiguousarray(x), weight, eps)

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> Array:
        """Layer norm, accumulated in float32."""
        checks.check_norm("layer_norm", x, weight, bias)
        return self._norms.layer_norm(cp.ascontiguousarray(x), weight, bias, eps)

    def swiglu(self, gate: Array, up: Array) -> Array:
        """gate * sigmoid(gate) * up, in float32."""
        checks.check_shape("swiglu", "up", up, *gate.shape)
        return self._elementwise.swiglu(cp.ascontiguousarray(gate), cp.ascontiguousarray(up))

    def gelu(self, x: Array) -> Array:
        """Exact GELU, in float32."""
        return self._elementwise.gelu(cp.ascontiguousarray(x))

    def gelu_tanh(self, x: Array) -> Array:
        """GELU by a hyperbolic tangent, in float32."""
        return self._elementwise.gelu_tanh(cp.ascontiguousarray(x))

    def relu(self, x: Array) -> Array:
        """max(x, 0)."""
        return self._elementwise.relu(cp.ascontiguousarray(x))

    def argmax(self, logits: Array) -> int:
        """Index of the greatest; one number is read."""
        checks.check_logits("argmax", logits)
        return int(self._sampling.argmax(cp.ascontiguousarray(logits)).item())

    def log_softmax(self, logits: Array) -> Array:
        """Log-probabilities, float32."""
        checks.check_logits("log_softmax", logits)
        return self._sampling.log_softmax(cp.ascontiguousarray(logits))

    def rotate(self, x: Array, cos: ArrayLike, sin: ArrayLike) -> Array:
        """Rotate the pairs (i, i + head_dim / 2), in float32."""
        cosines, sines = np.asarray(cos, np.float32), np.asarray(sin, np.float32)
        checks.check_rotate(x, cosines, sines)
        return self._elementwise.rotate(
            cp.ascontiguousarray(x), cp.asarray(cosines), cp.asarray(sines)
        )

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
        return self._attention.segments(q, k, v, *sizes, scale)

    # -- the paged cache ------------------------------------------------------------------------
    def new_pools(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_pages: int,
        kv_bits: int | None = None,
    ) -> Pools:
        """Pools, allocated at once: keys, values and turned keys, or rows of 8 bits and scratch."""
        check_kv_bits(kv_bits, self.kv_bits)
        shape = pool_shape(num_layers, num_kv_heads, head_dim, num_pages)
        return self._cache.new_pools(num_layers, shape, self._dtype, kv_bits)

    def pool_scratch_bytes(
        self, num_kv_heads: int, head_dim: int, num_pages: int, kv_bits: int | None = None
    ) -> int:
        """What packed rows are made wide in, with the angles that turn them."""
        shape = (num_pages, num_kv_heads, PAGE_SIZE, head_dim)
        return 0 if kv_bits is None else Scratch.bytes_for(shape, self._dtype)

    def grow_pools(self, pools: Any, num_pages: int) -> None:
        """Make the pools larger."""
        self._cache.grow(pools, num_pages)

    def append(self, pools: Any, layer: int, step: Step, k: Array, v: Array) -> None:
        """Write k and v to `step.query_slots`."""
        check_rows(pools, layer, step, k, v)
        self._cache.append(pools, layer, step, k, v)

    def attention(self, q: Array, pools: Any, layer: int, step: Step, scale: float) -> Array:
        """Attention over the live cells that each query may see."""
        check_queries(q, pools, layer, step)
        return self._cache.attend(q, pools, layer, step, scale) if step.num_queries else q

    def attention_bytes(
        self,
        num_cells: int,
        num_queries: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        kv_bits: int | None = None,
    ) -> int:
        """Of the step on the device, and of parts that are joined."""
        sizes = (num_cells, num_queries, num_heads, num_kv_heads, head_dim)
        return self._attention.attention_bytes(*sizes, self._dtype.itemsize)

    def attention_mass(self, q: Array, pools: Any, layer: int, step: Step, scale: float) -> Array:
        """Attention probability of each cell, summed over queries and heads, float32."""
        check_queries(q, pools, layer, step, "attention_mass")
        return self._cache.mass(q, pools, layer, step, scale)

    def attention_weights(
        self, q: Array, pools: Any, layer: int, step: Step, scale: float
    ) -> Array:
        """Attention probability of each head, query and cell, float32.

        Computed by the host, from the pages that hold a cell: whoever looks at weights one by one
        reads them there.
        """
        check_attention(q, pools, layer, step, "attention_weights")
        pages, place = np.unique(step.slots // PAGE_SIZE, return_inverse=True)
        keys = self._cache.host_keys(pools, layer, pages)
        rows = keys[place, :, step.slots % PAGE_SIZE]
        weights = paged_weights(self.to_numpy(q), rows, step, scale)
        return cp.asarray(weights)

    def migrate(self, pools: Any, source: Slots, destination: Slots) -> None:
        """Copy rows of all layers."""
        sources, destinations = check_migrate(pools, source, destination)
        if len(sources):
            self._cache.migrate(pools, sources, destinations)

    # -- running --------------------------------------------------------------------------------
    def prepare(self, pools: Any, step: Step) -> None:
        """Check a step and pack its words."""
        self._cache.prepare(pools, step)

    def forward_pass(
        self, forward: Callable[[Array, Pools, Step], Array], x: Array, pools: Any, step: Step
    ) -> Array:
        """The pass, recorded when its kind comes again and replayed from then on."""
        return self._cache.forward_pass(forward, x, pools, step)

    def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` on the backend's thread. Lack of memory is a `BackendError`."""

        def call() -> R:
            with enough_memory("cuda"):
                return function(*args, **kwargs)

        return self._worker.run(call)

    def synchronize(self, *arrays: Array) -> None:
        """Wait for all work of the backend's stream."""
        cp.cuda.get_current_stream().synchronize()

    def timed(self, function: Callable[[int], Any], repeat: int) -> list[float]:
        """Seconds of each call by the device's clock."""
        checks.check_repeat(repeat)
        return timed(self._compiler, function, repeat)

    def memory_free(self) -> int:
        """Free bytes of the device, once what CuPy holds of freed memory is given back."""
        self._cache.forget()
        gc.collect()  # recorded passes and what they were recorded from refer to each other
        cp.get_default_memory_pool().free_all_blocks()
        return int(cp.cuda.runtime.memGetInfo()[0])

    def peak_memory(self) -> int:
        """Most bytes that CuPy's pool has held, without what recorded passes work in."""
        self._peak = max(self._peak, int(cp.get_default_memory_pool().total_bytes()))
        return self._peak
