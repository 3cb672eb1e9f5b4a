"""x as whole numbers, as one token is multiplied: the kernel's own text, compiled for the CPU."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from metal_cpu_harness.availability import find_clang
from numpy.typing import NDArray

from omnitide.backends.cuda import instances
from omnitide.backends.cuda.nvrtc import Nvrtc

if sys.platform != "linux":
    pytest.skip("the wheels with CUDA's headers are for Linux", allow_module_level=True)
if find_clang() is None:
    pytest.skip("needs clang: apt-get install clang-19", allow_module_level=True)

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
# In bytes: a word of 4-bit codes is split into its even codes and its odd ones.
ORDERS = {4: [0, 2, 4, 6, 1, 3, 5, 7], 8: [0, 1, 2, 3, 4, 5, 6, 7]}
GREATEST = 32639  # 127 * 256 + 127
# Numbers of at least this share of P are exact.
EXACT_FROM = {"bfloat16": 1 / 256, "float16": 1 / 32}

BITS = pytest.mark.parametrize("bits", [4, 8])
HALVES = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])


@dataclass(frozen=True, slots=True)
class Rounded:
    """Groups as whole numbers, in the order of x, times a factor each; sums of 8 neighbours."""

    numbers: NDArray[np.int64]
    sums: NDArray[np.int32]
    factors: NDArray[np.float64]

    @property
    def values(self) -> NDArray[np.float64]:
        return self.numbers * self.factors[:, None]


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Rounded]:
    """`rounded(x, bits)` of x (groups, group)."""
    library = tmp_path_factory.mktemp("fixed_point") / "fixed_point.so"
    kernels = Path(instances.__file__).parent / "kernels"
    source = Path(__file__).with_name("fixed_point.cpp")
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", f"-I{kernels}"]
    flags += [f"-isystem{folder}" for folder in Nvrtc().includes]
    subprocess.run([str(find_clang()), *flags, str(source), f"-o{library}"], check=True)
    functions = ctypes.CDLL(str(library))

    def call(x: NDArray[Any], bits: int) -> Rounded:
        groups, group = x.shape
        upper, lower = np.empty((2, groups, group // 8, 8), np.int8)
        sums, factors = np.empty((groups, group // 8), np.int32), np.empty(groups, np.float32)
        outputs = [array.ctypes.data_as(ctypes.c_void_p) for array in (upper, lower, sums, factors)]
        function = getattr(functions, f"round_{x.dtype.name}")
        function(bits, x.ctypes.data_as(ctypes.c_void_p), groups, group // 8, *outputs)
        numbers = np.empty(upper.shape, np.int64)
        numbers[..., ORDERS[bits]] = 256 * upper.astype(np.int64) + lower
        return Rounded(numbers.reshape(groups, group), sums, factors.astype(np.float64))

    return call


def powers(x: NDArray[Any]) -> NDArray[np.float64]:
    """P of each group, from what the header says: 255/256 of it are above the greatest."""
    candidates = 2.0 ** np.arange(-111, 130)
    greatest = np.abs(x.astype(np.float64)).max(axis=1)
    return candidates[(255 / 256 * candidates <= greatest[:, None]).sum(axis=1)]


def scattered(dtype: str, groups: int, group: int) -> NDArray[Any]:
    """Numbers of either sign and of many sizes, some zeros; a few groups of nothing else."""
    rng = np.random.default_rng(7)
    middle = rng.uniform(*((-14, 12) if dtype == "float16" else (-140, 120)), (groups, 1))
    size = 2 ** (middle - rng.exponential(4, (groups, group)))
    x = rng.choice([-1.0, 1.0], (groups, group)) * size
    x[rng.random(x.shape) < 0.05] = 0
    x[::50] = 0
    return x.astype(DTYPES[dtype])


def with_every_greatest(dtype: str) -> NDArray[Any]:
    """A group for each of the 65,536 values, which none of the others exceeds in magnitude."""
    value = np.arange(1 << 16, dtype=np.uint16)[:, None]
    magnitude = value & 0x7FFF  # ordered as the numbers are
    rng = np.random.default_rng(8)
    less = (magnitude * rng.random((len(value), 31))).astype(np.uint16)
    less |= rng.choice(np.array([0, 0x8000], np.uint16), less.shape)
    return np.hstack([less[:, :16], value, less[:, 16:]]).view(DTYPES[dtype])


def check(got: Rounded, x: NDArray[Any], dtype: str) -> None:
    """What the header of fixed_point.cuh promises of finite groups."""
    wide, power = x.astype(np.float64), powers(x)[:, None]
    np.testing.assert_array_equal(got.factors, power[:, 0] / 32768)
    assert np.abs(got.numbers).max() <= GREATEST
    error = np.abs(got.values - wide)
    assert (error <= power * 2.0**-16).all()
    large = np.abs(wide) >= EXACT_FROM[dtype] * power
    assert large.any()
    assert not error[large].any()
    packs = got.numbers.reshape(*got.sums.shape, 8)
    np.testing.assert_array_equal(got.sums, packs.sum(axis=-1))


@HALVES
@BITS
@pytest.mark.parametrize("group", [32, 64, 128])
def test_numbers_are_as_near_as_promised(
    rounded: Callable[..., Rounded], dtype: str, bits: int, group: int
) -> None:
    x = scattered(dtype, 400, group)
    check(rounded(x, bits), x, dtype)


@HALVES
@BITS
def test_every_value_as_the_greatest_of_its_group(
    rounded: Callable[..., Rounded], dtype: str, bits: int
) -> None:
    x = with_every_greatest(dtype)
    got = rounded(x, bits)
    with np.errstate(invalid="ignore"):
        greatest = np.abs(x[:, 16].astype(np.float64))
    taken = greatest < 255 / 256 * 2.0**128
    # Infinity, what is no number, and of bfloat16 the greatest number of either sign.
    fraction_bits = 7 if dtype == "bfloat16" else 10
    assert (~taken).sum() == (2 << fraction_bits) + (2 if dtype == "bfloat16" else 0)
    assert np.isnan(got.factors[~taken]).all()
    check(Rounded(got.numbers[taken], got.sums[taken], got.factors[taken]), x[taken], dtype)


@HALVES
def test_a_group_of_zeros_is_zero(rounded: Callable[..., Rounded], dtype: str) -> None:
    x = np.zeros((1, 32), DTYPES[dtype])
    x[0, ::2] = -0.0
    got = rounded(x, 4)
    assert not got.numbers.any()
    assert not got.sums.any()
    np.testing.assert_array_equal(got.factors, [2.0**-126])
