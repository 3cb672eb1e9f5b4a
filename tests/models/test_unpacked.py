"""Quantised matrices of a small model are made floats once, by a backend that asks for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide.backend import Backend
from omnitide.backends.reference.backend import ReferenceBackend
from omnitide.models import load_model
from omnitide.models.headers import TensorInfo
from omnitide.models.quantized import QuantizedInfo, QuantizedParts, kept_as_floats
from omnitide.quantized import QuantizedWeight

Logits = Callable[[], tuple[Any, list[Any]]]


def info(rows: int, columns: int) -> QuantizedInfo:
    """A matrix of 8 bits in groups of 64."""
    file = Path("model.safetensors")
    stored = [
        TensorInfo("a.weight", (rows, columns // 4), "U32", file),
        TensorInfo("a.scales", (rows, columns // 64), "BF16", file),
        TensorInfo("a.biases", (rows, columns // 64), "BF16", file),
    ]
    return QuantizedInfo(QuantizedParts(*stored), (rows, columns), 8, 64, "affine")


@pytest.mark.parametrize(("most", "kept"), [(40 * 64 * 4, True), (40 * 64 * 4 - 1, False)])
def test_all_matrices_together_meet_the_limit(most: int, kept: bool) -> None:
    plain = TensorInfo("b.weight", (1000, 1000), "BF16", Path("model.safetensors"))
    weights = [info(30, 64), plain, info(10, 64)]
    assert kept_as_floats(weights, 4, most) is kept
    assert kept_as_floats(weights, 8, most) is False


@pytest.fixture
def quantized(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """A random checkpoint with a decoder of 8 bits."""
    from omnitide.cli import main

    out = tmp_path / "eight"
    command = ["convert", "--model", str(tiny_checkpoint()), "--mlx-path", str(out)]
    assert main([*command, "--q-bits", "8"]) == 0
    return out


@pytest.fixture
def logits(quantized: Path, bare_cache: Any, reference: Backend) -> Logits:
    """`logits()`: of a text, and the weights of the model's first layer."""

    def run() -> tuple[Any, list[Any]]:
        model = load_model(quantized, reference)
        asked = model.encode_prompt("The same text for all.")
        layer = model.decoder.layers[0]
        weights = [matrix.weight for matrix in (layer.mlp.gate, layer.mlp.up)]
        return bare_cache(model).prefill(asked.unit, asked.embeddings), weights

    return lambda: reference.run(run)


def test_floats_give_the_bits_of_packed_matrices(
    logits: Logits, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_floats, arrays = logits()
    monkeypatch.setattr(ReferenceBackend, "unpacked_bytes", 0)
    packed, matrices = logits()
    assert all(isinstance(array, np.ndarray) for array in arrays)
    assert all(isinstance(matrix, QuantizedWeight) for matrix in matrices)
    np.testing.assert_array_equal(as_floats, packed)
