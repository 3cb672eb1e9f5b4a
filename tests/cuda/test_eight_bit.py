"""Keys and values of 8 bits on the GPU: what is stored agrees with the reference bit for bit, and
attention reads it through every kind of pass.

All that is not written is NaN: dead rows, their scales, and the scratch before each pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backends import load_backend
from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.cache_writes import CacheWrites
from omnitide.backends.cuda.compiler import Compiler
from omnitide.backends.cuda.device_step import DeviceStep
from omnitide.backends.cuda.eight_bit import EightBitRows
from omnitide.backends.eight_bit import EightBitPools
from omnitide.backends.reference import eight_bit as reference
from omnitide.pages import PAGE_SIZE
from omnitide.rotary import Rotary
from omnitide.step import Step

if cp is None or not cp.cuda.is_available():
    pytest.skip("launches kernels: needs CuPy and an NVIDIA GPU", allow_module_level=True)

# (KV heads, head_dim); half of 18 and of 2 is no whole access, 160 is more than a block's threads.
SHAPES = [(4, 128), (2, 64), (3, 80), (1, 96), (2, 160), (3, 18), (1, 2)]
PAGES = 4
CELLS = 150


@dataclass
class Rows:
    """Packed rows of one layer on the device, written by the kernels; all else is NaN."""

    rows: EightBitRows
    factors: Any
    pools: tuple[Any, Any, Any, Any]
    angles: tuple[Any, Any]


@pytest.fixture
def packed(compiler: Compiler, poison: Callable[..., Any]) -> Callable[..., Rows]:
    """Packs tokens: `packed(tokens, step, first)`; the factors are of the first rows."""

    def make(tokens: NDArray[Any], step: Step, first: int) -> Rows:
        k, v = _split(cp.asarray(tokens))
        _, heads, dim = k.shape
        rows = EightBitRows(compiler)
        factors = poison("float32", heads, dim)
        elements = (cp.full((PAGES, heads, PAGE_SIZE, dim), 77, np.int8) for _ in range(2))
        scales = (poison("float32", PAGES, heads, PAGE_SIZE) for _ in range(2))
        angles = tuple(poison("float32", PAGES * PAGE_SIZE, dim // 2) for _ in range(2))
        made = Rows(rows, factors, (*elements, *scales), angles)
        rows.factors(k[:first], factors)
        rows.pack(made.pools, factors, angles, k, v, DeviceStep.of(step))
        return made

    return make


def _split(tokens: Any) -> tuple[Any, Any]:
    """Keys and values, parts of one matrix product's result."""
    heads = tokens.shape[1] // 2
    return tokens[:, :heads], tokens[:, heads : 2 * heads]


def _reference(tokens: NDArray[Any], step: Step, first: int) -> EightBitPools:
    """The same rows packed by NumPy in float32."""
    k, v = _split(tokens.astype(np.float32))
    _, heads, dim = k.shape
    pools = reference.new_pools(1, (PAGES, heads, PAGE_SIZE, dim))
    for arrays, filling in zip(pools.paged, (77, 77, np.nan, np.nan), strict=True):
        arrays[0][...] = filling
    for part in (slice(0, first), slice(first, None)):
        some = replace(step, query_slots=step.query_slots[part])
        reference.append(pools, 0, some, k[part], v[part])
    return pools


def _tokens(rng: np.random.Generator, dtype: Any, heads: int, dim: int) -> NDArray[Any]:
    """Keys, values and something behind them, with channels of very different size."""
    sizes = np.exp(rng.normal(0, 1.5, (2 * heads + 1, dim)))
    return (rng.standard_normal((CELLS, 2 * heads + 1, dim)) * sizes).astype(dtype)


@pytest.mark.parametrize(("heads", "dim"), SHAPES)
@pytest.mark.parametrize("first", [1, 9, CELLS])
def test_what_is_stored_is_the_references_to_the_bit(
    heads: int,
    dim: int,
    first: int,
    dtype: str,
    packed: Callable[..., Rows],
    values: Callable[..., Any],
    bits: Callable[..., Any],
    make_step: Callable[..., Step],
) -> None:
    rng = np.random.default_rng(dim)
    step = make_step(rng, dim, CELLS, CELLS, PAGES)
    tokens = _tokens(rng, values(rng, dtype, 1).dtype, heads, dim)
    tokens[20, :heads], tokens[21, heads:] = 0, 0
    tokens[22] = 1e-37  # 0 in float16, else the scale of the values is a denormal
    made, want = packed(tokens, step, first), _reference(tokens, step, first)
    np.testing.assert_array_equal(bits(made.factors), bits(want.factors[0]))
    for got, right in zip(made.pools, want.paged, strict=True):
        np.testing.assert_array_equal(bits(got), bits(right[0]))
    for got, right in zip(made.angles, (step.cos, step.sin), strict=True):
        table = np.full(got.shape, np.nan, np.float32)
        table[step.query_slots] = right
        np.testing.assert_array_equal(bits(got), bits(table))


@pytest.mark.parametrize("dim", [128, 18, 2])
def test_angles_are_placed_by_slot(
    dim: int,
    compiler: Compiler,
    poison: Callable[..., Any],
    bits: Callable[..., Any],
    make_step: Callable[..., Step],
) -> None:
    step = make_step(np.random.default_rng(dim), dim, CELLS, 1, PAGES)
    angles = tuple(poison("float32", PAGES * PAGE_SIZE, dim // 2) for _ in range(2))
    arrays = (np.ascontiguousarray(array) for array in (step.slots, step.cos, step.sin))
    cells = (cp.asarray(array) for array in arrays)
    EightBitRows(compiler).place_angles(angles, *cells)
    for got, right in zip(angles, (step.cos, step.sin), strict=True):
        table = np.full(got.shape, np.nan, np.float32)
        table[step.slots] = right
        np.testing.assert_array_equal(bits(got), bits(table))


def test_a_row_with_nan_or_infinity_is_nan_and_no_other(
    dtype: str,
    packed: Callable[..., Rows],
    values: Callable[..., Any],
    poison: Callable[..., Any],
    make_step: Callable[..., Step],
) -> None:
    rng = np.random.default_rng(3)
    step = make_step(rng, 64, CELLS, CELLS, PAGES)
    tokens = _tokens(rng, values(rng, dtype, 1).dtype, 2, 64)
    tokens[100, 1, 3], tokens[101, 2, 5] = np.nan, np.inf
    made = packed(tokens, step, 9)
    wide = poison(dtype, PAGES, 2, PAGE_SIZE, 64), poison(dtype, PAGES, 2, PAGE_SIZE, 64)
    made.rows.widen(made.pools, made.factors, made.angles, wide, DeviceStep.of(step))
    page, row = np.divmod(step.query_slots, PAGE_SIZE)
    for array, at in zip(wide, ((100, 1), (101, 0)), strict=True):
        found = np.isnan(cp.asnumpy(array).astype(np.float32)[page, :, row]).all(axis=-1)
        assert np.argwhere(found).tolist() == [list(at)]


@pytest.mark.parametrize(("heads", "dim"), SHAPES)
@pytest.mark.parametrize("room", [0, 5])
def test_live_rows_are_made_wide_as_append_turns_them_and_no_others(
    heads: int,
    dim: int,
    room: int,
    dtype: str,
    compiler: Compiler,
    packed: Callable[..., Rows],
    values: Callable[..., Any],
    poison: Callable[..., Any],
    bits: Callable[..., Any],
    make_step: Callable[..., Step],
) -> None:
    """Some of the cells, in a list with room for more tiles, which are not looked at."""
    rng = np.random.default_rng(dim + 1)
    whole = make_step(rng, dim, CELLS, CELLS, PAGES)
    kind = values(rng, dtype, 1).dtype
    made = packed(_tokens(rng, kind, heads, dim), whole, 9)
    some = np.sort(rng.permutation(CELLS)[:70])
    step = replace(
        whole,
        slots=whole.slots[some],
        orders=whole.orders[some],
        cos=whole.cos[some],
        sin=whole.sin[some],
        query_slots=whole.slots[some],
        query_orders=whole.orders[some],
        query_cos=whole.cos[some],
        query_sin=whole.sin[some],
    )
    at = DeviceStep.empty(len(step.tiles.subblocks) + room, 70, dim // 2)
    at.load(step)
    at.masks[len(step.tiles.subblocks) :] = 0xFFFFFFFF
    shape = (PAGES, heads, PAGE_SIZE, dim)
    wide = poison(dtype, *shape), poison(dtype, *shape)
    made.rows.widen(made.pools, made.factors, made.angles, wide, at)

    # Products in float32 one after the other, rounded once to the dtype; then as `append` does it.
    page, row = np.divmod(step.slots, PAGE_SIZE)
    keys, values_, key_scales, value_scales = (cp.asnumpy(array) for array in made.pools)
    k = keys[page, :, row].astype(np.float32) * key_scales[page, :, row][..., None]
    k = (k * cp.asnumpy(made.factors)).astype(kind)
    v = (values_[page, :, row].astype(np.float32) * value_scales[page, :, row][..., None]).astype(
        kind
    )
    right = [poison(dtype, *shape) for _ in range(3)]
    CacheWrites(compiler).append(*right, cp.asarray(k), cp.asarray(v), at)
    np.testing.assert_array_equal(bits(wide[0]), bits(right[1]))
    np.testing.assert_array_equal(bits(wide[1]), bits(right[2]))


# -- whole passes ---------------------------------------------------------------------------------
LAYERS, HEADS, KV_HEADS, DIM = 2, 4, 2, 64
SCALE = DIM**-0.5
ROTARY = Rotary(DIM, 1e6, None)
WIDTHS = (HEADS, KV_HEADS, KV_HEADS)  # of q, k and v of a layer, in heads


@dataclass(eq=False)
class Twins:
    """A stream over packed pools on the GPU, and over the reference's, which also is the oracle.

    What a pass is given are queries, keys and values of all layers; it attends and no more.
    """

    dtype: str
    known: bool
    pages: int = 4
    rotation: int = 0
    slots: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    positions: NDArray[np.int32] = field(default_factory=lambda: np.empty((0, 3), np.int32))

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(11)
        self.sizes = np.exp(self.rng.normal(0, 1, (KV_HEADS, DIM)))
        self.backend: Any = load_backend("cuda", self.dtype)
        self.host: Any = load_backend("reference", "float32")
        self.oracle: Any = load_backend("reference", "float64")
        self.pools = self.backend.run(self.backend.new_pools, LAYERS, KV_HEADS, DIM, self.pages, 8)
        self.right = self.host.new_pools(LAYERS, KV_HEADS, DIM, self.pages, 8)
        self.backend.run(self._poison)
        for arrays in (self.right.key_scales, self.right.value_scales):
            for array in arrays:
                array.fill(np.nan)

    def _poison(self) -> None:
        """Everything is NaN. On the backend's thread."""
        scratch = self.pools.scratch
        scales = (*self.pools.key_scales, *self.pools.value_scales)
        for array in (*scratch.wide, *scratch.angles, *scales):
            _fill(array)

    def forward(self, x: Any, pools: Any, step: Step) -> Any:
        """Attention of both layers, of the last token, added up."""
        seen = []
        for layer in range(LAYERS):
            q, k, v = self.parts(x, layer)
            self.backend.append(pools, layer, step, k, v)
            seen.append(self.backend.attention(q, pools, layer, step, SCALE)[-1:])
        return seen[0] + seen[1]

    def parts(self, x: Any, layer: int) -> tuple[Any, Any, Any]:
        """Queries, keys and values of a layer, strided views."""
        stops = np.cumsum([0, *WIDTHS * LAYERS]) * DIM
        q, k, v = (
            x[:, stops[i] : stops[i + 1]].reshape((len(x), -1, DIM))
            for i in range(3 * layer, 3 * layer + 3)
        )
        return q, k, v

    def go_on(self, count: int, values: Callable[..., Any], close: Callable[..., None]) -> None:
        """A pass over new tokens; what is stored and what is seen are the reference's."""
        free = np.setdiff1d(np.arange(self.pages * PAGE_SIZE), self.slots)
        new = self.rng.permutation(free)[:count]
        self.slots = np.concatenate([self.slots, new]).astype(np.int32)
        where = self.rng.integers(0, 9000, (count, 3))
        self.positions = np.concatenate([self.positions, where]).astype(np.int32)
        x = values(self.rng, self.dtype, count, LAYERS * sum(WIDTHS) * DIM)
        for layer in range(LAYERS):
            _, k, _ = self.parts(x, layer)
            k *= self.sizes.astype(x.dtype)
        step = self.step(count)
        expected = self._expected(x.astype(np.float32), step)

        def call() -> Any:
            for array in self.pools.scratch.wide:
                _fill(array)
            out = self.backend.forward_pass(self.forward, cp.asarray(x), self.pools, step)
            found = self.backend.to_numpy(out)
            self.check_stored()
            return found

        close(self.backend.run(call), expected, self.dtype)

    def step(self, count: int) -> Step:
        """The newest tokens are the queries."""
        orders = np.arange(len(self.slots), dtype=np.int32)
        cos, sin = ROTARY.tables(self.positions)
        new = slice(len(orders) - count, None)
        angles = self.rotation if self.known else None
        at_new = self.slots[new], orders[new], cos[new], sin[new]
        return Step(self.slots, orders, cos, sin, *at_new, rotation=angles)

    def _expected(self, x: NDArray[np.float32], step: Step) -> NDArray[np.float64]:
        seen = np.zeros((1, HEADS, DIM))
        for layer in range(LAYERS):
            q, k, v = self.parts(x, layer)
            self.host.append(self.right, layer, step, k, v)
            wide = q.astype(np.float64)
            seen += self.oracle.attention(wide, self.right, layer, step, SCALE)[-1:]
        return seen

    def check_stored(self) -> None:
        """Elements, scales and factors of the live cells have the reference's bits.

        On the backend's thread.
        """
        page, row = np.divmod(self.slots, PAGE_SIZE)
        for got, want in zip(self.pools.paged, self.right.paged, strict=True):
            for one, other in zip(got, want, strict=True):
                host = one.get()[page, :, row]
                np.testing.assert_array_equal(host, other[page, :, row])
        for one, other in zip(self.pools.factors, self.right.factors, strict=True):
            np.testing.assert_array_equal(one.get(), other)

    def evict(self) -> None:
        """Some cells go; the others' positions are laid out anew."""
        keep = np.flatnonzero(self.rng.random(len(self.slots)) < 0.6)
        self.slots = self.slots[keep]
        self.positions = self.rng.integers(0, 9000, (len(keep), 3)).astype(np.int32)
        self.rotation += 1

    def move(self, count: int) -> None:
        """The first cells go elsewhere, one of them to where another was."""
        free = np.setdiff1d(np.arange(self.pages * PAGE_SIZE), self.slots)[: count - 1]
        target = np.r_[self.slots[1], free].astype(np.int32)
        source = self.slots[:count].copy()
        for backend, pools in ((self.backend, self.pools), (self.host, self.right)):
            backend.run(backend.migrate, pools, source, target)
        self.slots[:count] = target

    def grow(self) -> None:
        """One page more. What growing leaves undefined is NaN."""
        self.pages += 1
        for backend, pools in ((self.backend, self.pools), (self.host, self.right)):
            backend.run(backend.grow_pools, pools, self.pages)

        def poison() -> None:
            for array in (*self.pools.key_scales, *self.pools.value_scales):
                _fill(array[-1:])
            for array in self.pools.scratch.angles:
                _fill(array)

        self.backend.run(poison)


def _fill(array: Any) -> None:
    """NaN everywhere: every bit is set."""
    array.view(np.uint8).fill(0xFF)


@pytest.fixture
def close(tolerance: Callable[[str], float]) -> Callable[..., None]:
    """As `assert_close`; keys and values are rounded once more, where they are made wide."""

    def compare(got: NDArray[Any], want: NDArray[np.float64], dtype: str) -> None:
        assert got.shape == want.shape
        assert not np.isnan(got).any()
        error, allowed = np.abs(got - want).max(), 2 * tolerance(dtype) * np.abs(want).max()
        assert error <= allowed, f"off by up to {error:.3g}, allowed {allowed:.3g}"

    return compare


@pytest.mark.parametrize("known", [True, False], ids=["angles-known", "angles-unknown"])
def test_passes_of_a_stream_are_recorded_and_replayed(
    known: bool, dtype: str, values: Callable[..., Any], close: Callable[..., None]
) -> None:
    """From the first token on: the pass that makes the factors is one that is recorded."""
    twins = Twins(dtype, known)
    for _ in range(2):
        for count in (1, 1, 40, 1, 20, 40, 40, 1):
            twins.go_on(count, values, close)
        recordings = twins.pools.recorder._recordings
        assert bool(recordings) == known
        twins.evict()
        for count in (1, 17, 1):
            twins.go_on(count, values, close)
        twins.move(4)
        twins.go_on(1, values, close)
        twins.grow()
        for count in (1, 1):
            twins.go_on(count, values, close)
        twins.evict()


def test_a_new_rotation_turns_replayed_passes(
    values: Callable[..., Any], close: Callable[..., None]
) -> None:
    """Positions change under the same cells, and nothing else does."""
    twins = Twins("bfloat16", True)
    for count in (30, 1, 1):
        twins.go_on(count, values, close)
    for _ in range(2):
        twins.positions = twins.rng.integers(0, 9000, twins.positions.shape).astype(np.int32)
        twins.rotation += 1
        twins.go_on(1, values, close)


def test_a_pass_that_is_watched_gives_the_mass_of_the_same_cells(
    dtype: str, values: Callable[..., Any], close: Callable[..., None]
) -> None:
    twins = Twins(dtype, True)
    twins.go_on(90, values, close)
    step = twins.step(5)
    q = values(twins.rng, dtype, 5, HEADS, DIM)

    def call() -> Any:
        mass = twins.backend.attention_mass(cp.asarray(q), twins.pools, 1, step, SCALE)
        return twins.backend.to_numpy(mass)

    want = twins.oracle.attention_mass(q.astype(np.float64), twins.right, 1, step, SCALE)
    far = {"float16": 1e-2, "bfloat16": 6e-2, "float32": 1e-4}[dtype]
    np.testing.assert_allclose(twins.backend.run(call), want, atol=far * want.max())
