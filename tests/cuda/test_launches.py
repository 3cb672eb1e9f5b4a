"""What the host classes pass to their kernels, without a GPU: number, order and types of arguments.

CuPy is replaced by NumPy arrays with an address; the parameters are read from the kernels' text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backends.cuda import (
    cache_writes,
    device_step,
    eight_bit,
    elementwise,
    norms,
    plain_attention,
)
from omnitide.backends.cuda import sampling as sampling_module
from omnitide.backends.cuda.instances import Instance
from omnitide.pages import PAGE_SIZE
from omnitide.step import Step

DTYPES = {"__half": np.float16, "__nv_bfloat16": ml_dtypes.bfloat16, "float": np.float32}
SCALARS = {"int": np.int32, "long long": np.int64, "float": np.float32, "bool": np.bool_}
POINTERS = {
    "int": np.int32,
    "unsigned": np.uint32,
    "float": np.float32,
    "signed char": np.int8,
}
LARGEST_BLOCK, LARGEST_SHARED = 1024, 99 * 1024


def check_launch(
    instance: Instance,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    args: tuple[Any, ...],
    shared: int,
) -> None:
    """Compare a launch with the kernel's parameters."""
    kernel, _, template = instance.name.partition("<")
    declared = re.search(rf"\b{kernel}\(([^)]*)\)", _kernel_text(instance, kernel))
    assert declared is not None
    storage = DTYPES.get(template.split(",")[0].rstrip(">"))
    parameters = [" ".join(text.split()) for text in declared[1].split(",")]
    assert len(parameters) == len(args), (parameters, len(args))
    for parameter, arg in zip(parameters, args, strict=True):
        kind = parameter.rpartition(" ")[0].removeprefix("const ")
        if "* const*" in kind:
            assert arg.dtype == np.uint64, parameter
        elif kind.endswith("*"):
            assert isinstance(arg, np.ndarray), parameter
            if kind != "Unit*":
                assert arg.dtype == (storage if kind == "T*" else POINTERS[kind[:-1]]), parameter
        else:
            assert type(arg) is SCALARS[kind], parameter
    assert all(size > 0 for size in grid)
    assert len(grid) <= 3
    assert all(size < 1 << 16 for size in grid[1:])
    assert 0 < np.prod(block) <= LARGEST_BLOCK
    assert shared <= LARGEST_SHARED


def _kernel_text(instance: Instance, kernel: str) -> str:
    """The text from the kernel's __global__ on."""
    text = instance.source
    starts = [m.start() for m in re.finditer("__global__", text)]
    return next(text[s:] for s in starts if re.match(rf"[^{{;]*?\b{kernel}\(", text[s:]))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, fake_cupy: SimpleNamespace) -> list[str]:
    """Names of the kernels that were launched, each of them checked."""
    for module in (cache_writes, device_step, elementwise, norms, plain_attention, sampling_module):
        monkeypatch.setattr(module, "cp", fake_cupy)
    return []


@pytest.fixture
def compiler(launched: list[str]) -> Callable[[Instance], Any]:
    def compiled(instance: Instance) -> Any:
        def launch(
            grid: Any, block: Any, args: Any, shared: int = 0, overlap: bool = False
        ) -> None:
            check_launch(instance, grid, block, args, shared)
            launched.append(instance.name)

        return launch

    return compiled


@pytest.fixture
def fake(fake_cupy: SimpleNamespace) -> Callable[[NDArray[Any]], Any]:
    """A host array, as if on the device."""
    made: Callable[[NDArray[Any]], Any] = fake_cupy.asarray
    return made


@pytest.fixture
def array(dtype: str, values: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    rng = np.random.default_rng(1)
    return lambda *shape: fake(values(rng, dtype, *shape))


@pytest.mark.parametrize("dim", [128, 18])
def test_cache_writes(
    compiler: Any,
    launched: list[str],
    array: Callable[..., Any],
    fake: Callable[..., Any],
    make_step: Callable[..., Any],
    dim: int,
) -> None:
    step: Step = make_step(np.random.default_rng(2), dim, 100, 9, 3)
    keys, rotated, pool_values = ([array(3, 2, PAGE_SIZE, dim) for _ in range(2)] for _ in range(3))
    k = array(9, 5, dim)[:, 1:3]
    writes = cache_writes.CacheWrites(compiler, 1)
    writes.append(keys[0], rotated[0], pool_values[0], k, k, device_step.DeviceStep.of(step))
    writes.turn(keys, rotated, *(fake(x) for x in (step.slots, step.cos, step.sin)))
    slots = np.arange(9, dtype=np.int32)
    writes.migrate(keys + pool_values, slots, slots + 50)
    writes.migrate(keys, slots, slots + 1)
    assert [name.partition("<")[0] for name in launched] == [
        *("append", "turn", "move_rows"),
        *("gather_rows", "move_rows") * 2,
    ]
    narrow = [name.endswith((", 1>", "<unsigned>")) for name in launched]
    assert all(narrow) if dim == 18 else not any(narrow)


@pytest.mark.parametrize(
    ("dim", "unit"), [(128, "uint4"), (20, "unsigned"), (18, "unsigned short")]
)
def test_bytes_move_in_the_largest_unit_that_fits(
    compiler: Any, launched: list[str], fake: Callable[..., Any], dim: int, unit: str
) -> None:
    rows = [fake(np.zeros((3, 2, PAGE_SIZE, dim), np.int8)) for _ in range(2)]
    slots = np.arange(9, dtype=np.int32)
    cache_writes.CacheWrites(compiler).migrate(rows, slots, slots + 50)
    assert launched == [f"move_rows<{unit}>"]


@pytest.mark.parametrize("dim", [128, 18])
def test_rows_of_eight_bits(
    compiler: Any,
    launched: list[str],
    dtype: str,
    array: Callable[..., Any],
    fake: Callable[..., Any],
    make_step: Callable[..., Any],
    dim: int,
) -> None:
    step: Step = make_step(np.random.default_rng(2), dim, 100, 9, 3)
    at = device_step.DeviceStep.of(step)
    keys, values = (fake(np.zeros((3, 2, PAGE_SIZE, dim), np.int8)) for _ in range(2))
    scales = [fake(np.zeros((3, 2, PAGE_SIZE), np.float32)) for _ in range(2)]
    angles = tuple(fake(np.zeros((3 * PAGE_SIZE, dim // 2), np.float32)) for _ in range(2))
    factors = fake(np.zeros((2, dim), np.float32))
    k = array(9, 5, dim)[:, 1:3]
    rows = eight_bit.EightBitRows(compiler)
    rows.factors(k, factors)
    rows.pack((keys, values, *scales), factors, angles, k, k, at)
    rows.place_angles(angles, *(fake(x) for x in (step.slots, step.cos, step.sin)))
    wide = array(3, 2, PAGE_SIZE, dim), array(3, 2, PAGE_SIZE, dim)
    rows.widen((keys, values, *scales), factors, angles, wide, at)
    found = [name.partition("<")[0] for name in launched]
    assert found == ["channel_factors", "pack_rows", "place_angles", "widen"]
    width = "1" if dim == 18 else str(16 // wide[0].dtype.itemsize)
    assert launched[-1].endswith(f", {width}>")


@pytest.mark.parametrize("columns", [16384, 33])
def test_norms_and_elementwise(
    compiler: Any,
    launched: list[str],
    array: Callable[..., Any],
    fake: Callable[..., Any],
    columns: int,
) -> None:
    x, weight = array(3, columns), array(columns)
    made = norms.Norms(compiler)
    made.rms_norm(x, weight, 1e-6)
    made.add_rms_norm(x, x, weight, 1e-6)
    made.layer_norm(x, weight, weight, 1e-6)
    ops = elementwise.Elementwise(compiler)
    ops.swiglu(x, x)
    ops.swiglu(array(3, 2 * columns)[:, :columns], array(3, 2 * columns)[:, columns:])
    ops.gelu(x)
    ops.gelu_tanh(x)
    ops.relu(x)
    ops.add(x, x)
    ops.add_bias(x, weight)
    ops.add_bias(x, weight, x)
    table = fake(np.zeros((3, 9), np.float32))
    ops.rotate(array(3, 2, 18), table, table)
    ops.take(x, fake(np.zeros(5, np.int32)))
    assert len(launched) == 13


@pytest.mark.parametrize("size", [152_064, 5])
def test_sampling(compiler: Any, launched: list[str], array: Callable[..., Any], size: int) -> None:
    sampling = sampling_module.Sampling(compiler)
    sampling.log_softmax(array(size))
    sampling.argmax(array(size))
    assert len(launched) == 4


@pytest.mark.parametrize("dim", [2, 128, 256])
def test_plain_attention(
    compiler: Any,
    launched: list[str],
    array: Callable[..., Any],
    fake: Callable[..., Any],
    make_step: Callable[..., Any],
    dim: int,
) -> None:
    step: Step = make_step(np.random.default_rng(3), dim, 150, 9, 3)
    at = device_step.DeviceStep.of(step)
    attention = plain_attention.PlainAttention(compiler, 132)
    q, pool = array(9, 4, dim), array(3, 2, PAGE_SIZE, dim)
    attention.attend(q, pool, pool, at, 0.1)
    attention.mass(q, pool, at, 0.1, step.num_cells, fake(step.tiles.cells))
    attention.segments(q, q, q, (4, 5), (4, 5), 0.1)
    assert [name.partition("<")[0] for name in launched] == [
        *("plain_attend", "plain_join"),
        *("plain_attend", "plain_mass", "plain_mass_sum"),
        "plain_segments",
    ]
