"""What a backend must provide. The registry that finds one is `omnitide.backends`.

Importing this module imports no array library. Models are written once against `Backend`; beside
its methods they may use on arrays only what NumPy, MLX and CuPy share: arithmetic operators,
`.shape`, `.reshape(shape)`, `.transpose(*axes)`, `.mean(axis=)` and indexing by slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from numpy.typing import ArrayLike, NDArray

from omnitide.pages import Slots
from omnitide.quantized import QuantizedWeight
from omnitide.step import Step

Array = Any
"""An array of the backend's own library."""

Weight = Array | QuantizedWeight
"""A matrix (out, in): an array, or packed in few bits with its arrays on the backend."""

Matrix = tuple[Weight, Array | None]
"""Weight (out, in) and bias (out,) of a linear layer."""

P = ParamSpec("P")
R = TypeVar("R")


class Pools(Protocol):
    """K and V of every layer: per layer two arrays `[page][kv_head][PAGE_SIZE][head_dim]`.

    Keys are un-rotated. A slot that no live cell owns may hold anything, NaN included.
    """

    @property
    def keys(self) -> list[Array]:
        """Keys, one array a layer."""
        ...

    @property
    def values(self) -> list[Array]:
        """Values, one array a layer."""
        ...

    @property
    def num_pages(self) -> int:
        """Pages of each array."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        ...


class Backend(Protocol):
    """Array operations and the paged cache, on one device and in one dtype.

    Errors: wrong shapes raise `ValueError` with op, rule and actual value, before anything changes.
    """

    name: str
    dtype: str  # of weights, activations and pools: "float32", "float64", "float16", "bfloat16"
    device: str  # in words
    prefill_step: int  # most tokens of one forward pass; longer units are prefilled in pieces
    quantized_modes: frozenset[str]  # modes of `QuantizedWeight` that it computes with
    unpacked_bytes: int  # most that a model's quantised matrices may take, kept as floats; 0: never
    kv_bits: frozenset[int]  # of packed keys and values, beside its dtype
    pool_arrays: int  # of a layer: keys, values, and turned keys where it keeps them
    in_main_memory: bool  # whether its arrays lie where the host's do
    kept_bytes: int  # of freed memory that it keeps for later, at most, even if others want it
    keeps_passes: bool  # whether memory of passes is kept for their like, beside that of another

    # -- arrays -------------------------------------------------------------------------------
    def asarray(self, values: ArrayLike) -> Array:
        """A float array in the backend's dtype."""
        ...

    def to_numpy(self, array: Array) -> NDArray[Any]:
        """Values on the host: float32, or float64 if that is the array's dtype."""
        ...

    def read_safetensors(self, path: Path, names: Iterable[str]) -> dict[str, Array]:
        """The named tensors of a safetensors file: floats in the backend's dtype.

        uint32 and uint8, the parts of quantised matrices, stay as they are.
        """
        ...

    def random_normal(self, shape: Sequence[int], scale: float, seed: int) -> Array:
        """Independent normal values of mean 0 and deviation `scale`, in the backend's dtype.

        Made on the device, without a copy on the host. Equal arguments give equal values on one
        backend and version of its library; backends differ.
        """
        ...

    def random_words(self, shape: Sequence[int], seed: int) -> Array:
        """uint32 with every bit random, made as `random_normal` makes its values."""
        ...

    def copy(self, array: Array) -> Array:
        """Equal values at another place in memory, by the fastest copy that the device has."""
        ...

    def concat(self, arrays: Sequence[Array], axis: int = 0) -> Array:
        """Arrays joined along an axis."""
        ...

    def take(self, array: Weight, rows: ArrayLike) -> Array:
        """Rows of an array by int indices (host), shape (num_rows, ...).

        Of a `QuantizedWeight`, the rows dequantised.
        """
        ...

    # -- operations of models -------------------------------------------------------------------
    def linear(
        self, x: Array, weight: Weight, bias: Array | None = None, residual: Array | None = None
    ) -> Array:
        """x @ weight.T + bias + residual.

        x (..., in), weight (out, in), bias (out,), residual (..., out).
        """
        ...

    def project(
        self, x: Array, norm_weight: Array, eps: float, matrices: Sequence[Matrix]
    ) -> list[Array]:
        """`linear` of `rms_norm(x, norm_weight, eps)` by each matrix.

        One operation, because a device may read x and launch once for all of them.
        """
        ...

    def gated_mlp(
        self, x: Array, norm_weight: Array, eps: float, gate: Matrix, up: Matrix, down: Matrix
    ) -> Array:
        """x + down(swiglu(gate(n), up(n))), where n is `rms_norm(x, norm_weight, eps)`."""
        ...

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """Root-mean-square norm over the last axis, accumulated in float32 at least."""
        ...

    def layer_norm(self, x: Array, weight: Array, bias: Array, eps: float) -> Array:
        """Layer norm over the last axis, accumulated in float32 at least."""
        ...

    def swiglu(self, gate: Array, up: Array) -> Array:
        """silu(gate) * up."""
        ...

    def gelu(self, x: Array) -> Array:
        """Exact GELU (the error function's)."""
        ...

    def gelu_tanh(self, x: Array) -> Array:
        """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), an approximation of GELU."""
        ...

    def relu(self, x: Array) -> Array:
        """max(x, 0)."""
        ...

    def argmax(self, logits: Array) -> int:
        """Index of the greatest of logits (num_logits,), the lowest of equals; -1 if any is NaN."""
        ...

    def log_softmax(self, logits: Array) -> Array:
        """Log-probabilities of logits (num_logits,), computed and returned in float32 at least."""
        ...

    def rotate(self, x: Array, cos: ArrayLike, sin: ArrayLike) -> Array:
        """Rotate the pairs (i, i + head_dim / 2) of each head.

        x (num_tokens, num_heads, head_dim); cos, sin (num_tokens, head_dim / 2), float32, host.
        Computed in float32 at least.
        """
        ...

    def segment_attention(
        self,
        q: Array,
        k: Array,
        v: Array,
        lengths: Sequence[int],
        scale: float,
        key_lengths: Sequence[int] | None = None,
    ) -> Array:
        """Full attention inside each of consecutive segments, none across them (encoders).

        Args:
            q: (num_tokens, num_heads, head_dim).
            k, v: (num_keys, num_heads, head_dim).
            lengths: Tokens of each segment, at least 1; they add up to num_tokens.
            scale: Factor of the scores.
            key_lengths: Keys of each segment, at least 1; they add up to num_keys. None: `lengths`.

        Returns:
            The shape of q.
        """
        ...

    # -- the paged cache ------------------------------------------------------------------------
    def new_pools(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        num_pages: int,
        kv_bits: int | None = None,
    ) -> Pools:
        """Pools with undefined contents.

        `kv_bits`, one of the backend's own, packs keys and values; None keeps its dtype.
        """
        ...

    def pool_scratch_bytes(
        self, num_kv_heads: int, head_dim: int, num_pages: int, kv_bits: int | None = None
    ) -> int:
        """Bytes that such pools hold for all their layers together, beside what `nbytes` counts."""
        ...

    def grow_pools(self, pools: Pools, num_pages: int) -> None:
        """Make the pools larger; contents stay. Changes `pools`."""
        ...

    def append(self, pools: Pools, layer: int, step: Step, k: Array, v: Array) -> None:
        """Write k, v (num_queries, num_kv_heads, head_dim), un-rotated, to `step.query_slots`.

        Changes `pools`.
        """
        ...

    def attention(self, q: Array, pools: Pools, layer: int, step: Step, scale: float) -> Array:
        """Attention of new tokens over the live cells they may see.

        q (num_queries, num_heads, head_dim), un-rotated; rotated here, as the keys are. Query head
        h reads KV head h // (num_heads / num_kv_heads). Rows of dead slots are never multiplied
        by. A query that sees nothing gives 0. Same shape out.
        """
        ...

    def attention_mass(self, q: Array, pools: Pools, layer: int, step: Step, scale: float) -> Array:
        """Attention probability that each cell receives, summed over queries and heads.

        The arguments are those of `attention`, which does not give it: the scores are computed a
        second time, for the policies that ask for the mass. A query adds the number of heads in
        all, or 0 if it sees nothing. Shape (num_cells,); float32 at least.
        """
        ...

    def attention_weights(
        self, q: Array, pools: Pools, layer: int, step: Step, scale: float
    ) -> Array:
        """Attention probability of each head, query and cell.

        The arguments are those of `attention`, which does not give it: the scores are computed a
        second time, for those who look at attention. A step with few queries bounds the memory.
        A query's probabilities add up to 1, or are all 0 if it sees nothing. Shape (num_heads,
        num_queries, num_cells); float32 at least.
        """
        ...

    def attention_bytes(
        self,
        num_cells: int,
        num_queries: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        kv_bits: int | None = None,
    ) -> int:
        """Bytes that `attention` of such sizes holds at most, and a pass for the sake of it.

        Beside the pools, and beside what is as large as the states of the new tokens, which
        models count: `omnitide.models.outline`.
        """
        ...

    def migrate(self, pools: Pools, source: Slots, destination: Slots) -> None:
        """Copy rows `source` to rows `destination` (int32, pairwise) in every layer.

        All rows are gathered before any is written. Exact. Changes `pools`.
        """
        ...

    # -- running --------------------------------------------------------------------------------
    def prepare(self, pools: Pools, step: Step) -> None:
        """Work out what the host has to know for a pass of `step`, while the device is busy.

        For a step that is likely to come next over these pools; it may be copied to the device.
        Nothing is computed there, and a pass that was not prepared gives the same.
        """
        ...

    def forward_pass(
        self, forward: Callable[[Array, Pools, Step], Array], x: Array, pools: Pools, step: Step
    ) -> Array:
        """`forward(x, pools, step)`, x (num_queries, hidden_size); what it returns.

        A backend may record the pass and replay it for later steps of the same shape. So `forward`
        must do the same operations for equally many queries, whatever the step's contents. The
        device may still be at work when this returns; what is asked of the backend afterwards comes
        after it.
        """
        ...

    def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `function` on the thread that owns the backend's arrays and wait for it.

        If the waiting thread is interrupted, the call is waited for all the same (a device can't
        be stopped half way), then the interrupt is raised.
        """
        ...

    def synchronize(self, *arrays: Array) -> None:
        """Wait until these arrays, and all work before, are done."""
        ...

    def timed(self, function: Callable[[int], Any], repeat: int) -> list[float]:
        """Seconds that each of the calls `function(0)` to `function(repeat - 1)` takes the device.

        A call ends when the work that it has begun is done; what it returns, an array, a list of
        arrays or None, belongs to it. A device with a clock of its own leaves out the host's time
        between launches, by letting calls queue up; elsewhere it is the host's clock around call
        and `synchronize`. Nothing is called beforehand to warm up.
        """
        ...

    def memory_free(self) -> int:
        """Bytes that can still be allocated.

        What the backend holds of freed memory is given back first, so that others may have it.
        """
        ...

    def peak_memory(self) -> int:
        """Most bytes held so far: of the device where it can say, else of the process."""
        ...
