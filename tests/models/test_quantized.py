"""Quantised checkpoints in MLX's layout, written here with `mx.quantize`: read, and refused.

The oracle of values is a checkpoint in float32 that holds what `mx.dequantize` makes of the same
tensors.
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

from omnitide.backend import Backend
from omnitide.errors import CheckpointError
from omnitide.media.chunk import MediaChunk
from omnitide.models import load_model
from omnitide.models.qwen2_5_omni.tiny import tiny_config, write_random_checkpoint

mx = pytest.importorskip("mlx.core", reason="MLX, the oracle, is not installed")

pytestmark = pytest.mark.usefixtures("packed_weights")

WEIGHTS = "model.safetensors"
LAYER = "thinker.model.layers.0.mlp.gate_proj"
DOWN = "thinker.model.layers.0.mlp.down_proj"
HEAD = "thinker.lm_head"
EMBEDDING = "thinker.model.embed_tokens"
ENCODER = "thinker.visual.merger.mlp.0"
KINDS = {
    **{f"affine-{b}-{g}": (b, g, "affine") for b in (4, 8) for g in (32, 64, 128)},
    "mxfp4": (4, 32, "mxfp4"),
    "nvfp4": (4, 16, "nvfp4"),
}
Kind = tuple[int, int, str]


def _on_mlx(weight: Any) -> Any:
    return mx.array(weight.view(np.uint16)).view(mx.bfloat16)


def _on_host(array: Any) -> Any:
    if array.dtype == mx.bfloat16:
        return np.array(array.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(array)


def _quantize(folder: Path, kinds: dict[str, Kind], twin: Path | None = None) -> None:
    """Quantise modules of a checkpoint in place; write the float32 twin of the result."""
    weights = load_file(folder / WEIGHTS)
    dense = {name: weight.astype(np.float32) for name, weight in weights.items()}
    for module, (bits, group, mode) in kinds.items():
        parts = mx.quantize(_on_mlx(weights[f"{module}.weight"]), group, bits, mode)
        wide = [p.astype(mx.float32) if mode == "affine" and i else p for i, p in enumerate(parts)]
        options = {"group_size": group, "bits": bits, "mode": mode, "dtype": mx.float32}
        dense[f"{module}.weight"] = np.array(mx.dequantize(*wide, **options))
        for part, values in zip(("weight", "scales", "biases"), parts, strict=False):
            weights[f"{module}.{part}"] = _on_host(values)
    save_file(weights, folder / WEIGHTS)
    if twin is not None:
        shutil.copytree(folder, twin)
        save_file(dense, twin / WEIGHTS)


def _state(folder: Path, quantization: Any, key: str = "quantization") -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: quantization}))


@pytest.fixture
def folder(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """A checkpoint in bfloat16 that may be changed."""
    return Path(shutil.copytree(tiny_checkpoint(), tmp_path / "model"))


@pytest.fixture
def logits(bare_cache: Any) -> Callable[[Path, Backend], Any]:
    """Logits of a text by the model of a folder."""

    def run(folder: Path, backend: Backend) -> Any:
        model = load_model(folder, backend)
        asked = model.encode_prompt("The same text for all.")
        return bare_cache(model).prefill(asked.unit, asked.embeddings)

    return lambda folder, backend: backend.run(run, folder, backend)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind(
    kind: Kind,
    folder: Path,
    tmp_path: Path,
    any_backend: Backend,
    reference: Backend,
    logits: Any,
    assert_close: Callable[..., None],
) -> None:
    modules = (LAYER, HEAD, EMBEDDING, ENCODER)
    _quantize(folder, dict.fromkeys(modules, kind), tmp_path / "twin")
    _state(folder, {"bits": kind[0], "group_size": kind[1], "mode": kind[2]})
    if kind[2] not in any_backend.quantized_modes:
        with pytest.raises(CheckpointError, match=f"computes with .* mode affine; .* {kind[2]}"):
            logits(folder, any_backend)
        return
    assert_close(logits(folder, any_backend), logits(tmp_path / "twin", reference))


MIXED: dict[str, Kind] = {
    LAYER: (4, 64, "affine"),
    DOWN: (8, 32, "affine"),
    HEAD: (8, 128, "affine"),
    EMBEDDING: (4, 32, "affine"),
}
MIXED_CONFIG = {
    "group_size": 64,
    "bits": 4,
    DOWN: {"group_size": 32, "bits": 8},
    HEAD: {"group_size": 128, "bits": 8},
    EMBEDDING: {"group_size": 32, "bits": 4},
    ENCODER: False,
}


@pytest.mark.parametrize("stated", [MIXED_CONFIG, {"group_size": 64, "bits": 4}, None])
def test_mixed_per_module_whatever_config_json_says_of_the_others(
    stated: Any,
    folder: Path,
    tmp_path: Path,
    reference: Backend,
    logits: Any,
    assert_close: Callable[..., None],
) -> None:
    _quantize(folder, MIXED, tmp_path / "twin")
    if stated is not None:
        _state(folder, stated)
    assert_close(logits(folder, reference), logits(tmp_path / "twin", reference))


def test_parts_of_a_matrix_in_different_files(
    folder: Path, tmp_path: Path, reference: Backend, logits: Any
) -> None:
    _quantize(folder, MIXED)
    want = logits(folder, reference)
    weights = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    places = {}
    for number, ending in enumerate((".weight", ".scales", ".biases", ".bias")):
        share = {name: w for name, w in weights.items() if name.endswith(ending)}
        save_file(share, folder / f"{number}.safetensors")
        places |= dict.fromkeys(share, f"{number}.safetensors")
    index = {"metadata": {}, "weight_map": places}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    np.testing.assert_array_equal(logits(folder, reference), want)


def test_tied_embeddings(
    tmp_path: Path, reference: Backend, logits: Any, assert_close: Callable[..., None]
) -> None:
    config = tiny_config()
    config["thinker_config"]["tie_word_embeddings"] = True
    write_random_checkpoint(tmp_path / "model", config)
    _quantize(tmp_path / "model", {EMBEDDING: (8, 64, "affine")}, tmp_path / "twin")
    got = logits(tmp_path / "model", reference)
    assert_close(got, logits(tmp_path / "twin", reference))


def test_parts_that_are_left_alone_may_be_stored_in_any_manner(
    folder: Path, reference: Backend, logits: Any
) -> None:
    want = logits(folder, reference)
    weights = load_file(folder / WEIGHTS)
    weights["talker.codec_head.scales"] = np.ones((2, 2), np.float32)
    save_file(weights, folder / WEIGHTS)
    np.testing.assert_array_equal(logits(folder, reference), want)


def _drop(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda weights: weights.pop(name)


def _replace(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda weights: weights.update({name: change(weights[name])})


FAULTS: dict[str, tuple[Any, str]] = {
    "no-scales": (_drop(f"{LAYER}.scales"), f"biases without scales {LAYER}.biases"),
    "no-biases": (_drop(f"{LAYER}.biases"), f"unknown kind of quantised {LAYER}.weight: 4 bits"),
    "no-weight": (_drop(f"{LAYER}.weight"), f"scales without a weight {LAYER}.scales"),
    "not-packed": (
        _replace(f"{LAYER}.weight", lambda w: w.view(np.int32)),
        f"not packed {LAYER}.weight: I32",
    ),
    "cut-rows": (
        _replace(f"{LAYER}.scales", lambda s: s[1:]),
        rf"mis-shaped {LAYER}.weight: \[96, 32\] with scales \[95, 4\], for \[96, 256\]",
    ),
    "odd-group": (
        _replace(f"{LAYER}.scales", lambda s: s[:, :3].copy()),
        rf"mis-shaped {LAYER}.weight: \[96, 32\] with scales \[96, 3\]",
    ),
    "no-groups": (
        _replace(f"{LAYER}.scales", lambda s: s[:, :0].copy()),
        f"mis-shaped {LAYER}.weight",
    ),
    "unknown-group": (
        lambda w: w.update(
            {f"{LAYER}.{p}": w[f"{LAYER}.{p}"][:, :1] for p in ("scales", "biases")}
        ),
        "in groups of 256",
    ),
    "unknown-bits": (
        _replace(f"{LAYER}.weight", lambda w: w[:, :16].copy()),
        "2 bits in groups of 64",
    ),
    "other-biases": (
        _replace(f"{LAYER}.biases", lambda b: b[:, :2].copy()),
        rf"mis-shaped {LAYER}.biases: \[96, 2\], not \[96, 4\]",
    ),
    "integer-scales": (
        _replace(f"{LAYER}.scales", lambda s: s.view(np.uint16).astype(np.uint8)),
        "U8 scales, biases",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_half_written_matrix_is_refused(case: str, folder: Path, reference: Backend) -> None:
    change, message = FAULTS[case]
    _quantize(folder, {LAYER: (4, 64, "affine")})
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file({n: np.ascontiguousarray(w) for n, w in weights.items()}, folder / WEIGHTS)
    with pytest.raises(CheckpointError, match=message):
        load_model(folder, reference)


def test_only_matrices_may_be_quantised(folder: Path, reference: Backend) -> None:
    weights = load_file(folder / WEIGHTS)
    weights["thinker.model.norm.scales"] = np.ones((1, 4), np.float32)
    save_file(weights, folder / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"only a matrix may be, the model asks for \[256\]"):
        load_model(folder, reference)


CONTRADICTIONS: dict[str, tuple[Any, str]] = {
    "module-bits": ({LAYER: {"bits": 8, "group_size": 64}}, "bits 4, config.json says 8"),
    "module-group": ({LAYER: {"bits": 4, "group_size": 32}}, "group_size 64, config.json says 32"),
    "module-off": ({LAYER: False}, "its scales are there, but config.json says False"),
    "other-mode": ({"mode": "mxfp4"}, "mode affine, config.json says 'mxfp4'"),
    "unknown-mode": (
        {"mode": "ternary"},
        "one of affine, mxfp4, nvfp4, config.json says 'ternary'",
    ),
    "module-unknown-mode": (
        {LAYER: {"bits": 4, "group_size": 64, "mode": "q4_k"}},
        f"config.json says 'q4_k' of {LAYER}",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_what_config_json_says_of_a_matrix_must_agree(
    case: str, folder: Path, reference: Backend
) -> None:
    stated, message = CONTRADICTIONS[case]
    _quantize(folder, {LAYER: (4, 64, "affine")})
    _state(folder, {"group_size": 64, "bits": 4, **stated})
    with pytest.raises(CheckpointError, match=message):
        load_model(folder, reference)


def test_another_programs_quantisation_is_refused(folder: Path, reference: Backend) -> None:
    _state(folder, {"quant_method": "awq", "bits": 4}, "quantization_config")
    with pytest.raises(CheckpointError, match="says awq; take the model in full precision"):
        load_model(folder, reference)


def test_quantization_must_be_an_object(folder: Path, reference: Backend) -> None:
    _state(folder, "4bit")
    with pytest.raises(CheckpointError, match="must be an object, got '4bit'"):
        load_model(folder, reference)


def test_no_weight_is_read_before_the_mode_is_known_to_work(
    folder: Path, reference: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    _quantize(folder, {LAYER: (4, 16, "nvfp4")})
    _state(folder, {"group_size": 16, "bits": 4, "mode": "nvfp4"})
    read: list[Any] = []
    monkeypatch.setattr(reference, "quantized_modes", frozenset({"affine"}))
    monkeypatch.setattr(reference, "read_safetensors", lambda *args: read.append(args) or {})
    with pytest.raises(CheckpointError, match="take another --backend"):
        load_model(folder, reference)
    assert read == []


NUM_TOKENS = 24


def _greedy(model: Any, bare_cache: Any, chunk: MediaChunk) -> tuple[list[int], list[int]]:
    cache = bare_cache(model)
    media, _ = model.encode_media(chunk, model.new_stream())
    logits = np.empty(0)
    for unit in (model.encode_system(None), media, model.encode_prompt("What do you see?")):
        logits = cache.prefill(unit.unit, unit.embeddings)[-1]
    reply: list[int] = []
    while len(reply) < NUM_TOKENS:
        reply.append(int(logits.argmax()))
        unit = model.reply_unit(reply[-1:], len(reply) - 1)
        logits = cache.prefill(unit, model.embed(reply[-1:]))[-1]
    return reply, cache.history.cells["token"].tolist()


@pytest.mark.parametrize("seed", [0, 1])
def test_greedy_tokens_are_those_of_the_dequantised_model(
    seed: int,
    tiny_checkpoint: Callable[..., Path],
    tmp_path: Path,
    any_backend: Backend,
    reference: Backend,
    bare_cache: Any,
) -> None:
    """Every matrix of the decoder whose rows can be cut into groups, in 4 bits."""
    folder = Path(shutil.copytree(tiny_checkpoint(seed), tmp_path / "model"))
    modules = {
        name.removesuffix(".weight"): (4, 64, "affine")
        for name, w in load_file(folder / WEIGHTS).items()
        if name.startswith(("thinker.model.", "thinker.lm_head")) and w.shape[-1] % 64 == 0
        if w.ndim == 2
    }
    assert len(modules) == 2 + 3 * 6
    _quantize(folder, modules, tmp_path / "twin")
    random = np.random.default_rng(seed)
    frames = tuple(random.integers(0, 256, (4, 120, 200, 3), dtype=np.uint8))
    samples = (0.1 * random.standard_normal(32_000)).astype(np.float32)
    chunk = MediaChunk(0, 2, frames, (0, 0.5, 1, 1.5), samples)

    def run(folder: Path, backend: Backend) -> tuple[list[int], list[int]]:
        return _greedy(load_model(folder, backend), bare_cache, chunk)

    got = any_backend.run(run, folder, any_backend)
    assert got == reference.run(run, tmp_path / "twin", reference)
    assert len(set(got[0])) > 1
