"""Bytes counted by buffer, against counts by hand."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

SOURCE = """
    uint i = thread_index_in_threadgroup, g = threadgroup_position_in_grid.x;
    T sum = 0;
    for (uint j = 0; j < 4; ++j) sum += a[4 * i + j];  // all threadgroups, half of a
    sum += b[g];                                       // all threads of a threadgroup, the same
    if (i < 8) {
        const device vec<T, 4>* rows = (const device vec<T, 4>*)c;
        sum += rows[g * 8 + i].x + rows[g * 8 + i].w;
    }
    out[g * 32 + i] = sum;
"""


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("seed", [0, 7])
def test_bytes_are_counted(metal_cpu: Any, kernel: Any, dtype: mx.Dtype, seed: int) -> None:
    groups, item = 3, dtype.size
    inputs = {name: mx.zeros((256,), dtype) for name in "abc"}
    outputs = {"out": ((groups * 32,), dtype)}
    launch = metal_cpu(seed=seed)
    made = kernel(SOURCE, list(inputs), template=(("T", dtype),))
    launch(made, inputs, outputs, (groups * 32, 1, 1), (32, 1, 1))
    traffic = launch.launches[0].traffic
    a, b, c, out = (traffic[name] for name in ("a", "b", "c", "out"))
    assert (a.read, a.fetched, a.touched) == tuple(item * n for n in (384, 384, 128))
    assert (b.read, b.fetched, b.touched) == tuple(item * n for n in (96, 3, 3))
    # A compiler may load two components or all four.
    assert item * 2 * 24 <= c.read <= item * 4 * 24
    assert c.read == c.fetched == c.touched
    assert (out.read, out.written) == (0, item * groups * 32)
    assert a.written == b.written == c.written == 0


def test_copies_of_structures_are_counted(metal_cpu: Any, kernel: Any) -> None:
    """The compiler makes one call of them, not loads and stores."""
    header = "using namespace metal;\nstruct Row { float v[48]; };\n"
    source = """
        uint i = thread_position_in_grid.x;
        ((device Row*)out)[i] = ((const device Row*)a)[3 - i];
    """
    launch = metal_cpu()
    made = kernel(source, ["a"], header=header)
    a = mx.arange(192, dtype=mx.float32)
    (got,) = launch(made, {"a": a}, {"out": ((192,), mx.float32)}, (4, 1, 1), (4, 1, 1))
    assert got.reshape(4, 48).tolist() == a.reshape(4, 48)[::-1].tolist()
    traffic = launch.launches[0].traffic
    assert traffic["a"].read == traffic["a"].touched == traffic["out"].written == 768
