"""Plain attention against float64 softmax over live cells; all other rows of the pools are NaN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.backends.cuda.plain_attention import PlainAttention
from omnitide.pages import PAGE_SIZE
from omnitide.step import Step

if cp is None or not cp.cuda.is_available():
    pytest.skip("launches kernels: needs CuPy and an NVIDIA GPU", allow_module_level=True)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """Sizes; `room` tiles more than there are live, `splitting` as many multiprocessors."""

    heads: int = 2
    kv_heads: int = 2
    dim: int = 64
    cells: int = 150
    queries: int = 20
    pages: int = 6
    kind: str = "newest"
    room: int = 0
    multiprocessors: int = 1


CASES = {
    "decode": Case(28, 4, 128, cells=700, queries=1, pages=20, multiprocessors=132),
    "decode-in-a-larger-graph": Case(7, 1, 128, cells=300, queries=1, room=50, multiprocessors=40),
    "prefill": Case(14, 2, 80, cells=200, queries=77),
    "prefill-split": Case(4, 4, 96, cells=400, queries=33, pages=9, multiprocessors=20),
    "tiny-head": Case(3, 1, 2, cells=40, queries=9),
    "odd-head": Case(4, 2, 66, cells=100, queries=18),
    "head-of-72": Case(16, 16, 72, cells=64, queries=64, pages=1),
    "large-head": Case(2, 1, 256, cells=130, queries=17),
    "group-of-16": Case(16, 1, 64, cells=90, queries=3),
    "mixed": Case(4, 2, cells=150, queries=33, kind="mixed", multiprocessors=9),
    "one-cell": Case(cells=1, queries=1, pages=1),
}


def rounded(x: Floats, like: NDArray[Any]) -> Floats:
    return x.astype(like.dtype).astype(np.float64)


def shares_of(q: Floats, k: Floats, step: Step, scale: float) -> Floats:
    """Probabilities (head, query, cell); 0 throughout for a query that sees nothing."""
    group = q.shape[1] // k.shape[1]
    out = np.zeros((q.shape[1], len(q), len(k)))
    for head in range(q.shape[1]):
        scores = q[:, head] @ k[:, head // group].T * scale
        weights = np.where(step.visible, np.exp(scores - scores.max(initial=0)), 0)
        total = weights.sum(axis=1, keepdims=True)
        out[head] = weights / np.where(total > 0, total, 1)
    return out


@dataclass(frozen=True)
class Setting:
    """A case on the device, with what is right."""

    step: Step
    device_step: DeviceStep
    q: Any
    rotated: Any
    values: Any
    shares: Floats
    mixed: Floats


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def setting(
    request: pytest.FixtureRequest,
    dtype: str,
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    rotated: Callable[..., Any],
    make_step: Callable[..., Any],
) -> tuple[Case, Setting]:
    case: Case = request.param
    rng = np.random.default_rng(7)
    step = make_step(rng, case.dim, case.cells, case.queries, case.pages, case.kind)
    q = values(rng, dtype, case.queries, case.heads, case.dim, size=1.5)
    k = values(rng, dtype, case.cells, case.kv_heads, case.dim)
    v = values(rng, dtype, case.cells, case.kv_heads, case.dim)
    turned = rotated(k, step.cos, step.sin).astype(k.dtype)
    page, row = np.divmod(step.slots, PAGE_SIZE)
    pools = []
    for rows in (turned, v):
        pool = np.full((case.pages, case.kv_heads, PAGE_SIZE, case.dim), np.nan, rows.dtype)
        pool[page, :, row] = rows
        pools.append(on_device(pool))
    device_step = DeviceStep.empty(
        len(step.tiles.subblocks) + case.room, case.queries, case.dim // 2
    )
    device_step.load(step)
    queries = rounded(rotated(q, step.query_cos, step.query_sin), q)
    shares = shares_of(queries, turned.astype(np.float64), step, case.dim**-0.5)
    group = case.heads // case.kv_heads
    mixed = [share @ v[:, h // group].astype(np.float64) for h, share in enumerate(shares)]
    return case, Setting(step, device_step, on_device(q), *pools, shares, np.stack(mixed, axis=1))


def test_attend(
    compiler: Compiler,
    dtype: str,
    setting: tuple[Case, Setting],
    assert_close: Callable[..., None],
) -> None:
    case, at = setting
    attention = PlainAttention(compiler, case.multiprocessors)
    got = attention.attend(at.q, at.rotated, at.values, at.device_step, case.dim**-0.5)
    assert_close(got, at.mixed, dtype)
    blind = at.step.query_orders < at.step.orders.min()
    assert not cp.asnumpy(got)[blind].any()
    again = attention.attend(at.q, at.rotated, at.values, at.device_step, case.dim**-0.5)
    assert got.tobytes() == again.tobytes()


def test_mass(
    compiler: Compiler,
    dtype: str,
    setting: tuple[Case, Setting],
    on_device: Callable[..., Any],
    tolerance: Callable[[str], float],
) -> None:
    case, at = setting
    cells = np.full((at.device_step.max_tiles, 32), -1, np.int32)
    cells[: len(at.step.tiles.cells)] = at.step.tiles.cells
    got = PlainAttention(compiler, case.multiprocessors).mass(
        at.q, at.rotated, at.device_step, case.dim**-0.5, at.step.num_cells, on_device(cells)
    )
    assert (got.dtype, got.shape) == (np.float32, (case.cells,))
    want = at.shares.sum(axis=(0, 1))
    assert np.abs(cp.asnumpy(got) - want).max() <= tolerance(dtype) * want.max()
    seeing = np.count_nonzero(at.step.query_orders >= at.step.orders.min())
    assert float(got.sum()) == pytest.approx(seeing * case.heads, rel=1e-4)


def test_a_step_without_cells_gives_zeros(compiler: Compiler, poison: Callable[..., Any]) -> None:
    empty, orders = np.empty((0, 32), np.float32), np.empty(0, np.int32)
    table = np.ones((3, 32), np.float32)
    query = np.zeros(3, np.int32)
    step = Step(orders, orders, empty, empty, query, query, table, table)
    pool = poison("float32", 1, 1, PAGE_SIZE, 64)
    device_step = DeviceStep.empty(4, 3, 32)
    device_step.load(step)
    attention = PlainAttention(compiler, 132)
    q = cp.ones((3, 2, 64), np.float32)
    assert not attention.attend(q, pool, pool, device_step, 0.1).any()
    nothing = attention.mass(q, pool, device_step, 0.1, 0, cp.empty((4, 32), np.int32))
    assert nothing.shape == (0,)


@pytest.mark.parametrize(
    ("heads", "dim", "lengths", "key_lengths"),
    [
        (2, 64, (1, 2, 33, 32, 31, 100), (1, 2, 33, 32, 31, 100)),
        (3, 72, (7,), (7,)),
        (1, 6, (40, 17), (40, 17)),
        (2, 256, (20, 65), (20, 65)),
        (2, 80, (64, 64, 64, 16), (64, 64, 64, 16)),
        (2, 128, (8, 17, 70), (100, 1, 33)),
    ],
)
def test_segments(
    compiler: Compiler,
    dtype: str,
    heads: int,
    dim: int,
    lengths: tuple[int, ...],
    key_lengths: tuple[int, ...],
    values: Callable[..., Any],
    on_device: Callable[..., Any],
    assert_close: Callable[..., None],
) -> None:
    rng = np.random.default_rng(8)
    q = values(rng, dtype, sum(lengths), heads, dim)
    k, v = (values(rng, dtype, sum(key_lengths), heads, dim) for _ in range(2))
    got = PlainAttention(compiler, 132).segments(
        *(on_device(x) for x in (q, k, v)), lengths, key_lengths, dim**-0.5
    )
    want = np.empty(q.shape)
    start = key_start = 0
    for length, key_length in zip(lengths, key_lengths, strict=True):
        part, keys = slice(start, start + length), slice(key_start, key_start + key_length)
        for head in range(heads):
            scores = q[part, head].astype(float) @ k[keys, head].astype(float).T * dim**-0.5
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares = weights / weights.sum(axis=1, keepdims=True)
            want[part, head] = shares @ v[keys, head].astype(float)
        start, key_start = part.stop, keys.stop
    assert_close(got, want, dtype)
