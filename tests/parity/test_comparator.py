"""The comparator of the parity tests must be able to fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

WANT = np.random.default_rng(0).standard_normal((3, 4))
HOLED = np.where(np.arange(12).reshape(3, 4) == 5, np.nan, WANT)


def one_element(got: NDArray[Any]) -> NDArray[Any]:
    got[1, 2] += 1e-3
    return got


def sign(got: NDArray[Any]) -> NDArray[Any]:
    got[0, 0] = -got[0, 0]
    return got


def nan(got: NDArray[Any]) -> NDArray[Any]:
    got[2, 3] = np.nan
    return got


def infinity(got: NDArray[Any]) -> NDArray[Any]:
    got[2, 3] = np.inf
    return got


def number_for_nan(got: NDArray[Any]) -> NDArray[Any]:
    got[1, 1] = 0
    return got


def shape(got: NDArray[Any]) -> NDArray[Any]:
    return got[None]


def transposed(got: NDArray[Any]) -> NDArray[Any]:
    return got.T


def dtype(got: NDArray[Any]) -> NDArray[Any]:
    return got.astype(np.float64)


@pytest.mark.parametrize("want", [WANT, HOLED], ids=["finite", "with-nan"])
def test_comparator_accepts_rounding(assert_matches: Callable[..., None], want: Any) -> None:
    assert_matches(want.astype(np.float32), want, "float32", 1e-6)


@pytest.mark.parametrize(
    "spoil",
    [one_element, sign, nan, infinity, number_for_nan, shape, transposed, dtype],
)
def test_comparator_rejects(
    assert_matches: Callable[..., None], spoil: Callable[[NDArray[Any]], NDArray[Any]]
) -> None:
    with pytest.raises(AssertionError):
        assert_matches(spoil(HOLED.astype(np.float32)), HOLED, "float32", 1e-5)


def test_exact_means_equal_bits(assert_matches: Callable[..., None]) -> None:
    want = WANT.astype(np.float32).astype(np.float64)
    got = want.astype(np.float32)
    assert_matches(got, want, "float32", 0)
    got[0, 0] = np.nextafter(got[0, 0], np.float32(9))
    with pytest.raises(AssertionError, match="1 of 12 values"):
        assert_matches(got, want, "float32", 0)
