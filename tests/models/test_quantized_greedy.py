"""Greedy tokens of checkpoints of four and eight bits, on every backend and in each of its dtypes.

The matrices are quantised by our converter, so nothing but NumPy is needed where this runs. The
oracle is a checkpoint of the values that the packed words stand for, worked out here word by word,
computed by NumPy in float64 throughout.

Sums are in float32 on every backend, and on `cuda` activations have the backend's dtype: in float32
nothing is rounded but what float32 rounds, in 16 bits what goes into a product and what comes out
of it is. So each dtype has a tolerance for logits, and a conversation is taken only if at every
token the best logit leads the next by more than twice as much: equal tokens are no luck.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from omnitide.backend import Backend
from omnitide.backends import describe_backends, load_backend
from omnitide.convert.affine import quantize
from omnitide.models import load_model
from omnitide.models.qwen2_5_omni.tiny import tiny_config, write_random_checkpoint
from omnitide.quantized import QuantizedWeight

pytestmark = pytest.mark.usefixtures("packed_weights")

WEIGHTS = "model.safetensors"
HEAD = "thinker.lm_head.weight"
KINDS = {f"{bits}-bit-{group}": (bits, group) for bits in (4, 8) for group in (32, 64, 128)}
NUM_TOKENS = 16
SAID = tuple(range(40, 48))
"""Tokens that the model says. With more of them, some logits would lie too close in 16 bits."""

TOLERANCES = {"float64": 1e-9, "float32": 2e-5, "float16": 1e-2, "bfloat16": 5e-2}
"""Most error of a logit, relative to the greatest. In float64 scales and biases are as stored."""

SEEDS = {
    "4-bit-32": 24,
    "4-bit-64": 47,
    "4-bit-128": 33,
    "8-bit-32": 25,
    "8-bit-64": 25,
    "8-bit-128": 25,
}
"""Of models whose conversations have the margins; found by trying one after the other."""


@dataclass(frozen=True, slots=True)
class Talk:
    """A greedy reply, and the logits of each of its tokens, (NUM_TOKENS, vocab_size)."""

    tokens: list[int]
    logits: NDArray[Any]


def _dense(packed: NDArray[Any], scales: NDArray[Any], biases: NDArray[Any], bits: int) -> Any:
    """What packed rows stand for: elements from the lowest bits on, times scale, plus bias."""
    shifts = bits * np.arange(32 // bits, dtype=np.uint32)
    elements = packed[..., None] >> shifts & np.uint32(2**bits - 1)
    groups = elements.reshape(*scales.shape, -1).astype(np.float64)
    wide = groups * scales.astype(np.float64)[..., None] + biases.astype(np.float64)[..., None]
    return wide.reshape(len(packed), -1)


def _write(folder: Path, twin: Path, bits: int, group: int, seed: int) -> None:
    """A checkpoint with every matrix of the language model quantised, and its twin in float64."""
    config = tiny_config()
    config["thinker_config"]["text_config"]["intermediate_size"] = 128  # which 128 divides
    for place in (folder, twin):
        write_random_checkpoint(place, config, seed)
    weights = load_file(folder / WEIGHTS)
    quiet = np.full((len(weights[HEAD]), 1), 0.05, np.float32)
    quiet[list(SAID)] = 1
    weights[HEAD] = (weights[HEAD].astype(np.float32) * quiet).astype(weights[HEAD].dtype)
    dense = {name: weight.astype(np.float64) for name, weight in weights.items()}
    matrices = [
        name
        for name, weight in weights.items()
        if name.startswith(("thinker.model.", "thinker.lm_head")) and weight.ndim == 2
    ]
    assert len(matrices) == 2 + 3 * 7
    for name in matrices:
        parts = quantize(weights[name], bits, group)
        dense[name] = _dense(*parts, bits)
        module = name.removesuffix(".weight")
        for part, values in zip(("weight", "scales", "biases"), parts, strict=True):
            weights[f"{module}.{part}"] = values
    save_file(weights, folder / WEIGHTS)
    save_file(dense, twin / WEIGHTS)


def _talk(folder: Path, backend: Backend, bare_cache: Any) -> tuple[Talk, Any]:
    """The reply to two texts, and the model. Call on the backend's thread.

    The texts are of lengths for which `cuda` takes different kernels than for one token, and than
    for each other.
    """
    model: Any = load_model(folder, backend)
    cached = bare_cache(model)
    for text in ("A long text comes first. " * 7, "And a short one."):
        unit = model.encode_prompt(text)
        logits = cached.prefill(unit.unit, unit.embeddings)[-1]
    tokens: list[int] = []
    rows = []
    while len(tokens) < NUM_TOKENS:
        rows.append(logits)
        tokens.append(int(logits.argmax()))
        unit = model.reply_unit(tokens[-1:], len(tokens) - 1)
        logits = cached.prefill(unit, model.embed(tokens[-1:]))[-1]
    return Talk(tokens, np.stack(rows).astype(np.float64)), model


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Bits and group size."""
    return str(request.param)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """The checkpoint of a kind, and its twin."""

    @cache
    def write(kind: str) -> tuple[Path, Path]:
        folder, twin = (tmp_path_factory.mktemp(name) for name in ("packed", "twin"))
        _write(folder, twin, *KINDS[kind], SEEDS[kind])
        return folder, twin

    return write


@pytest.fixture(scope="module")
def oracle() -> Callable[[Path, Any], Talk]:
    """The reply of a twin, by NumPy in float64."""

    @cache
    def talk(twin: Path, bare_cache: Any) -> Talk:
        backend = load_backend("reference", "float64")
        return backend.run(lambda: _talk(twin, backend, bare_cache)[0])

    return talk


@pytest.fixture(
    params=[
        pytest.param((info, dtype), id=f"{info.name}-{dtype}")
        for info in describe_backends()
        for dtype in info.dtypes
    ]
)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend of the registry in each of its dtypes."""
    info, dtype = request.param
    if not info.available:
        reason = f"{info.name} is not available: {info.note}"
        if info.name in os.environ.get("OMNITIDE_REQUIRE_BACKENDS", "").split(","):
            pytest.fail(reason)
        pytest.skip(reason)
    return load_backend(info.name, dtype)


def test_greedy_tokens_are_those_of_the_dequantised_model_in_float64(
    kind: str,
    backend: Backend,
    folders: Callable[[str], tuple[Path, Path]],
    oracle: Callable[[Path, Any], Talk],
    bare_cache: Any,
) -> None:
    folder, twin = folders(kind)
    want = oracle(twin, bare_cache)
    got, model = backend.run(_talk, folder, backend, bare_cache)
    layer = model.decoder.layers[0]
    packed = (model.decoder.lm_head, layer.q, layer.mlp.gate, layer.mlp.down)
    assert all(isinstance(linear.weight, QuantizedWeight) for linear in packed)
    most = TOLERANCES[backend.dtype] * np.abs(want.logits).max()
    second, first = np.sort(want.logits, axis=1)[:, -2:].T
    assert (first - second).min() > 2 * most, "the oracle has no margin: take another seed"
    assert np.abs(got.logits - want.logits).max() <= most
    assert got.tokens == want.tokens
    assert len(set(got.tokens)) > 3
