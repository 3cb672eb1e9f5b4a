"""Fixtures of the tests of the Metal-on-CPU harness, which skip where it can't run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from metal_cpu_harness.availability import why_not


@dataclass(frozen=True)
class Kernel:
    """The fields that the MLX backend's kernels have."""

    source: str
    input_names: Sequence[str]
    output_names: Sequence[str] = ("out",)
    template: Sequence[tuple[str, Any]] = ()
    header: str = "using namespace metal;\n"
    name: str = "tried"


@pytest.fixture(scope="session")
def metal_cpu() -> Callable[..., Any]:
    """Makes launchers that run on the CPU: `metal_cpu(**options of MetalOnCpu)`."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    from metal_cpu_harness.launcher import MetalOnCpu

    return MetalOnCpu


@pytest.fixture
def kernel() -> type[Kernel]:
    """Kernels to launch, by source and names."""
    return Kernel
