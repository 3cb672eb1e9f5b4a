"""The host side of the whole backend, without a GPU: what it launches, in which order, with what.

CuPy is replaced by NumPy and every kernel by a check of its arguments against the parameters in the
kernel's text. Kernels compute nothing, so no value is compared here but for what the host computes.
"""

from __future__ import annotations

import ctypes
import gc
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.backends.cuda import backend as backend_module
from omnitide.backends.cuda import blas, compiler, prefill_hopper
from omnitide.backends.cuda import quantized as quantized_module
from omnitide.backends.cuda.device import Device
from omnitide.backends.cuda.instances import Instance
from omnitide.backends.cuda.paged import LEAST_TILES, room_for
from omnitide.backends.cuda.passes import Recording
from omnitide.config import MediaOptions, RetentionConfig
from omnitide.errors import BackendError
from omnitide.memory import Room, memory_need
from omnitide.models.decoder import Decoder
from omnitide.models.names import text_tensors
from omnitide.models.outline import read_outline
from omnitide.models.qwen2_5_omni.config import parse_config
from omnitide.models.qwen2_5_omni.tiny import tiny_config
from omnitide.quantized import QuantizedWeight
from omnitide.step import Step

STORAGE = {"__half": np.float16, "__nv_bfloat16": ml_dtypes.bfloat16, "float": np.float32}
SCALARS = {
    "bool": np.bool_,
    "int": np.int32,
    "unsigned": np.uint32,
    "long long": np.int64,
    "unsigned long long": np.uint64,
    "float": np.float32,
}
SHARED = {True: 227 * 1024, False: 99 * 1024}
"""Most shared memory of a block on Hopper, and on the smallest chips."""


class Launches:
    """Stands in for the compiler's kernels: checks each launch and remembers its name."""

    def __init__(self, hopper: bool) -> None:
        self.names: list[str] = []
        self.hopper = hopper

    def kernel(self, instance: Instance) -> Callable[..., None]:
        name, _, template = instance.name.partition("<")
        parameters = _parameters(instance.source, name)
        storage = STORAGE.get(template.split(",")[0].rstrip(">"))

        def launch(
            grid: Any, block: Any, args: Any, shared: int = 0, overlap: bool = False
        ) -> None:
            assert len(args) == len(parameters), (instance, len(args), parameters)
            for parameter, arg in zip(parameters, args, strict=True):
                _check(parameter, arg, storage)
            assert 1 <= len(grid) <= 3
            assert all(type(size) is int and size > 0 for size in (*grid, *block))
            assert all(size < 1 << 16 for size in grid[1:])
            assert np.prod(block) <= 1024
            assert shared <= SHARED[self.hopper]
            assert self.hopper or instance.arch is None
            self.names.append(name)

        return launch


def _parameters(source: str, name: str) -> list[str]:
    """The parameters of a kernel, with a macro that stands for all of them written out."""
    start = next(m.end() for m in re.finditer(rf"\b{name}\(", source) if _is_kernel(source, m))
    text = source[start : source.index(") {", start)]
    if re.fullmatch(r"[A-Z_]+", text):
        macro = re.search(rf"#define {text}\b(.*?[^\\])\n", source, re.DOTALL)
        assert macro is not None
        text = macro[1].replace("\\", " ")
    return [" ".join(parameter.split()) for parameter in text.split(",")]


def _is_kernel(source: str, match: re.Match[str]) -> bool:
    before = source[: match.start()]
    return "__global__" in before[max(before.rfind(";"), before.rfind("}"), 0) :]


def _check(parameter: str, arg: Any, storage: Any) -> None:
    kind = re.sub(r"\bconst\b|__grid_constant__|__restrict__", "", parameter)
    kind = " ".join(kind.split())
    if "*" in kind:
        is_null = type(arg) is np.uint64 and arg == 0
        assert is_null or isinstance(arg, np.ndarray), parameter
        if kind.startswith("T ") and not is_null:
            assert arg.dtype == storage, parameter
        return
    kind = kind.rpartition(" ")[0]
    if kind == "TensorMap":
        assert arg.nbytes == 128
    else:
        assert type(arg) is SCALARS[kind], (parameter, type(arg))


class Stream:
    """A stream that knows whether it is being recorded."""

    ptr = 1

    def __init__(self) -> None:
        self.recording = False

    def use(self) -> None:
        return None

    def synchronize(self) -> None:
        assert not self.recording

    def begin_capture(self) -> None:
        assert not self.recording
        self.recording = True

    def end_capture(self) -> SimpleNamespace:
        self.recording = False
        return SimpleNamespace(launch=lambda stream: None)


class Memory(SimpleNamespace):
    """CuPy's memory pointer."""

    def __init__(self, ptr: int) -> None:
        super().__init__(ptr=ptr)

    def copy_from_device_async(self, source: Memory, size: int) -> None:
        ctypes.memmove(self.ptr, source.ptr, size)


class DeviceArray(np.ndarray):  # type: ignore[type-arg]
    """A NumPy array with CuPy's address, flags and copying."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return Memory(self.ctypes.data)

    @property
    def flags(self) -> Any:
        return SimpleNamespace(c_contiguous=np.ndarray.flags.__get__(self).c_contiguous)

    def set(self, values: NDArray[Any], stream: Any) -> None:
        assert not stream.recording
        self[...] = values


def stand_in(stream: Stream, capability: str) -> SimpleNamespace:
    """As much of CuPy as the backend uses."""

    @contextmanager
    def using_allocator(allocator: object) -> Iterator[None]:
        yield

    def on_device(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            # Copies from the host can't be recorded.
            assert make is not np.asarray or not stream.recording
            return make(*args, **kwargs).view(DeviceArray)

        return made

    makers = {name: getattr(np, name) for name in ("zeros", "full", "asarray", "concatenate")}
    makers |= {
        "ascontiguousarray": np.ascontiguousarray,
        # Kernels are not run: the host reads zeros where they would have written.
        "empty": np.zeros,
        "empty_like": np.zeros_like,
    }
    device = SimpleNamespace(
        compute_capability=capability, attributes={"MaxSharedMemoryPerBlockOptin": 101_376}
    )
    pool = SimpleNamespace(malloc=None, total_bytes=lambda: 0, free_all_blocks=lambda: None)
    cuda = SimpleNamespace(
        Stream=lambda non_blocking: stream,
        get_current_stream=lambda: stream,
        Device=lambda: device,
        MemoryPool=lambda allocator: pool,
        using_allocator=using_allocator,
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        runtime=SimpleNamespace(memGetInfo=lambda: (1 << 30, 2 << 30)),
        alloc_pinned_memory=bytearray,
        Event=lambda disable_timing: SimpleNamespace(
            record=lambda stream: None, synchronize=lambda: None
        ),
    )
    return SimpleNamespace(
        ndarray=DeviceArray,
        cuda=cuda,
        asnumpy=np.asarray,
        get_default_memory_pool=lambda: pool,
        **{name: on_device(make) for name, make in makers.items()},
    )


@pytest.fixture(params=["90", "86"], ids=["hopper", "ampere"])
def hopper(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "90")


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, hopper: bool) -> Launches:
    found = Launches(hopper)
    fake = stand_in(Stream(), "90" if hopper else "86")
    for name, module in list(sys.modules.items()):
        if name.startswith("omnitide.backends.cuda.") and hasattr(module, "cp"):
            monkeypatch.setattr(module, "cp", fake)
    monkeypatch.setattr(compiler, "Kernel", found.kernel)

    def gemm(*args: Any) -> int:
        assert len(args) == len(blas._ARGUMENTS)
        for kind, arg in zip(blas._ARGUMENTS, args, strict=True):
            kind.from_param(arg)  # raises if it can't be passed so
        found.names.append("cublas")
        return 0

    others = ("Create_v2", "Destroy_v2", "SetStream_v2", "SetWorkspace_v2")
    library = SimpleNamespace(**{f"cublas{name}": lambda *args: 0 for name in others})
    library.cublasGemmEx = gemm
    monkeypatch.setattr(blas, "_library", lambda: library)
    tensor_map = np.zeros(1, "V128")
    monkeypatch.setattr(prefill_hopper, "TensorMaps", lambda *box: lambda pool: tensor_map)
    return found


def make_backend(dtype: str, hopper: bool) -> Any:
    capability = (9, 0) if hopper else (8, 6)
    shared = SHARED[hopper]
    return backend_module.CudaBackend(dtype, Device("a GPU", capability, 132, shared, 24 << 30, {}))


def step_of(cells: int, queries: int, rotation: int | None) -> Step:
    orders = np.arange(cells, dtype=np.int32)
    table = np.zeros((cells, 64), np.float32)
    new = slice(cells - queries, None)
    slots = orders.copy()
    return Step(
        slots,
        orders,
        table,
        table,
        slots[new],
        orders[new],
        table[new],
        table[new],
        rotation=rotation,
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("queries", [1, 3, 7, 70])
@pytest.mark.parametrize("qk_norm", [False, True], ids=["qwen2", "qwen3"])
def test_a_pass_launches_what_it_should(
    dtype: str, queries: int, qk_norm: bool, hopper: bool, launches: Launches
) -> None:
    backend = make_backend(dtype, hopper)
    text = parse_config(tiny_config(layers=2)).text
    text = replace(text, qkv_bias=not qk_norm, qk_norm=qk_norm)
    weights = {
        name: backend.asarray(np.zeros(shape, np.float32))
        for name, shape in text_tensors(text).items()
    }
    decoder = Decoder(text, backend, weights)
    pools = backend.run(backend.new_pools, 2, 1, 128, 6)

    def go(rotation: int | None) -> list[str]:
        launches.names.clear()
        x = backend.asarray(np.zeros((queries, 256), np.float32))
        step = step_of(100 + queries, queries, rotation)
        backend.run(backend.forward_pass, decoder.forward, x, pools, step)
        return list(launches.names)

    first, second, third = go(0), go(0), go(0)
    halves = dtype != "float32"
    # The last layer has one query; a pass that is recorded has been run before that.
    last = "decode_attention" if halves else "plain_attend"
    before = "prefill_attention" if halves and queries > 16 else last
    ran = [name for name in first if name.startswith((before, last))]
    expected = [before, last] * (2 if queries == 1 else 1)
    assert all(name.startswith(start) for name, start in zip(ran, expected, strict=True))
    assert first[0] == "turn"
    assert first.count("append") in (2, 4)
    # One token is recorded at once, other passes when they come again; then they are replayed.
    assert first.count("append") == (4 if queries == 1 else 2)
    # Few rows of a 16-bit type are normed by the matrix-vector kernels, but for heads of q and k.
    # Two norms a layer, and one for the logits; several tokens leave the last layer but one row,
    # which is normed apart from what keys and values are made of.
    of_hidden = 5 if queries == 1 else 6
    if halves:
        of_hidden = 3 if queries > 4 else 0
    passes = first.count("append") // 2
    assert first.count("rms_norm") == passes * (of_hidden + 4 * qk_norm)
    assert second.count("append") == (0 if queries == 1 else 4)
    assert third == []
    assert "turn" not in second
    assert go(1) == ["turn"]
    assert go(None).count("turn") == 2
    # The logits of the last token are one row in any case.
    assert ("matvec" in first) == halves
    assert ("cublas" in first) == (not halves or queries > 4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("queries", [1, 3, 70])
def test_a_pass_over_packed_rows_launches_what_it_should(
    dtype: str, queries: int, hopper: bool, launches: Launches
) -> None:
    """Rows are packed and made wide once a layer; factors are made once, and never recorded."""
    backend = make_backend(dtype, hopper)
    pools = backend.run(backend.new_pools, 2, 1, 128, 6, 8)
    attend = ("plain_attend", "decode_attention", "prefill_attention")

    def forward(x: Any, pools: Any, step: Step) -> Any:
        k = x[:, :128].reshape(len(x), 1, 128)
        for layer in range(2):
            backend.append(pools, layer, step, k, k)
            x = backend.attention(x.reshape(len(x), 2, 128), pools, layer, step, 0.1)
        return x.reshape(len(x), 256)[-1]

    def go(rotation: int | None) -> list[str]:
        launches.names.clear()
        x = backend.asarray(np.zeros((queries, 256), np.float32))
        step = step_of(100 + queries, queries, rotation)
        backend.run(backend.forward_pass, forward, x, pools, step)
        ours = {"channel_factors", "pack_rows", "place_angles", "widen"}
        named = ["attend" if name.startswith(attend) else name for name in launches.names]
        return [name for name in named if name in {*ours, "attend"}]

    first, second, third = go(0), go(0), go(0)
    recorded = ["pack_rows", "widen", "attend"] * 2
    eager = ["channel_factors", "pack_rows", "widen", "attend"] * 2
    if queries == 1:
        assert first == ["place_angles", *eager, *recorded]
        assert second == third == []
    else:
        assert first == ["place_angles", *eager]
        assert second == recorded * 2
        assert third == []
    assert go(1) == ["place_angles"]
    assert go(None) == ["pack_rows", "place_angles", "widen", "attend"] * 2
    assert go(1) == ["place_angles"]
    backend.run(
        backend.migrate, pools, np.arange(3, dtype=np.int32), np.arange(200, 203, dtype=np.int32)
    )
    assert launches.names[-2:] == ["move_rows", "move_rows"]
    assert go(1) == ["place_angles"]
    assert go(1) == []


def test_a_replayed_pass_reads_its_own_step_whichever_was_prepared(
    hopper: bool, launches: Launches
) -> None:
    backend = make_backend("bfloat16", hopper)
    pools = backend.run(backend.new_pools, 1, 1, 128, 70)
    x = backend.asarray(np.zeros((1, 256), np.float32))

    def forward(x: Any, pools: Any, step: Step) -> Any:
        return x

    def words() -> list[int]:
        (recording,) = pools.recorder._recordings.values()
        found: list[int] = recording.step.words.tolist()
        return found

    def run(step: Step, prepared: Step | None = None) -> list[int]:
        if prepared is not None:
            backend.run(backend.prepare, pools, prepared)
        backend.run(backend.forward_pass, forward, x, pools, step)
        return words()

    first, second = step_of(100, 1, 0), step_of(101, 1, 0)
    one, two = run(first), run(second)
    assert one != two
    backend.run(backend.prepare, pools, first)
    assert words() == one  # loaded ahead, while the device still computes
    assert run(first) == one
    assert run(second, prepared=first) == two  # another step comes
    assert run(first) == one  # what was prepared before is forgotten
    more = step_of(33 * LEAST_TILES, 1, 0)
    backend.run(backend.prepare, pools, more)
    assert words() == one  # it has more tiles than the recording has room for


def test_a_step_that_was_loaded_ahead_is_not_loaded_again(
    hopper: bool, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make_backend("bfloat16", hopper)
    pools = backend.run(backend.new_pools, 1, 1, 128, 6)
    x = backend.asarray(np.zeros((1, 256), np.float32))
    loads: list[int] = []
    load = Recording.load
    monkeypatch.setattr(Recording, "load", lambda self, w: (loads.append(len(w)), load(self, w)))

    def forward(x: Any, pools: Any, step: Step) -> Any:
        return x

    for number in range(4):
        step = step_of(100 + number, 1, 0)
        backend.run(backend.prepare, pools, step)
        backend.run(backend.forward_pass, forward, x, pools, step)
        assert len(loads) == number  # the first is recorded


def quantized(
    backend: Any, height: int, width: int, mode: str = "affine", bits: int = 4, group: int = 64
) -> QuantizedWeight:
    """A weight of zeros on the backend."""
    packed = backend_module.cp.asarray(np.zeros((height, width * bits // 32), np.uint32))
    shape = (height, width // group)
    if mode != "affine":
        scales = backend_module.cp.asarray(np.zeros(shape, np.uint8))
        return QuantizedWeight(packed, scales, None, bits, group, mode)
    scales, biases = (backend.asarray(np.zeros(shape, np.float32)) for _ in range(2))
    return QuantizedWeight(packed, scales, biases, bits, group, mode)


# By the rows of x: what multiplies, once for each of: q, k, v together; output; gate and up; down.
WAYS = [
    (1, ["quantized_matvec"] * 4),
    (16, ["quantized_matvec"] * 4),
    (17, ["quantized_matmul"] * 4),
    (128, ["quantized_matmul"] * 4),
    (129, ["dequantize", "cublas"] * 7),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("rows", "ways"), WAYS)
def test_quantised_products_go_by_the_rows_of_x(
    dtype: str, rows: int, ways: list[str], hopper: bool, launches: Launches
) -> None:
    backend = make_backend(dtype, hopper)
    hidden, inner = 256, 512
    x, norm = backend.asarray(np.zeros((rows, hidden))), backend.asarray(np.zeros(hidden))
    q, k, v, output = (quantized(backend, size, hidden) for size in (256, 64, 64, 256))
    gate, up, down = (
        quantized(backend, *shape) for shape in ((inner, hidden), (inner, hidden), (hidden, inner))
    )
    bias = backend.asarray(np.zeros(64))

    def go() -> list[Any]:
        outs = backend.project(x, norm, 1e-6, [(q, None), (k, bias), (v, bias)])
        outs.append(backend.linear(x, output, None, x))
        outs.append(backend.gated_mlp(x, norm, 1e-6, (gate, None), (up, None), (down, None)))
        return outs

    outs = backend.run(go)
    assert [out.shape[1] for out in outs] == [256, 64, 64, 256, 256]
    around = ("rms_norm", "swiglu", "add", "add_bias", "join_parts")
    want = ["dequantize", "cublas"] * 7 if dtype == "float32" else ways
    assert [name for name in launches.names if name not in around] == want
    assert ("rms_norm" in launches.names) == (want[0] != "quantized_matvec")


def test_weights_that_differ_are_not_multiplied_together(hopper: bool, launches: Launches) -> None:
    backend = make_backend("bfloat16", hopper)
    x, norm = backend.asarray(np.zeros((3, 256))), backend.asarray(np.zeros(256))
    plain = backend.asarray(np.zeros((64, 256)))
    weights = [
        quantized(backend, 64, 256),
        quantized(backend, 64, 256, bits=8),
        quantized(backend, 64, 256, group=32),
        plain,
    ]
    down = quantized(backend, 256, 64)

    def go() -> None:
        backend.project(x, norm, 1e-6, [(weight, None) for weight in weights])
        for gate, up in ((weights[0], weights[1]), (plain, weights[2]), (plain, plain)):
            backend.gated_mlp(x, norm, 1e-6, (gate, None), (up, None), (down, None))

    backend.run(go)
    products = [name for name in launches.names if name.endswith("matvec")]
    assert products == [
        *("quantized_matvec", "quantized_matvec", "quantized_matvec", "matvec"),
        *("quantized_matvec", "quantized_matvec", "quantized_matvec"),
        *("matvec", "quantized_matvec", "quantized_matvec"),
        *("matvec", "quantized_matvec"),
    ]


@pytest.mark.parametrize(("mode", "group"), [("mxfp4", 32), ("nvfp4", 16)])
def test_four_bit_floats_are_dequantised_for_products(
    mode: str, group: int, hopper: bool, launches: Launches
) -> None:
    backend = make_backend("bfloat16", hopper)
    weight = quantized(backend, 64, 256, mode, 4, group)
    x = backend.asarray(np.zeros((2, 256)))
    assert backend.run(backend.linear, x, weight).shape == (2, 64)
    assert backend.run(backend.take, weight, [3, 1]).shape == (2, 256)
    assert launches.names == ["dequantize_float4", "cublas", "dequantize_float4"]


def test_a_large_matrix_is_dequantised_in_parts(
    hopper: bool, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make_backend("float16", hopper)
    monkeypatch.setattr(quantized_module, "SCRATCH_BYTES", 30 * 256 * 2)
    x = backend.asarray(np.zeros((300, 256)))
    assert backend.run(backend.linear, x, quantized(backend, 64, 256)).shape == (300, 64)
    assert launches.names == ["dequantize", "cublas"] * 3


def test_rows_of_a_quantised_embedding(hopper: bool, launches: Launches) -> None:
    backend = make_backend("bfloat16", hopper)
    taken = backend.run(backend.take, quantized(backend, 64, 256), [3, 63])
    assert taken.shape == (2, 256)
    assert launches.names == ["dequantize"]
    with pytest.raises(ValueError, match=r"\[take\] rows must lie in \[0, 64\)"):
        backend.run(backend.take, quantized(backend, 64, 256), [64])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_other_operations_launch(dtype: str, hopper: bool, launches: Launches) -> None:
    backend = make_backend(dtype, hopper)
    x = backend.asarray(np.zeros((70, 2, 72), np.float32))

    def go() -> None:
        backend.segment_attention(x, x, x, (30, 40), 0.1)
        backend.segment_attention(x[:8], x, x, (3, 5), 0.1, (30, 40))
        backend.rotate(x, np.zeros((70, 36)), np.zeros((70, 36)))
        backend.gelu(x)
        backend.gelu_tanh(x)
        backend.relu(x)
        backend.take(x, [1, 2])
        flat = backend.asarray(np.zeros((70, 144), np.float32))
        weight = backend.asarray(np.zeros(144, np.float32))
        backend.layer_norm(flat, weight, weight, 1e-6)
        backend.argmax(weight)
        backend.log_softmax(weight)
        pools = backend.new_pools(2, 2, 72, 4)
        step = step_of(100, 3, None)
        step = Step(
            step.slots,
            step.orders,
            step.cos[:, :36],
            step.sin[:, :36],
            step.query_slots,
            step.query_orders,
            step.query_cos[:, :36],
            step.query_sin[:, :36],
        )
        backend.append(pools, 1, step, x[:3], x[:3])
        backend.attention(x[:3], pools, 1, step, 0.1)
        backend.attention_mass(x[:3], pools, 1, step, 0.1)
        assert backend.attention_weights(x[:3], pools, 1, step, 0.1).shape == (2, 3, 100)
        backend.migrate(pools, np.arange(3, dtype=np.int32), np.arange(1, 4, dtype=np.int32))
        backend.grow_pools(pools, 9)

    backend.run(go)
    segments = "plain_segments" if dtype == "float32" else "segment_attention"
    for name in (segments, "rotate", "gelu", "take", "layer_norm", "plain_mass", "move_rows"):
        assert name in launches.names


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("queries", [1, 40, 300])
def test_attention_makes_on_the_device_what_is_told(
    dtype: str,
    queries: int,
    hopper: bool,
    launches: Launches,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside the output: the step, angles of all cells while keys are turned, and parts."""
    backend, made = make_backend(dtype, hopper), list[int]()
    step = step_of(2_000, queries, None)
    q = backend.asarray(np.zeros((queries, 8, 128), np.float32))

    def noted(make: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            array = make(*args, **kwargs)
            made.append(array.nbytes)
            return array

        return call

    def go() -> None:
        pools = backend.new_pools(1, 2, 128, 32)
        fake = sys.modules["omnitide.backends.cuda.device_step"].cp
        for name in ("empty", "asarray"):
            monkeypatch.setattr(fake, name, noted(getattr(fake, name)))
        backend.attention(q, pools, 0, step, 0.1)

    backend.run(go)
    told = backend.attention_bytes(2_000, queries, 8, 2, 128)
    # The queries' own angles and orders, a copy of them, and what is a few words.
    assert sum(made) <= told + 4 * queries * (2 + 128) + q.nbytes + 256
    assert told <= 1.1 * sum(made)


def test_attention_weights_read_the_pages_of_the_cells(hopper: bool, launches: Launches) -> None:
    """Pages are gathered and counted anew; the cells and their weights stay what they are."""
    backend = make_backend("float32", hopper)
    rng = np.random.default_rng(4)
    pools = backend.run(backend.new_pools, 2, 1, 128, 9)
    for array in pools.keys:
        array[...] = rng.standard_normal(array.shape)
    whole, part = np.ones((100, 64), np.float32), np.ones((3, 64), np.float32)
    step = replace(
        step_of(100, 3, None),
        slots=(2 * rng.permutation(3 * 64)[:100] + 128).astype(np.int32),
        cos=whole,  # angles of 0: nothing is turned
        query_cos=part,
    )
    used = np.unique(step.slots // 64)
    for array in pools.keys:
        array[np.setdiff1d(np.arange(9), used)] = np.nan
    q = rng.standard_normal((3, 2, 128)).astype(np.float32)
    got = backend.run(backend.attention_weights, q, pools, 1, step, 0.1)
    keys = pools.keys[1][step.slots // 64, 0, step.slots % 64].astype(np.float64)
    scores = np.einsum("qhd,cd->hqc", q, keys) * 0.1
    scores[:, step.orders[None, :] > step.query_orders[:, None]] = -np.inf
    wanted = np.exp(scores - scores.max(axis=2, keepdims=True))
    wanted /= wanted.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(got, wanted, atol=1e-6)


@pytest.mark.parametrize("tiles", [0, 1, 128, 129, 160, 161, 255, 256, 257, 2_098, 4_096, 4_097])
def test_a_recording_has_room_for_a_quarter_more_at_most(tiles: int) -> None:
    room = room_for(tiles)
    assert max(tiles, 128) <= room <= max(1.25 * tiles, 128)


def test_a_history_that_doubles_is_recorded_anew_four_times() -> None:
    assert {room_for(tiles) for tiles in range(257, 513)} == {320, 384, 448, 512}


def test_copies_and_growing_keep_contents(hopper: bool, launches: Launches) -> None:
    backend = make_backend("float16", hopper)
    values = np.random.default_rng(1).standard_normal((5, 7)).astype(np.float16)
    copy = backend.run(lambda: backend.copy(backend.asarray(values)))
    np.testing.assert_array_equal(copy, values)
    pools = backend.run(backend.new_pools, 2, 1, 64, 3)
    before = []
    for arrays in (pools.keys, pools.values):
        for array in arrays:
            array[...] = np.random.default_rng(2).standard_normal(array.shape)
            before.append(np.array(array))
    backend.run(backend.grow_pools, pools, 5)
    after = [np.array(array)[:3] for array in (*pools.keys, *pools.values)]
    np.testing.assert_array_equal(after, before)
    assert {array.shape[0] for array in (*pools.keys, *pools.values, *pools.rotated)} == {5}


def test_packed_rows_grow_with_all_that_is_read_through_them(
    hopper: bool, launches: Launches
) -> None:
    backend = make_backend("float16", hopper)
    pools = backend.run(backend.new_pools, 2, 1, 64, 3, 8)
    before, recorder = [], pools.recorder
    for arrays in pools.paged:
        for array in arrays:
            array[...] = np.random.default_rng(2).integers(-100, 100, array.shape)
            before.append(np.array(array))
    pools.rotation = 0
    backend.run(backend.grow_pools, pools, 5)
    after = [np.array(array)[:3] for arrays in pools.paged for array in arrays]
    for one, other in zip(after, before, strict=True):
        np.testing.assert_array_equal(one, other)
    assert {array.shape[0] for arrays in pools.paged for array in arrays} == {5}
    assert [array.shape for array in pools.scratch.wide] == [(5, 1, 64, 64)] * 2
    assert [array.shape for array in pools.scratch.angles] == [(5 * 64, 32)] * 2
    assert pools.rotation is None
    assert pools.recorder is not recorder
    with pytest.raises(ValueError, match="num_pages must be at least the present 5, got 4"):
        backend.run(backend.grow_pools, pools, 4)


@pytest.mark.parametrize("fits", range(12))
def test_packed_rows_that_can_not_grow_stay_usable(
    fits: int, hopper: bool, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever array it is that finds no memory: there is room in all for each row there is."""
    from omnitide.backends.cuda import eight_bit_pools
    from omnitide.errors import BackendError

    backend = make_backend("float16", hopper)
    pools = backend.run(backend.new_pools, 2, 1, 64, 3, 8)
    empty, left = eight_bit_pools.cp.empty, [fits]

    def scarce(*args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise MemoryError("out")
        return empty(*args)

    # Two arrays of floats, two of angles, and four of each of two layers.
    monkeypatch.setattr(eight_bit_pools.cp, "empty", scarce)
    with pytest.raises(BackendError, match=r"\[grow_pools\] not enough GPU memory"):
        backend.run(backend.grow_pools, pools, 5)
    arrays = [array for arrays in pools.paged for array in arrays]
    assert pools.num_pages == 3 == min(array.shape[0] for array in arrays)
    assert min(array.shape[0] for array in pools.scratch.wide) >= pools.num_pages
    assert min(array.shape[0] for array in pools.scratch.angles) >= pools.num_pages * 64
    monkeypatch.setattr(eight_bit_pools.cp, "empty", empty)
    backend.run(backend.grow_pools, pools, 5)
    assert pools.num_pages == 5


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_memory_of_packed_rows_is_told_beforehand(
    dtype: str, hopper: bool, launches: Launches, tiny_checkpoint: Callable[..., Path]
) -> None:
    """The pools as keys and values, what they are read through as scratch."""
    outline, backend = read_outline(tiny_checkpoint(), "tiny"), make_backend(dtype, hopper)
    needs = [
        backend.run(
            memory_need,
            outline,
            backend,
            policy="omnipick",
            retention=RetentionConfig(),
            media=MediaOptions(),
            room=Room(20, 100, 100),
            max_kv_size=None,
            kv_bits=bits,
        )
        for bits in (None, 8)
    ]
    spec, pages = outline.spec, needs[0].kv_bytes // (needs[0].token_bytes * 64)
    shape = spec.num_layers, spec.num_kv_heads, spec.head_dim, pages
    plain = backend.run(backend.new_pools, *shape)
    packed = backend.run(backend.new_pools, *shape, 8)
    packed.factors = list(packed.room)  # as after the first rows
    assert [need.kv_bytes for need in needs] == [plain.nbytes, packed.nbytes]
    assert needs[1].scratch_bytes - needs[0].scratch_bytes == packed.scratch.nbytes


def test_lack_of_memory_says_how_much_was_needed(
    hopper: bool, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omnitide.backends.cuda import paged
    from omnitide.errors import BackendError

    backend = make_backend("bfloat16", hopper)

    def refuse(*args: object) -> None:
        raise MemoryError("out")

    monkeypatch.setattr(paged.cp, "empty", refuse)
    with pytest.raises(BackendError, match=r"\[new_pools\].*1\.3 GiB are needed, 1\.0 of 2\.0 GiB"):
        backend.run(backend.new_pools, 28, 4, 128, 256)


def test_attention_over_a_recorded_step_reads_that_step_whatever_was_loaded_since(
    hopper: bool, launches: Launches
) -> None:
    """The recording's room belongs to its next pass, not to the step that it was made with."""
    backend = make_backend("bfloat16", hopper)
    pools = backend.run(backend.new_pools, 1, 1, 128, 70)
    x = backend.asarray(np.zeros((1, 256), np.float32))
    first, second = step_of(100, 1, 0), step_of(101, 1, 0)

    def forward(x: Any, pools: Any, step: Step) -> Any:
        return backend.attention(x.reshape(1, 2, 128), pools, 0, step, 0.1).reshape(1, 256)

    def read(step: Step) -> tuple[int, list[int]]:
        found = backend._cache.on_device(step, pools)
        return int(found.query_slots[0]), found.orders[found.orders >= 0].tolist()

    backend.run(backend.forward_pass, forward, x, pools, first)
    backend.run(backend.prepare, pools, second)
    assert read(first) == (99, list(range(100)))
    assert read(second) == (100, list(range(101)))


@pytest.mark.parametrize("fails_at", range(5))
def test_without_memory_for_all_of_a_migration_no_row_moves(
    hopper: bool, launches: Launches, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """Elements without their scales would be other keys and values."""
    backend = make_backend("bfloat16", hopper)
    pools = backend.run(backend.new_pools, 2, 1, 128, 6, 8)
    fake, left = sys.modules["omnitide.backends.cuda.cache_writes"].cp, [fails_at]

    def scarce(make: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if left[0] == 0:
                raise MemoryError
            left[0] -= 1
            return make(*args, **kwargs)

        return call

    launches.names.clear()
    for name in ("empty", "asarray"):
        monkeypatch.setattr(fake, name, scarce(getattr(fake, name)))
    with pytest.raises(BackendError, match="not enough GPU memory"):
        backend.run(backend.migrate, pools, np.array([1, 2], np.int32), np.array([2, 1], np.int32))
    assert launches.names == []


def test_heads_that_no_kernel_takes_are_refused(hopper: bool, launches: Launches) -> None:
    backend = make_backend("bfloat16", hopper)
    x = backend.asarray(np.zeros((3, 1, 258), np.float32))
    pools = backend.run(backend.new_pools, 1, 1, 258, 4)
    table = np.zeros((3, 129), np.float32)
    at = np.arange(3, dtype=np.int32)
    step = Step(at, at, table, table, at, at, table, table)
    for go in (
        lambda: backend.attention(x, pools, 0, step, 0.1),
        lambda: backend.attention_mass(x, pools, 0, step, 0.1),
        lambda: backend.segment_attention(x, x, x, (3,), 0.1),
        lambda: backend.attention_bytes(100, 3, 1, 1, 258),
    ):
        with pytest.raises(BackendError, match=r"head_dim must be at most 256 on cuda, got 258"):
            backend.run(go)


@pytest.mark.parametrize("rotation", [None, 0], ids=["eager", "recorded"])
def test_pools_that_nobody_holds_make_room_for_new_ones(
    rotation: int | None, hopper: bool, launches: Launches
) -> None:
    backend = make_backend("bfloat16", hopper)
    pools = backend.run(backend.new_pools, 1, 1, 128, 6)
    held = weakref.ref(pools.keys[0])
    step, x = step_of(100, 1, rotation), backend.asarray(np.zeros((1, 256), np.float32))

    def forward(x: Any, pools: Any, step: Step) -> Any:
        return backend.attention(x.reshape(1, 2, 128), pools, 0, step, 0.1).reshape(1, 256)

    backend.run(backend.forward_pass, forward, x, pools, step)
    backend.run(backend.prepare, pools, step_of(101, 1, 0))
    del pools
    backend.run(backend.new_pools, 1, 1, 128, 6)
    gc.collect()
    assert held() is None
