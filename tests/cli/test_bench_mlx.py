"""`omnitide bench --backend mlx`: as a program on the CPU, and with its shaders on the harness."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from metal_cpu_harness.variant import metal_backend, variant_missing

from omnitide.backends import describe_backend
from omnitide.bench.ceilings import Ceilings
from omnitide.cli import bench as bench_module

MARKS = ("--high-watermark", 300, "--low-watermark", 200)
SMALL: dict[str, tuple[Any, ...]] = {
    "attention": ("--history", 100, "--queries", 1, 9),
    "migrate": ("--rows", 20),
    "decode": ("--history", 100, "--layers", 1),
    "update": ("--history", 200, "--tokens", 16, *MARKS),
    "session": ("--stream", "audio", "--minutes", 1, *MARKS),
}
"""Benchmarks with options that make them short."""

MEASURED = {
    "attention": "us",
    "migrate": "us",
    "decode": "ms",
    "update": "ms",
    "session": "first_ms",
}
"""A field of each benchmark's rows that holds a time."""

LAUNCHED = {
    "attention": {"decode_attention", "decode_reduce", "prefill_attention", "rotate"},
    "migrate": {"gather_rows"},
    "decode": {"decode_attention", "decode_reduce"},
    # The last layer of an update has one query.
    "update": {"decode_attention", "decode_reduce", "prefill_attention", "rotate"},
}
"""Shaders that each benchmark needs. A session launches what updates and decoding do, for long."""


def arguments(name: str) -> tuple[Any, ...]:
    given = ("--shape", "tiny", "--repeat", 1, "--backend", "mlx", "--dtype", "float32")
    return ("bench", name, *given, *SMALL[name], "--json")


def check(found: dict[str, Any], name: str) -> None:
    assert found["bench"] == name
    assert (found["machine"]["backend"], found["machine"]["dtype"]) == ("mlx", "float32")
    assert len(found["rows"]) == {"attention": 2, "update": 2}.get(name, 1)
    assert all(row[MEASURED[name]] > 0 for row in found["rows"])


@pytest.mark.skipif(
    not describe_backend("mlx").available, reason=f"mlx: {describe_backend('mlx').note}"
)
@pytest.mark.parametrize("name", SMALL)
def test_the_program_measures_on_mlx(name: str, program: Callable[..., Any]) -> None:
    done = program(*arguments(name))
    assert (done.code, done.err) == (0, "")
    check(done.json(), name)


@pytest.mark.parametrize("name", LAUNCHED)
def test_the_shaders_are_what_is_measured(
    name: str, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = variant_missing()
    if reason is not None:
        pytest.skip(reason)
    from metal_cpu_harness.launcher import MetalOnCpu

    launcher = MetalOnCpu()

    def load(backend: str, dtype: str) -> Any:
        assert backend == "mlx"
        return metal_backend(dtype, launcher)

    monkeypatch.setattr(bench_module, "load_backend", load)
    monkeypatch.setattr(bench_module, "measure", lambda backend: Ceilings(1e10, 1e11))
    done = call(*arguments(name))
    assert (done.code, done.err) == (0, "")
    check(json.loads(done.out), name)
    assert {launch.name for launch in launcher.launches} == LAUNCHED[name]
