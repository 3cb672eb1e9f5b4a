"""The benchmarks by name: those with published files, and the one that makes its own streams."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from omnitide.errors import ConfigError
from omnitide.evaluation.benchmark import Benchmark
from omnitide.evaluation.livesports import LiveSports
from omnitide.evaluation.needle.benchmark import Needle
from omnitide.evaluation.ovobench import OVOBench
from omnitide.evaluation.streamingbench import StreamingBench
from omnitide.evaluation.svbench import SVBench

BENCHMARKS: dict[str, Callable[[], Benchmark]] = {
    "streamingbench": StreamingBench,
    "svbench": SVBench,
    "livesports": LiveSports,
    "ovobench": OVOBench,
    "needle": Needle,
}


def make_benchmark(name: str, baseline: Path | None = None) -> Benchmark:
    """A benchmark by name. `baseline`: commentaries that `livesports` compares with.

    Raises:
        ConfigError: An unknown name, or a baseline that can't be read.
    """
    if name not in BENCHMARKS:
        raise ConfigError(f"[eval] expected one of {', '.join(BENCHMARKS)}; got {name!r}")
    if baseline is not None:
        return LiveSports(baseline)
    return BENCHMARKS[name]()
