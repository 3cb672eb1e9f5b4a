"""Layers that families share: weights with the one operation they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from omnitide.backend import Array, Backend, Matrix, Pools, Weight
from omnitide.quantized import QuantizedWeight
from omnitide.step import Step

Weights = Mapping[str, Weight]
"""Arrays by canonical tensor name; matrices may be quantised."""


@dataclass(frozen=True, slots=True)
class Linear:
    """x @ weight.T + bias; weight (out, in), an array or quantised, bias (out,) or None."""

    weight: Weight
    bias: Array | None = None

    @classmethod
    def read(cls, weights: Weights, name: str) -> Linear:
        """The layer stored as `<name>.weight` and, where there is one, `<name>.bias`."""
        return cls(weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    @property
    def matrix(self) -> Matrix:
        """As the backend's fused operations take it."""
        return self.weight, self.bias

    def __call__(self, backend: Backend, x: Array, residual: Array | None = None) -> Array:
        """x (..., in) -> (..., out), plus `residual` of that shape."""
        return backend.linear(x, self.weight, self.bias, residual)


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """Root-mean-square norm; weight (size,)."""

    weight: Array
    eps: float

    @classmethod
    def read(cls, weights: Weights, name: str, eps: float) -> RMSNorm:
        """The layer stored as `<name>.weight`."""
        return cls(weights[f"{name}.weight"], eps)

    def __call__(self, backend: Backend, x: Array) -> Array:
        """Same shape out."""
        return backend.rms_norm(x, self.weight, self.eps)

    def project(self, backend: Backend, x: Array, *layers: Linear) -> list[Array]:
        """Each layer's output for the norm of x."""
        return backend.project(x, self.weight, self.eps, [layer.matrix for layer in layers])


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Layer norm; weight and bias (size,)."""

    weight: Array
    bias: Array
    eps: float

    @classmethod
    def read(cls, weights: Weights, name: str, eps: float) -> LayerNorm:
        """The layer stored as `<name>.weight` and `<name>.bias`."""
        return cls(weights[f"{name}.weight"], weights[f"{name}.bias"], eps)

    def __call__(self, backend: Backend, x: Array) -> Array:
        """Same shape out."""
        return backend.layer_norm(x, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """x + down(silu(gate(n)) * up(n)), where n is the norm of x."""

    norm: RMSNorm
    gate: Linear
    up: Linear
    down: Linear

    @classmethod
    def read(cls, weights: Weights, name: str, norm: RMSNorm) -> GatedMLP:
        """The layer stored as `<name>.gate_proj`, `.up_proj` and `.down_proj`."""
        return cls(
            norm,
            Linear.read(weights, f"{name}.gate_proj"),
            Linear.read(weights, f"{name}.up_proj"),
            Linear.read(weights, f"{name}.down_proj"),
        )

    def __call__(self, backend: Backend, x: Array) -> Array:
        """Same shape out."""
        norm = self.norm
        gate, up, down = self.gate.matrix, self.up.matrix, self.down.matrix
        return backend.gated_mlp(x, norm.weight, norm.eps, gate, up, down)


def dense(backend: Backend, weight: Weight) -> Array:
    """A weight that is used as an array; a quantised one is made floats."""
    if isinstance(weight, QuantizedWeight):
        return backend.take(weight, np.arange(weight.shape[0]))
    return weight


def attend(backend: Backend, q: Array, pools: Pools, layer: int, step: Step, scale: float) -> Array:
    """`Backend.attention`, and the attention mass where the step asks for it.

    Every family's decoder goes through here, so that each policy runs with each of them and each
    can be watched. Changes `step.mass` if there is one.
    """
    if step.watch is not None:
        step.watch(backend, q, pools, layer, step, scale)
    if step.mass is not None:
        step.mass.add(backend.attention_mass(q, pools, layer, step, scale))
    return backend.attention(q, pools, layer, step, scale)
