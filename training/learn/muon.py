"""Muon: momentum whose matrix is made orthogonal, for all matrices of one shape at once.

The rule is that of torch.optim.Muon (K. Jordan and others, 2024), which takes matrices one by one;
with a hundred small ones the launches would cost more than the sums. Weights of more than two axes
count as matrices of their first axis against the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the Newton-Schulz iteration."""

ITERATIONS = 5


class Muon:
    """Trains matrices. `step` reads their gradients and leaves them as they are."""

    def __init__(
        self, matrices: Sequence[nn.Parameter], momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        """Group the matrices by shape; all momentum is zero.

        Args:
            matrices: Of two or more axes.
            momentum: Of the running mean; Nesterov's rule looks ahead by it.
            weight_decay: Part of a weight that goes with each step of learning rate 1.
        """
        self._momentum, self._decay = momentum, weight_decay
        groups: dict[tuple[int, int], list[nn.Parameter]] = {}
        for matrix in matrices:
            shape = (matrix.shape[0], math.prod(matrix.shape[1:]))
            groups.setdefault(shape, []).append(matrix)
        self._groups = list(groups.items())
        self._means = [
            torch.zeros(len(members), *shape, device=members[0].device)
            for shape, members in self._groups
        ]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step. Mutates the matrices."""
        for (shape, members), mean in zip(self._groups, self._means, strict=True):
            gradients = torch.stack([_gradient(member).view(shape) for member in members])
            mean.lerp_(gradients, 1 - self._momentum)
            update = orthogonal(gradients.lerp_(mean, self._momentum))
            scale = rate * math.sqrt(max(1.0, shape[0] / shape[1]))
            changes = [
                change.view_as(member)
                for change, member in zip(update.float().mul_(-scale), members, strict=True)
            ]
            torch._foreach_mul_(members, 1 - rate * self._decay)
            torch._foreach_add_(members, changes)

    def state(self) -> list[Tensor]:
        """The momentum, to be stored."""
        return self._means

    def load(self, state: Sequence[Any]) -> None:
        """Take up momentum that `state` gave for the same matrices."""
        for mean, stored in zip(self._means, state, strict=True):
            mean.copy_(stored)


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest matrices with singular values around one, (count, rows, columns), bfloat16."""
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.transpose(1, 2) if tall else x


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        raise ValueError("[muon] every matrix must have a gradient; run backward first")
    return parameter.grad
