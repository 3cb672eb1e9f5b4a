"""Fused operations made of the plain ones, for backends without kernels of their own for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omnitide.backend import Array, Backend, Matrix, Pools
from omnitide.backends import eight_bit
from omnitide.step import PREFILL_STEP, Step


class Composed:
    """A mixin: fused operations in terms of the plain ones, and passes that just run."""

    prefill_step = PREFILL_STEP
    pool_arrays = 2
    in_main_memory = True
    kept_bytes = 0
    keeps_passes = False
    unpacked_bytes = 0
    kv_bits = frozenset({eight_bit.BITS})

    def project(
        self: Backend, x: Array, norm_weight: Array, eps: float, matrices: Sequence[Matrix]
    ) -> list[Array]:
        """The norm, then each matrix."""
        normed = self.rms_norm(x, norm_weight, eps)
        return [self.linear(normed, weight, bias) for weight, bias in matrices]

    def gated_mlp(
        self: Backend,
        x: Array,
        norm_weight: Array,
        eps: float,
        gate: Matrix,
        up: Matrix,
        down: Matrix,
    ) -> Array:
        """The norm, two matrices, their product, the third matrix, the sum."""
        normed = self.rms_norm(x, norm_weight, eps)
        inner = self.swiglu(self.linear(normed, *gate), self.linear(normed, *up))
        return self.linear(inner, *down, residual=x)

    def pool_scratch_bytes(
        self, num_kv_heads: int, head_dim: int, num_pages: int, kv_bits: int | None = None
    ) -> int:
        """None: what attention reads is made while it attends."""
        return 0

    def prepare(self, pools: Pools, step: Step) -> None:
        """The tiles, which the step keeps."""
        _ = step.tiles

    def forward_pass(
        self: Backend,
        forward: Callable[[Array, Pools, Step], Array],
        x: Array,
        pools: Pools,
        step: Step,
    ) -> Array:
        """The pass itself, computed when this returns."""
        out = forward(x, pools, step)
        self.synchronize(out)
        return out
