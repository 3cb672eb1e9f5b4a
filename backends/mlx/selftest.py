"""What the MLX backend gives on this machine, compared with the NumPy reference in float64.

`compare` needs no Metal: it takes whatever attention the backend runs. Everything is random, seeded
and small; every dead row of the pools is NaN, so that whatever touches one is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Backend
from omnitide.backends.mlx.shaders import HEAD_DIMS
from omnitide.errors import OmnitideError
from omnitide.pages import PAGE_SIZE
from omnitide.rotary import Rotary
from omnitide.step import Step

ALLOWED = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3.2e-2}
"""Largest error, relative to the greatest value that is right: rounding q, k and the result makes
up to half of it; in float32 it is sums of some hundred terms."""

ROUNDED: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}

RAISED = (OmnitideError, RuntimeError, ValueError)
"""What the backend and MLX raise where something can't be run: a result like others."""

PAGES = 5
KV_HEADS = 2


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison.

    Attributes:
        name: What was run, in words.
        error: Largest, relative to the greatest value that is right; NaN where numbers are missing.
        allowed: The largest allowed.
        fault: What was raised in place of a result, what Metal says of a shader for example.
    """

    name: str
    error: float
    allowed: float
    fault: str = ""

    @property
    def passed(self) -> bool:
        """Whether the error is allowed. NaN is not."""
        return self.error <= self.allowed


@dataclass(frozen=True, slots=True)
class Case:
    """One geometry: query heads of a KV head, live cells, queries, and whether all are newest."""

    kernels: str
    group: int
    cells: int
    queries: int
    newest: bool = True


CASES = (
    Case("decode", 7, 150, 1),
    Case("decode, 14 rows", 7, 101, 2),
    Case("decode, queries that see a part", 2, 150, 4, newest=False),
    Case("decode, one cell", 1, 1, 1),
    Case("prefill", 7, 150, 40),
    Case("prefill, full pages", 4, PAGES * PAGE_SIZE, 70),
    Case("prefill, queries that see a part", 3, 150, 37, newest=False),
)


def compare(backend: Backend, reference: Backend) -> Iterator[Check]:
    """Attention of all head sizes, and what is moved, against the reference.

    Args:
        backend: What is tried out, in one of `ALLOWED`'s dtypes.
        reference: The reference backend in float64.
    """
    for head_dim in HEAD_DIMS:
        for case in CASES:
            name = f"{case.kernels}, head size {head_dim}"
            allowed = ALLOWED[backend.dtype]
            yield _check(name, allowed, _attention_error, backend, reference, case, head_dim)
    for head_dim in HEAD_DIMS:
        yield _check(
            f"append and migrate, head size {head_dim}", 0, _moving_error, backend, head_dim
        )


def made_step(
    rng: np.random.Generator, cells: int, queries: int, newest: bool, head_dim: int, pages: int
) -> Step:
    """Live cells at random slots, with gaps between their orders, and queries among them."""
    slots = rng.permutation(pages * PAGE_SIZE)[:cells].astype(np.int32)
    orders = np.sort(rng.permutation(9 * cells)[:cells]).astype(np.int32)
    positions = rng.integers(0, 30_000, (cells, 3)).astype(np.int32)
    cos, sin = Rotary(head_dim, 1e6, None).tables(positions)
    new = np.arange(cells - queries, cells) if newest else rng.permutation(cells)[:queries]
    return Step(slots, orders, cos, sin, slots[new], orders[new], cos[new], sin[new])


def writing(step: Step) -> Step:
    """A step that writes all cells of another."""
    return Step(
        step.slots, step.orders, step.cos, step.sin, step.slots, step.orders, step.cos, step.sin
    )


def _check(
    name: str, allowed: float, error_of: Callable[..., float], backend: Backend, *given: Any
) -> Check:
    """One comparison; one that can't be run leaves the others alone."""
    try:
        return Check(name, backend.run(error_of, backend, *given), allowed)
    except RAISED as fault:
        return Check(name, float("nan"), allowed, str(fault))


def _attention_error(backend: Backend, reference: Backend, case: Case, head_dim: int) -> float:
    rng = np.random.default_rng(3)
    step = made_step(rng, case.cells, case.queries, case.newest, head_dim, PAGES)
    q, k, v = (
        _rounded(rng, backend, count, heads, head_dim)
        for count, heads in (
            (case.queries, case.group * KV_HEADS),
            (case.cells, KV_HEADS),
            (case.cells, KV_HEADS),
        )
    )
    got, want = (_attention(b, step, q, k, v) for b in (backend, reference))
    return float(np.abs(got - want).max() / np.abs(want).max())


def _attention(
    backend: Backend, step: Step, q: NDArray[Any], k: NDArray[Any], v: NDArray[Any]
) -> NDArray[Any]:
    head_dim = q.shape[2]
    pools = backend.new_pools(1, KV_HEADS, head_dim, PAGES)
    slots = np.arange(PAGES * PAGE_SIZE, dtype=np.int32)
    table = np.zeros((len(slots), head_dim // 2), np.float32)
    everywhere = Step(slots, slots, table, table, slots, slots, table, table)
    nothing = backend.asarray(np.full((len(slots), KV_HEADS, head_dim), np.nan))
    backend.append(pools, 0, everywhere, nothing, nothing)
    backend.append(pools, 0, writing(step), backend.asarray(k), backend.asarray(v))
    out = backend.attention(backend.asarray(q), pools, 0, step, head_dim**-0.5)
    return backend.to_numpy(out).astype(np.float64)


def _moving_error(backend: Backend, head_dim: int) -> float:
    """0 if an append and a permutation of all rows leave the very bits that they should."""
    rng = np.random.default_rng(4)
    slots = rng.permutation(PAGES * PAGE_SIZE).astype(np.int32)
    k, v = (_rounded(rng, backend, len(slots), KV_HEADS, head_dim) for _ in range(2))
    table = np.zeros((len(slots), head_dim // 2), np.float32)
    orders = np.arange(len(slots), dtype=np.int32)
    step = Step(slots, orders, table, table, slots, orders, table, table)
    pools = backend.new_pools(1, KV_HEADS, head_dim, PAGES)
    backend.append(pools, 0, step, backend.asarray(k), backend.asarray(v))
    backend.migrate(pools, slots, np.roll(slots, 1))
    page, row = np.divmod(np.roll(slots, 1), PAGE_SIZE)
    worst = 0.0
    for arrays, want in ((pools.keys, k), (pools.values, v)):
        got = backend.to_numpy(arrays[0])[page, :, row]
        worst = max(worst, float(np.abs(got - want).max()))
    return worst


def _rounded(
    rng: np.random.Generator, backend: Backend, count: int, heads: int, head_dim: int
) -> NDArray[np.float64]:
    values = rng.standard_normal((count, heads, head_dim))
    rounded: NDArray[np.float64] = values.astype(ROUNDED[backend.dtype]).astype(np.float64)
    return rounded
