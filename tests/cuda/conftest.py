"""What the tests of the CUDA kernels share: dtypes, poison, a comparator, steps with holes.

Tests that launch kernels skip, a module at a time, where there is no GPU; the others need none.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backends.cuda.arrays import cp
from omnitide.backends.cuda.compiler import Compiler
from omnitide.pages import PAGE_SIZE
from omnitide.rotary import Rotary
from omnitide.step import Step

DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
}

# Largest allowed error, relative to the largest value that is right; reasons as in tests/parity.
TOLERANCES = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-5}


class FakeArray(np.ndarray):  # type: ignore[type-arg]
    """A NumPy array with CuPy's address, flags and copying."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        """CuPy's memory pointer."""
        return SimpleNamespace(ptr=self.ctypes.data)

    @property
    def flags(self) -> Any:
        """CuPy spells the names in small letters."""
        return SimpleNamespace(c_contiguous=np.ndarray.flags.__get__(self).c_contiguous)

    def set(self, values: NDArray[Any], stream: Any) -> None:
        """Copy from the host."""
        self[...] = values


@pytest.fixture
def fake_cupy() -> SimpleNamespace:
    """What host classes use of CuPy, on NumPy arrays, to test them without a GPU."""
    return SimpleNamespace(
        ndarray=FakeArray,
        empty=lambda shape, dtype: np.empty(shape, dtype).view(FakeArray),
        zeros=lambda shape, dtype: np.zeros(shape, dtype).view(FakeArray),
        empty_like=lambda array: np.empty_like(array).view(FakeArray),
        asarray=lambda array: np.asarray(array).view(FakeArray),
        split=np.split,
        cuda=SimpleNamespace(get_current_stream=lambda: None),
    )


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    """Kernels, compiled once a session."""
    return Compiler()


@pytest.fixture(params=DTYPES.keys())
def dtype(request: pytest.FixtureRequest) -> str:
    """Every dtype that kernels are made for."""
    name: str = request.param
    return name


@pytest.fixture
def tolerance() -> Callable[[str], float]:
    """Largest allowed relative error of a dtype's results."""
    return TOLERANCES.__getitem__


@pytest.fixture
def values() -> Callable[..., NDArray[Any]]:
    """Random values: `values(rng, dtype, *shape)`, on the host, rounded to the dtype."""

    def make(rng: np.random.Generator, dtype: str, *shape: int, size: float = 1) -> NDArray[Any]:
        return (size * rng.standard_normal(shape)).astype(DTYPES[dtype])

    return make


@pytest.fixture
def on_device() -> Callable[[NDArray[Any]], Any]:
    """A copy on the device."""
    return lambda array: cp.asarray(array)


@pytest.fixture
def poison() -> Callable[..., Any]:
    """A device array of NaN: `poison(dtype, *shape)`."""
    return lambda dtype, *shape: cp.asarray(np.full(shape, np.nan, DTYPES[dtype]))


@pytest.fixture
def bits() -> Callable[[Any], NDArray[Any]]:
    """A device or host array's bits, on the host, so that NaN equals NaN."""

    def read(array: Any) -> NDArray[Any]:
        host = array if isinstance(array, np.ndarray) else cp.asnumpy(array)
        return np.ascontiguousarray(host).view(f"u{host.dtype.itemsize}")

    return read


@pytest.fixture
def assert_close() -> Callable[..., None]:
    """Compare a device array with float64 values; NaN must stand exactly where it is wanted."""

    def compare(got: Any, want: NDArray[np.float64], dtype: str) -> None:
        assert got.shape == want.shape
        assert got.dtype == DTYPES[dtype]
        wide = cp.asnumpy(got).astype(np.float64)
        assert np.array_equal(np.isnan(wide), np.isnan(want))
        right = np.nan_to_num(want)
        error = np.abs(np.nan_to_num(wide) - right).max(initial=0)
        allowed = TOLERANCES[dtype] * np.abs(right).max(initial=0)
        assert error <= allowed, f"off by up to {error:.3g}, allowed {allowed:.3g}"

    return compare


@pytest.fixture
def make_step() -> Callable[..., Step]:
    """A step of cells scattered over pages: `make_step(rng, head_dim, cells, queries, pages)`.

    The queries are `newest` cells in order, or with "mixed" any orders, of which some see nothing.
    """

    def make(
        rng: np.random.Generator,
        head_dim: int,
        cells: int,
        queries: int,
        pages: int,
        kind: str = "newest",
    ) -> Step:
        slots = np.sort(rng.permutation(pages * PAGE_SIZE)[:cells]).astype(np.int32)
        slots = np.roll(slots, cells // 3)
        orders = (10 + np.sort(rng.permutation(9 * cells)[:cells])).astype(np.int32)
        rotary = Rotary(head_dim, 1e6)
        positions = np.repeat(rng.integers(0, 30_000, (cells, 1)), 3, axis=1).astype(np.int32)
        cos, sin = rotary.tables(positions)
        if kind == "newest":
            chosen = np.arange(cells - queries, cells)
            query_orders = orders[chosen]
        else:
            chosen = rng.permutation(cells)[:queries]
            query_orders = (10 + rng.integers(0, 9 * cells, queries)).astype(np.int32)
            query_orders[::3] = 9
        return Step(slots, orders, cos, sin, slots[chosen], query_orders, cos[chosen], sin[chosen])

    return make


@pytest.fixture
def rotated() -> Callable[..., NDArray[np.float64]]:
    """x (tokens, heads, head_dim) with pairs (i, i + head_dim / 2) turned, in float64."""

    def turn(x: NDArray[Any], cos: NDArray[Any], sin: NDArray[Any]) -> NDArray[np.float64]:
        wide, half = x.astype(np.float64), x.shape[-1] // 2
        angle = (cos.astype(np.float64) + 1j * sin.astype(np.float64))[:, None]
        turned = (wide[..., :half] + 1j * wide[..., half:]) * angle
        return np.concatenate([turned.real, turned.imag], axis=-1)

    return turn
