"""Each fault that the harness is for, planted in a kernel that is right without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from metal_cpu_harness.errors import CompileError, LaunchError, RuleError
from numpy.typing import NDArray

HEADER = """using namespace metal;
// twice
METAL_FUNC float doubled(const threadgroup float* x, uint i) { return 2.0f * x[i]; }
"""
SOURCE = """
    threadgroup float x[64];
    threadgroup float tile[64];
    uint i = thread_index_in_threadgroup;
    uint at = thread_position_in_grid.x;
    x[i] = float(a[at]);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // across simdgroups
    float y = doubled(x, 63 - i);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // before overwriting
    x[i] = y;
    simdgroup_barrier(mem_flags::mem_threadgroup);  // inside a simdgroup
    y = x[i ^ 1] + simd_max(y);
    if (i < 32) {
        tile[i] = y;
        tile[32 + i] = -y;
        simdgroup_barrier(mem_flags::mem_threadgroup);  // before the matrix
        simdgroup_matrix<float, 8, 8> m;
        simdgroup_load(m, tile, 8);
        simdgroup_multiply(m, m, make_filled_simdgroup_matrix<float, 8, 8>(0.5f));
        simdgroup_barrier(mem_flags::mem_threadgroup);  // in place
        simdgroup_store(m, tile, 8);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // after the matrix
    out[at] = y + tile[i];
"""
SIZE = 128
ORDERED = "no barrier of that memory orders the two"


def expected(a: NDArray[np.float32]) -> NDArray[np.float32]:
    groups = a.reshape(-1, 64)
    y = 2 * groups[:, ::-1].reshape(-1, 2, 32)
    y = y.reshape(-1, 2, 16, 2)[..., ::-1].reshape(-1, 2, 32) + y.max(axis=2, keepdims=True)
    tile = np.concatenate([y[:, 0], -y[:, 0]], axis=1).reshape(-1, 8, 8)
    product = np.repeat(0.5 * tile.sum(axis=2, keepdims=True), 8, axis=2)
    return (y.reshape(-1, 64) + product.reshape(-1, 64)).ravel()


def launch(metal_cpu: Any, made: Any) -> NDArray[np.float32]:
    a = np.random.default_rng(3).integers(-8, 9, SIZE).astype(np.float32)
    outputs = {"out": ((SIZE,), mx.float32)}
    (out,) = metal_cpu(made, {"a": mx.array(a)}, outputs, (SIZE, 1, 1), (64, 1, 1))
    return np.array(out)


@pytest.fixture
def mutant(kernel: Callable[..., Any]) -> Callable[[str, str], Any]:
    """The kernel with one text replaced."""

    def make(old: str, new: str) -> Any:
        assert (HEADER + SOURCE).count(old) == 1
        return kernel(SOURCE.replace(old, new), ["a"], header=HEADER.replace(old, new))

    return make


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
@pytest.mark.parametrize("address_sanitizer", [False, True], ids=["", "sanitized"])
def test_the_kernel_itself_is_right(
    metal_cpu: Any, mutant: Any, seed: int, address_sanitizer: bool
) -> None:
    launcher = metal_cpu(seed=seed, address_sanitizer=address_sanitizer)
    got = launch(launcher, mutant("// twice", "// two times"))
    a = np.random.default_rng(3).integers(-8, 9, SIZE).astype(np.float32)
    np.testing.assert_array_equal(got, expected(a))


TO_SIMDGROUP = "simdgroup_barrier(mem_flags::mem_threadgroup);"
RACES = {
    "no-barrier-across": ("threadgroup_barrier(mem_flags::mem_threadgroup);  // across", "//"),
    "no-barrier-before-overwriting": (
        "threadgroup_barrier(mem_flags::mem_threadgroup);  // before over",
        "//",
    ),
    "simdgroup-barrier-across": (
        "threadgroup_barrier(mem_flags::mem_threadgroup);  // across",
        "simdgroup_barrier(mem_flags::mem_threadgroup);  //",
    ),
    "barrier-of-no-memory": (
        "threadgroup_barrier(mem_flags::mem_threadgroup);  // across",
        "threadgroup_barrier(mem_flags::mem_none);  //",
    ),
    "barrier-of-device-memory": (
        "threadgroup_barrier(mem_flags::mem_threadgroup);  // across",
        "threadgroup_barrier(mem_flags::mem_device);  //",
    ),
    "no-simdgroup-barrier": (TO_SIMDGROUP + "  // inside", "//"),
    "no-simdgroup-barrier-before-matrix": (TO_SIMDGROUP + "  // before", "//"),
    "no-simdgroup-barrier-in-place": (TO_SIMDGROUP + "  // in place", "//"),
    "no-barrier-after-matrix": (
        "threadgroup_barrier(mem_flags::mem_threadgroup);  // after",
        TO_SIMDGROUP + "  //",
    ),
    "every-threadgroup-writes-one": ("out[at] = y", "out[i] = y"),
    "two-threads-write-one": ("out[at] = y", "out[at / 2] = y"),
    "writes-what-another-threadgroup-reads": (
        "out[at] = y + tile[i];",
        "if (at < 64) out[at] = y; else out[at] = out[0];",
    ),
}


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(("old", "new"), RACES.values(), ids=RACES.keys())
def test_a_race_is_found_in_any_order(
    metal_cpu: Any, mutant: Any, old: str, new: str, seed: int
) -> None:
    with pytest.raises(LaunchError, match=f"race: .*{ORDERED}"):
        launch(metal_cpu(seed=seed), mutant(old, new))


DIVERGENT = {
    "barrier-of-some": ("threadgroup_barrier(mem_flags::mem_threadgroup);  // across",
                        "if (i < 40) threadgroup_barrier(mem_flags::mem_threadgroup);  //"),
    "simdgroup-barrier-of-some": (TO_SIMDGROUP + "  // inside",
                                  "if (i % 2) simdgroup_barrier(mem_flags::mem_threadgroup);  //"),
    "simd-function-of-some": ("+ simd_max(y)", "+ (i < 16 ? simd_max(y) : y)"),
    "matrix-of-some": ("if (i < 32) {", "if (i < 31) {"),
    "two-places": ("threadgroup_barrier(mem_flags::mem_threadgroup);  // across",
                   "if (i < 32) threadgroup_barrier(mem_flags::mem_threadgroup);\n"
                   "else threadgroup_barrier(mem_flags::mem_threadgroup);  //"),
    "ended-early": ("x[i] = y;", "if (i == 5) return;\nx[i] = y;"),
}  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("old", "new"), DIVERGENT.values(), ids=DIVERGENT.keys())
def test_divergence_is_found(metal_cpu: Any, mutant: Any, old: str, new: str, seed: int) -> None:
    # Without looking for races: some of these faults are races too.
    with pytest.raises(LaunchError, match=r"divergence: .* line"):
        launch(metal_cpu(seed=seed, races=False), mutant(old, new))


SPACES = {
    "device-for-threadgroup": ("(const threadgroup float* x", "(const device float* x"),
    "thread-for-threadgroup": ("(const threadgroup float* x", "(const thread float* x"),
    "threadgroup-for-device": ("x[i] = float(a[at]);",
                               "const threadgroup float* p = a; x[i] = float(p[at]);"),
    "constant-for-device": ("x[i] = float(a[at]);",
                            "const constant float* p = a; x[i] = float(p[at]);"),
    "local-without": ("x[i] = float(a[at]);", "const float* p = a; x[i] = p[at];"),
    "const-lost": ("x[i] = float(a[at]);", "device float* p = a; x[i] = p[at];"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), SPACES.values(), ids=SPACES.keys())
def test_a_wrong_address_space_is_refused(metal_cpu: Any, mutant: Any, old: str, new: str) -> None:
    with pytest.raises(CompileError, match=r"custom_kernel_tried\w*\.metal:\d+:\d+: error: "):
        launch(metal_cpu(), mutant(old, new))


OUTSIDE = {
    "device-read": (
        "float(a[at])",
        "float(a[at + 1])",
        r"reads 4 bytes: byte 512 of a, which has 512",
    ),
    "device-read-before": ("float(a[at])", "float(a[int(at) - 1])", "reads 4 bytes: byte -4 of a"),
    "device-write": ("out[at] =", "out[at + 1] =", r"writes 4 bytes: byte 512 of out"),
    "device-write-far": ("out[at] =", "out[at + 4000000] =", r"writes 4 bytes: byte \d+"),
    "threadgroup-read": (
        "doubled(x, 63 - i)",
        "doubled(x, 64 - i)",
        "reads 4 bytes: byte 256 of x",
    ),
    "threadgroup-write": ("x[i] = y", "x[i + 1] = y", "writes 4 bytes: byte 256 of x"),
    "matrix": (
        "simdgroup_load(m, tile, 8)",
        "simdgroup_load(m, tile, 9)",
        r"byte 2\d\d of tile, which has 256",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), OUTSIDE.values(), ids=OUTSIDE.keys())
def test_an_access_out_of_bounds_is_found(
    metal_cpu: Any, mutant: Any, old: str, new: str, message: str
) -> None:
    with pytest.raises(LaunchError, match=rf"out of bounds: .*{message}.*\.metal:\d+\)"):
        launch(metal_cpu(races=False), mutant(old, new))


@pytest.mark.parametrize(
    "name", ["device-read", "device-write", "threadgroup-read", "threadgroup-write", "matrix"]
)
def test_the_address_sanitizer_finds_it_too(metal_cpu: Any, mutant: Any, name: str) -> None:
    old, new, _ = OUTSIDE[name]
    with pytest.raises(LaunchError, match=r"heap-buffer-overflow .*(READ|WRITE) of size 4"):
        launch(metal_cpu(address_sanitizer=True), mutant(old, new))


def test_the_address_sanitizer_knows_the_threads_own_arrays(metal_cpu: Any, mutant: Any) -> None:
    """The one thing that only it knows."""
    own = "float own[4]; for (uint j = 0; j < 4; ++j) own[j] = y; out[at] = own[i % 5] +"
    with pytest.raises(LaunchError, match="stack-buffer-overflow"):
        launch(metal_cpu(address_sanitizer=True), mutant("out[at] = y +", own))


def test_a_vector_must_be_aligned(metal_cpu: Any, mutant: Any) -> None:
    """On a CPU it would be right, or end the process."""
    new = "x[i] = (*(const device float4*)(a + (at < 64 ? at : 64))).x;"
    with pytest.raises(LaunchError, match=r"misaligned: thread .* 16 bytes from byte 4 of a"):
        launch(metal_cpu(), mutant("x[i] = float(a[at]);", new))


def test_what_nothing_was_written_to_is_nan(metal_cpu: Any, mutant: Any) -> None:
    """Threadgroup memory, in each threadgroup anew, and outputs."""
    made = mutant("x[i] = float(a[at]);", "if (at != 5 && at != 66) x[i] = float(a[at]);")
    got = launch(metal_cpu(), made)
    assert np.isnan(got[[(63 - 5) ^ 1, 64 + (63 - 2) ^ 1]]).all()
    got = launch(metal_cpu(), mutant("out[at] = y", "if (at != 9) out[at] = y"))
    assert np.isnan(got).nonzero()[0].tolist() == [9]


@pytest.mark.parametrize(("floats", "refused"), [(8064, False), (8065, True)])
def test_threadgroup_memory_ends_at_32_kib(
    metal_cpu: Any, mutant: Any, floats: int, refused: bool
) -> None:
    """With the 512 bytes that the kernel has itself."""
    made = mutant("uint i =", f"threadgroup float more[{floats}];\nmore[0];\nuint i =")
    if not refused:
        assert not np.isnan(launch(metal_cpu(), made)).any()
        return
    with pytest.raises(LaunchError, match="threadgroup memory: 32772 bytes with more, Metal has"):
        launch(metal_cpu(), made)


def test_an_input_is_read_only_unless_allowed(metal_cpu: Any, kernel: Any) -> None:
    source = """
        device float* p = (device float*)a;
        p[thread_position_in_grid.x] += 1.0f;
        out[thread_position_in_grid.x] = 0;
    """
    a = mx.zeros((32,), mx.float32)
    mx.eval(a)

    def run(launcher: Any) -> None:
        outputs = {"out": ((32,), mx.float32)}
        launcher(kernel(source, ["a"]), {"a": a}, outputs, (32, 1, 1), (32, 1, 1))

    with pytest.raises(LaunchError, match=r"read-only: .* writes to input a"):
        run(metal_cpu())
    assert a.sum().item() == 0
    run(metal_cpu(write_through=True))
    assert a.tolist() == [1.0] * 32


def test_the_order_of_threads_is_drawn(metal_cpu: Any, kernel: Any) -> None:
    """Which thread writes last is the seed's choice, and the same for the same seed."""
    source = "out[0] = thread_position_in_grid.x; (void)a;"

    def last(seed: int) -> float:
        outputs = {"out": ((1,), mx.float32)}
        launcher = metal_cpu(seed=seed, races=False)
        inputs = {"a": mx.zeros((8,))}
        return launcher(kernel(source, ["a"]), inputs, outputs, (256, 1, 1), (32, 1, 1))[0].item()

    drawn = [last(seed) for seed in range(1, 13)]
    assert len(set(drawn)) > 4
    assert drawn == [last(seed) for seed in range(1, 13)]
    assert last(0) == 255


RULES = {
    "lambda": "auto f = [&](float v) { return v; }; x[i] = f(a[at]);",
    "exception": "if (a[at] > 100) throw 1; x[i] = a[at];",
    "double": "double d = a[at]; x[i] = d;",
    "heap": "x[i] = *new float(a[at]);",
    "std": "x[i] = std::abs(a[at]);",
}


@pytest.mark.parametrize("new", RULES.values(), ids=RULES.keys())
def test_what_is_not_metal_is_refused(metal_cpu: Any, mutant: Any, new: str) -> None:
    with pytest.raises(RuleError, match=r"line 1[0-9]: Metal"):
        launch(metal_cpu(), mutant("x[i] = float(a[at]);", new))


def test_recursion_is_refused(metal_cpu: Any, mutant: Any) -> None:
    new = "return i > 99 ? doubled(x, i - 1) : 2.0f * x[i];"
    with pytest.raises(RuleError, match="no recursion: doubled calls itself"):
        launch(metal_cpu(), mutant("return 2.0f * x[i];", new))


def test_what_came_with_cpp17_is_refused(metal_cpu: Any, mutant: Any) -> None:
    with pytest.raises(CompileError, match="constexpr if is a C"):
        launch(metal_cpu(), mutant("x[i] = float(a[at]);", "if constexpr (true) x[i] = a[at];"))
