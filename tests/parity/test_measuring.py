"""What benchmarks ask of a backend: random arrays, times of calls, free memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from omnitide.backend import Backend

DRAWS = 40_000


def drawn(backend: Backend, shape: tuple[int, ...], scale: float, seed: int) -> NDArray[Any]:
    values: NDArray[Any] = backend.run(
        lambda: backend.to_numpy(backend.random_normal(shape, scale, seed))
    )
    return values


@pytest.mark.parametrize("scale", [1.0, 0.02])
def test_random_values_are_normal_and_repeat(backend: Backend, scale: float) -> None:
    values = drawn(backend, (DRAWS // 8, 8), scale, 3)
    assert values.shape == (DRAWS // 8, 8)
    # The distance from the normal distribution that one draw of 10,000 exceeds, and rounding.
    rounding = 0.004 if backend.dtype == "bfloat16" else 0.0005
    found = stats.kstest(values.reshape(-1) / scale, "norm").statistic
    assert found < 2.3 / math.sqrt(DRAWS) + rounding
    # Independent along both axes.
    assert abs(np.corrcoef(values[:, 0], values[:, 1])[0, 1]) < 0.06
    assert abs(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]) < 0.06
    np.testing.assert_array_equal(values, drawn(backend, (DRAWS // 8, 8), scale, 3))
    assert not np.array_equal(values, drawn(backend, (DRAWS // 8, 8), scale, 4))


def test_random_arrays_have_the_backends_dtype(backend: Backend) -> None:
    dtype = backend.run(lambda: str(backend.random_normal((2, 3), 1.0, 0).dtype))
    assert dtype.rpartition(".")[2] == backend.dtype


def test_every_bit_of_random_words_is_random(any_backend: Backend) -> None:
    def on_backend(seed: int) -> NDArray[Any]:
        words = any_backend.random_words((DRAWS // 8, 8), seed)
        assert str(words.dtype).rpartition(".")[2] == "uint32"
        # No operation brings words to the host; arrays of all libraries have `tolist`.
        return np.array(words.tolist(), np.uint32)

    def draw(seed: int) -> NDArray[Any]:
        return any_backend.run(on_backend, seed)

    words = draw(3)
    assert words.shape == (DRAWS // 8, 8)
    ones = (words[..., None] >> np.arange(32, dtype=np.uint32)) & 1
    # Five standard deviations of a fair coin's mean, for each of the 32 bits and 8 columns.
    assert np.abs(ones.mean(axis=(0, 1)) - 0.5).max() < 2.5 / math.sqrt(DRAWS)
    assert np.abs(ones.mean(axis=(0, 2)) - 0.5).max() < 2.5 / math.sqrt(4 * DRAWS)
    assert np.abs(np.corrcoef(ones.reshape(-1, 32).T) - np.eye(32)).max() < 5 / math.sqrt(DRAWS)
    np.testing.assert_array_equal(words, draw(3))
    assert not np.array_equal(words, draw(4))


@pytest.mark.parametrize("shape", [(), (0, 3), (5,)])
def test_random_arrays_of_any_shape(any_backend: Backend, shape: tuple[int, ...]) -> None:
    assert drawn(any_backend, shape, 1.0, 0).shape == shape


def test_a_scale_of_zero_gives_zeros(any_backend: Backend) -> None:
    assert (drawn(any_backend, (3,), 0.0, 0) == 0).all()


def test_a_copy_does_not_follow_the_array(any_backend: Backend) -> None:
    def change() -> NDArray[Any]:
        array = any_backend.asarray([1.0, 2.0])
        twin = any_backend.copy(array)
        any_backend.synchronize(twin)
        array += 1
        any_backend.synchronize(array)
        return any_backend.to_numpy(twin)

    assert any_backend.run(change).tolist() == [1, 2]


@pytest.mark.parametrize("gives", ["array", "arrays", "nothing"])
def test_timed_makes_each_call_once_and_in_order(any_backend: Backend, gives: str) -> None:
    calls: list[int] = []

    def call(index: int) -> Any:
        calls.append(index)
        made = [any_backend.asarray([index]) * 2, any_backend.asarray([index]) * 3]
        return {"array": made[0], "arrays": made, "nothing": None}[gives]

    seconds = any_backend.run(any_backend.timed, call, 5)
    assert calls == [0, 1, 2, 3, 4]
    assert len(seconds) == 5
    assert all(math.isfinite(second) and second >= 0 for second in seconds)


def test_timed_counts_the_work_that_is_returned(any_backend: Backend) -> None:
    """More work, more time: 4,096 times as many products."""

    def times() -> tuple[list[float], list[float]]:
        def product(size: int) -> list[float]:
            x = any_backend.random_normal((size, size), 1.0, 0)
            any_backend.timed(lambda index: any_backend.linear(x, x), 1)
            return any_backend.timed(lambda index: any_backend.linear(x, x), 3)

        return product(64), product(1024)

    few, many = any_backend.run(times)
    assert min(many) > min(few)


def test_some_memory_is_free(any_backend: Backend) -> None:
    free = any_backend.run(any_backend.memory_free)
    assert isinstance(free, int)
    assert 2**20 < free < 2**50
