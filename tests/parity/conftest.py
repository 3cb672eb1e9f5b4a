"""What the parity tests share: the backends of the registry, the comparator, the oracle's rounding.

Backends and dtypes are found from the registry. A backend that is missing here is one skip, with
the registry's reason (`test_registered_backend_is_here`), rather than one a test;
OMNITIDE_REQUIRE_BACKENDS=mlx,cuda makes that a failure.

`mlx-metal` is the MLX backend with its Metal kernels run on the CPU. Where they can't be, that is
one skip too (`tests/metal_cpu/test_backend.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from metal_cpu_harness.variant import VARIANT, metal_backend, variant_missing
from numpy.typing import NDArray

from omnitide.backend import Backend
from omnitide.backends import BACKENDS, BackendInfo, describe_backends, load_backend

NUMPY_DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}

# Largest allowed error of a computed result, relative to the largest value that is right.
TOLERANCES = {
    # The one approximation is the error function's, 5e-12; the rest is rounding, 1e-16 a term.
    "float64": 1e-10,
    # Rounding is 6e-8; sums of up to 2,500 terms and exponentials of scores make it 1e-6 to 1e-5.
    "float32": 2e-5,
    # Half a unit in the last place is 5e-4; q, k and the result are each rounded.
    "float16": 2e-3,
    # Half a unit in the last place is 4e-3; q, k and the result are each rounded.
    "bfloat16": 1.6e-2,
}


INFOS = describe_backends()
PRESENT = [info for info in INFOS if info.available]
VARIANTS = [
    pytest.param((VARIANT, dtype), id=f"{VARIANT}-{dtype}")
    for dtype in ("float32", "float16", "bfloat16")
    if variant_missing() is None
]


@cache
def _loaded(name: str, dtype: str) -> Backend:
    return metal_backend(dtype) if name == VARIANT else load_backend(name, dtype)


@pytest.fixture(
    params=[
        *(
            pytest.param((info.name, dtype), id=f"{info.name}-{dtype}")
            for info in PRESENT
            for dtype in info.dtypes
        ),
        *VARIANTS,
    ]
)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend that is here, and the MLX backend's Metal kernels, in every dtype."""
    return _loaded(*request.param)


@pytest.fixture(params=[pytest.param(info, id=info.name) for info in PRESENT])
def any_backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend that is here in its default dtype, for what no dtype changes."""
    return _loaded(request.param.name, request.param.default_dtype)


@pytest.fixture(params=[pytest.param(info, id=info.name) for info in INFOS])
def registered(request: pytest.FixtureRequest) -> BackendInfo:
    """Every backend of the registry; one that is missing is skipped, or fails where required."""
    info: BackendInfo = request.param
    required = set(filter(None, os.environ.get("OMNITIDE_REQUIRE_BACKENDS", "").split(",")))
    unknown = sorted(required - set(BACKENDS))
    if unknown:
        pytest.fail(f"OMNITIDE_REQUIRE_BACKENDS names no backend: {', '.join(unknown)}")
    if not info.available:
        reason = f"{info.name} is not available: {info.note}"
        if info.name in required:
            pytest.fail(reason)
        pytest.skip(reason)
    return info


@pytest.fixture
def tolerance() -> Callable[[str], float]:
    """Largest allowed relative error of a dtype's results."""
    return TOLERANCES.__getitem__


@pytest.fixture
def rounded() -> Callable[[NDArray[Any], str], NDArray[np.float64]]:
    """Values rounded to a dtype and widened: what a backend of that dtype is given."""

    def to_dtype(values: NDArray[Any], dtype: str) -> NDArray[np.float64]:
        return values.astype(NUMPY_DTYPES[dtype]).astype(np.float64)

    return to_dtype


@pytest.fixture
def assert_matches() -> Callable[[NDArray[Any], NDArray[np.float64], str, float], None]:
    """The comparator: shape, then dtype, then which values are NaN, then values."""
    return _assert_matches


def _assert_matches(
    got: NDArray[Any], want: NDArray[np.float64], dtype: str, tolerance: float
) -> None:
    """Compare what `to_numpy` of a backend in `dtype` gave with float64 values.

    Tolerance 0 asks for equal bits; NaN must stand exactly where it is wanted.
    """
    host = np.float64 if dtype == "float64" else np.float32
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    assert got.dtype == host, f"dtype {got.dtype}, expected {np.dtype(host)}"
    wide = got.astype(np.float64)
    assert not np.isinf(wide).any(), f"{np.isinf(wide).sum()} values are infinite"
    nan = np.isnan(want)
    wrong = np.argwhere(np.isnan(wide) != nan)
    assert len(wrong) == 0, f"NaN is wrong at {len(wrong)} places, first {wrong[0].tolist()}"
    right = np.where(nan, 0, want)
    error = np.abs(np.where(nan, 0, wide) - right)
    allowed = tolerance * np.abs(right).max(initial=0)
    far = np.argwhere(error > allowed)
    assert len(far) == 0, (
        f"{len(far)} of {want.size} values are off by up to {error.max():.3g}, allowed "
        f"{allowed:.3g}; first at {far[0].tolist()}"
    )
