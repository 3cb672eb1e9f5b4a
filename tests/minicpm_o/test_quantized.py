"""Quantised checkpoints of MiniCPM-o: converted here, or laid out as MLX lays them out.

The oracle is a checkpoint in float32 that holds what `mx.dequantize` makes of the same tensors.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from omnitide import Session
from omnitide.backend import Backend
from omnitide.backends import load_backend
from omnitide.config import MediaOptions
from omnitide.convert.conversion import convert
from omnitide.convert.planner import plan_conversion
from omnitide.convert.recipe import Format, Recipe, read_rules
from omnitide.errors import CheckpointError
from omnitide.media.chunk import MediaChunk
from omnitide.models import load_model
from omnitide.quantized import QuantizedWeight

mx = pytest.importorskip("mlx.core", reason="MLX, the oracle, is not installed")

pytestmark = pytest.mark.usefixtures("packed_weights")

WEIGHTS = "model.safetensors"
SCALES = ("scales", "biases")
MEDIA = MediaOptions(fps=1.0, chunk_seconds=1.0)


def _second(index: int) -> MediaChunk:
    """A second with a picture and sound."""
    random = np.random.default_rng(index)
    frame = random.integers(0, 256, (80, 60, 3), np.uint8)
    samples = (0.1 * random.standard_normal(16_000)).astype(np.float32)
    return MediaChunk(index, index + 1.0, (frame,), (float(index),), samples)


def _heard(folder: Path, backend: Backend, bare_cache: Any) -> Any:
    """Logits of a second with a picture and sound."""
    model = load_model(folder, backend, media=MEDIA)
    encoded, _ = model.encode_media(_second(0), model.new_stream())
    return bare_cache(model).prefill(encoded.unit, encoded.embeddings)


def _on_host(array: Any) -> Any:
    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(array)


def _quantize(folder: Path, modules: list[str], group: int, bits: int) -> None:
    """Quantise modules of a checkpoint in place, as MLX does it."""
    weights = load_file(folder / WEIGHTS)
    for module in modules:
        values = mx.array(weights[f"{module}.weight"].astype(np.float32)).astype(mx.bfloat16)
        parts = mx.quantize(values, group, bits)
        for part, array in zip(("weight", "scales", "biases"), parts, strict=True):
            weights[f"{module}.{part}"] = _on_host(array)
    save_file(weights, folder / WEIGHTS)


def _write_twin(folder: Path, twin: Path, group: int = 64) -> Path:
    """The checkpoint in float32 that one quantised in groups of that size stands for."""
    shutil.copytree(folder, twin)
    weights = load_file(folder / WEIGHTS)
    dense = {}
    for name, values in weights.items():
        base = name.rpartition(".")[0]
        if f"{base}.scales" not in weights or name.endswith(".bias"):
            dense[name] = values.astype(np.float32)
        elif name.endswith(".weight"):
            scales, biases = (weights[f"{base}.{p}"].astype(np.float32) for p in SCALES)
            bits = values.shape[1] * 32 // (scales.shape[1] * group)
            parts = [mx.array(a) for a in (values, scales, biases)]
            dense[name] = np.array(mx.dequantize(*parts, group, bits, dtype=mx.float32))
    save_file(dense, twin / WEIGHTS)
    config = json.loads((twin / "config.json").read_text())
    for key in ("quantization", "quantization_config"):
        config.pop(key, None)
    (twin / "config.json").write_text(json.dumps(config))
    return twin


@pytest.fixture(scope="module")
def converted(
    minicpm_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """A small random checkpoint of a release that `omnitide convert` made 4 bits of."""
    made: dict[str, Path] = {}

    def find(version: str) -> Path:
        if version not in made:
            source = minicpm_checkpoint(version=version)
            target = tmp_path_factory.mktemp("four") / "model"
            convert(plan_conversion(source, Recipe(Format(4, 64))), source, target)
            made[version] = target
        return made[version]

    return find


@pytest.fixture
def for_mlx(minicpm_checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """A small checkpoint laid out as conversions for MLX are, to be changed."""
    folder = Path(shutil.copytree(minicpm_checkpoint(), tmp_path / "model"))
    prefixes = {"llm.": "language_model.", "vpm.": "vision_tower.", "apm.": "audio_tower."}
    stored: dict[str, Any] = {}
    for name, tensor in load_file(folder / WEIGHTS).items():
        for prefix, other in prefixes.items():
            name = other + name.removeprefix(prefix) if name.startswith(prefix) else name
        if tensor.ndim > 2:
            tensor = np.ascontiguousarray(np.moveaxis(tensor, 1, -1))
        if "in_proj" in name:
            for part, third in zip("qkv", np.split(tensor, 3), strict=True):
                other = f"resampler.attn.{part}_proj.{name.rpartition('_')[2]}"
                stored[other] = np.ascontiguousarray(third)
            continue
        stored[name] = tensor
    save_file(stored, folder / WEIGHTS)
    return folder


def _greedy(folder: Path, backend: str) -> list[int]:
    model = load_model_on(folder, backend)
    session = Session(model, max_tokens=24, largest_unit=600, media=MEDIA)
    for index in range(2):
        session.append_media(_second(index))
    return [r.token for r in session.ask("What do you see and hear?")]


def load_model_on(folder: Path, name: str) -> Any:
    backend = load_backend(name, "float32")
    return backend.run(load_model, folder, backend, media=MEDIA)


@pytest.mark.parametrize("version", ["4.5", "2.6"])
@pytest.mark.parametrize("backend", ["reference", "mlx"])
def test_greedy_tokens_are_those_of_the_dequantised_model(
    version: str, backend: str, converted: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = converted(version)
    model = load_model_on(folder, backend)
    layer = model.decoder.layers[0]
    assert all(isinstance(part.weight, QuantizedWeight) for part in (layer.q, layer.k, layer.o))
    assert (layer.q_norm is not None) == (version == "4.5")
    got = _greedy(folder, backend)
    assert got == _greedy(_write_twin(folder, tmp_path / "twin"), "reference")
    assert len(set(got)) > 1


ENCODERS = [
    "vision_tower.embeddings.position_embedding",
    "vision_tower.encoder.layers.0.self_attn.q_proj",
    "audio_tower.embed_positions",
    "audio_tower.layers.1.fc2",
    "audio_projection_layer.linear1",
    "resampler.kv_proj",
    *(f"resampler.attn.{part}_proj" for part in "qkv"),
    "resampler.attn.out_proj",
]


@pytest.mark.parametrize(("group", "bits"), [(64, 4), (32, 8)])
def test_encoders_may_be_quantised(
    group: int,
    bits: int,
    for_mlx: Path,
    any_backend: Backend,
    reference: Backend,
    bare_cache: Any,
    assert_close: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Tables of positions and the resampler's projections too, which are used in ways of their own.

    MLX does it to every linear layer and embedding whose rows can be cut into groups.
    """
    before = reference.run(_heard, for_mlx, reference, bare_cache)
    _quantize(for_mlx, ENCODERS, group, bits)
    twin = _write_twin(for_mlx, tmp_path / "twin", group)
    got = any_backend.run(_heard, for_mlx, any_backend, bare_cache)
    want = reference.run(_heard, twin, reference, bare_cache)
    assert_close(got, want)
    assert np.abs(want - before).max() > 1e-3 * np.abs(want).max()


def test_no_rule_reaches_what_is_no_matrix_of_a_module(
    minicpm_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """Queries, the fused projection and the way out of the resampler have no place for scales."""
    source = minicpm_checkpoint()
    format = Format(8, 32)
    plan = plan_conversion(source, Recipe(format, read_rules(["*=8"], format)))
    convert(plan, source, tmp_path / "out")
    kept = {
        item.info.name
        for item in plan.items
        if len(item.info.shape) == 2 and item.format is None and item.info.shape[1] % 32 == 0
    }
    assert kept == {"resampler.query", "resampler.proj", "resampler.attn.in_proj_weight"}
    backend = load_backend("reference", "float32")
    assert backend.run(load_model, tmp_path / "out", backend, media=MEDIA).spec.family
    stored = load_file(tmp_path / "out" / WEIGHTS)
    assert stored["apm.embed_positions.weight"].dtype == np.uint32


def test_another_programs_quantisation_is_refused(for_mlx: Path, reference: Backend) -> None:
    config = json.loads((for_mlx / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4}
    (for_mlx / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="says awq; take the model in full precision"):
        load_model(for_mlx, reference)


def test_scales_without_a_weight_are_refused(for_mlx: Path, reference: Backend) -> None:
    _quantize(for_mlx, ["language_model.model.layers.0.mlp.gate_proj"], 64, 4)
    weights = load_file(for_mlx / WEIGHTS)
    del weights["language_model.model.layers.0.mlp.gate_proj.weight"]
    save_file(weights, for_mlx / WEIGHTS)
    with pytest.raises(CheckpointError, match="scales without a weight language_model"):
        load_model(for_mlx, reference)
