"""What the tests of conversion share: a checkpoint to convert, and values of a result by MLX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from omnitide.convert.conversion import convert
from omnitide.convert.planner import plan_conversion
from omnitide.convert.recipe import Format, Recipe, read_rules
from omnitide.convert.shard import ModuleError


@pytest.fixture
def source(tiny_checkpoint: Callable[..., Path]) -> Path:
    """A small checkpoint in bfloat16, to read only."""
    return tiny_checkpoint()


@pytest.fixture
def run() -> Callable[..., list[ModuleError]]:
    """Convert: `run(source, target, rules=(), bits=4, group=64, **options)`."""

    def call(
        source: Path,
        target: Path,
        rules: tuple[str, ...] = (),
        bits: int = 4,
        group: int = 64,
        dtype: str | None = None,
        drop_unused: bool = False,
        **options: Any,
    ) -> list[ModuleError]:
        format = Format(bits, group)
        recipe = Recipe(format, read_rules(rules, format))
        plan = plan_conversion(source, recipe, dtype, drop_unused)
        return convert(plan, source, target, **options)

    return call


@pytest.fixture
def stored() -> Callable[[Path], dict[str, Any]]:
    """All tensors of a folder, by the safetensors library."""

    def read(folder: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for file in sorted(folder.glob("*.safetensors")):
            found |= load_file(file)
        return found

    return read


@pytest.fixture
def by_mlx() -> Callable[..., list[Any]]:
    """What `mx.quantize` makes of a matrix: `by_mlx(values, group, bits)`."""
    mx = pytest.importorskip("mlx.core", reason="MLX, the oracle, is not installed")

    def quantize(values: Any, group: int, bits: int) -> list[Any]:
        half = values.dtype == ml_dtypes.bfloat16
        array = mx.array(values.view(np.uint16)).view(mx.bfloat16) if half else mx.array(values)
        made = mx.quantize(array, group, bits)
        return [
            np.array(a.view(mx.uint16)).view(ml_dtypes.bfloat16)
            if a.dtype == mx.bfloat16
            else np.array(a)
            for a in made
        ]

    return quantize
