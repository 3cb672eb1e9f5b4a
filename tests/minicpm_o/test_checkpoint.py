"""Configurations, names and layouts of checkpoints; which ones are refused, and why."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from omnitide.backend import Backend
from omnitide.config import MediaOptions
from omnitide.errors import CheckpointError, ConfigError
from omnitide.media.chunk import MediaChunk
from omnitide.models import find_family, load_model
from omnitide.models.minicpm_o.names import (
    canonical,
    expected_tensors,
    has_qk_norm,
    is_converted,
    published,
    vision_layers,
)
from omnitide.models.minicpm_o.presets import PRESETS
from omnitide.models.minicpm_o.reading import parse_config

NEW, OLD = "openbmb/MiniCPM-o-4_5", "openbmb/MiniCPM-o-2_6"


@pytest.fixture
def config(golden_folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((golden_folder / "config.json").read_text())
    return found


@pytest.fixture
def folder(golden_checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the golden checkpoint, to be changed."""
    return Path(shutil.copytree(golden_checkpoint, tmp_path / "model"))


@pytest.mark.parametrize(
    ("repository", "part", "tensors"),
    [
        # One embedding, one norm, 11 tensors a layer with norms of q and k, 12 with biases.
        (NEW, "model.", 2 + 36 * 11),
        (OLD, "model.", 2 + 28 * 12),
        (NEW, "lm_head.", 1),
        (NEW, "vpm.", 5 + 26 * 16),
        (OLD, "vpm.", 5 + 27 * 16),
        (NEW, "apm.", 7 + 24 * 15),
        (NEW, "resampler.", 13),
        (NEW, "audio_projection_layer.", 4),
    ],
)
def test_numbers_of_tensors(repository: str, part: str, tensors: int) -> None:
    shapes = expected_tensors(parse_config(PRESETS[repository]))
    assert sum(name.startswith(part) for name in shapes) == tensors


@pytest.mark.parametrize(
    ("repository", "part", "architecture"),
    [(NEW, "Qwen3", "qwen3"), (OLD, "Qwen2", "qwen2")],
)
def test_decoders_have_the_tensors_of_transformers(
    repository: str, part: str, architecture: str
) -> None:
    import torch
    import transformers

    values = {k: v for k, v in PRESETS[repository].items() if not k.endswith("_config")}
    values = {k: v for k, v in values.items() if k not in ("architectures", "model_type")}
    build = getattr(transformers, f"{part}ForCausalLM")
    with torch.device("meta"):
        model = build(getattr(transformers, f"{part}Config")(**values))
    want = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    shapes = expected_tensors(parse_config(PRESETS[repository]))
    assert {n: s for n, s in shapes.items() if n.startswith(("model.", "lm_head."))} == want


@pytest.mark.parametrize(("repository", "bytes_per_token"), [(NEW, 147_456), (OLD, 57_344)])
def test_cache_bytes_of_a_token(repository: str, bytes_per_token: int) -> None:
    text = parse_config(PRESETS[repository]).text
    assert 2 * text.num_layers * text.num_kv_heads * text.head_dim * 2 == bytes_per_token


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("llm.model.layers.3.self_attn.q_norm.weight", "model.layers.3.self_attn.q_norm.weight"),
        ("language_model.model.norm.weight", "model.norm.weight"),
        ("llm.lm_head.weight", "lm_head.weight"),
        ("vpm.post_layernorm.bias", "vpm.post_layernorm.bias"),
        ("vision_tower.post_layernorm.bias", "vpm.post_layernorm.bias"),
        ("audio_tower.conv1.weight", "apm.conv1.weight"),
        ("resampler.proj", "resampler.proj"),
        ("audio_projection_layer.linear1.bias", "audio_projection_layer.linear1.bias"),
        ("tts.emb_text.weight", None),
        ("vpm.embeddings.position_ids", None),
        ("llm.model.layers.0.self_attn.rotary_emb.inv_freq", None),
    ],
)
def test_canonical_names(stored: str, name: str | None) -> None:
    assert canonical(stored) == name


def test_tensors_are_those_of_the_golden_checkpoint(
    config: dict[str, Any], golden_folder: Path
) -> None:
    stored = load_file(golden_folder / "model.safetensors")
    parsed = parse_config(config, vision_layers(stored), has_qk_norm(stored))
    want = {canonical(name): tensor.shape for name, tensor in stored.items()}
    assert expected_tensors(parsed) == want
    assert {published(name) for name in want if name} == set(stored)


def convert(stored: dict[str, Any]) -> dict[str, Any]:
    """The tensors as conversions for MLX hold them."""
    converted = {}
    prefixes = {"llm.": "language_model.", "vpm.": "vision_tower.", "apm.": "audio_tower."}
    for name, tensor in stored.items():
        for prefix, other in prefixes.items():
            if name.startswith(prefix):
                name = other + name.removeprefix(prefix)
        if "patch_embedding.weight" in name or (".conv" in name and name.endswith("weight")):
            tensor = np.ascontiguousarray(np.moveaxis(tensor, 1, -1))
        if "in_proj" in name:
            kind = name.rpartition("_")[2]
            for part, third in zip("qkv", np.split(tensor, 3), strict=True):
                converted[f"resampler.attn.{part}_proj.{kind}"] = np.ascontiguousarray(third)
            continue
        converted[name] = tensor
    return converted


def heard(model: Any, bare_cache: Any) -> Any:
    """Logits of a unit with a picture and a second of sound."""
    random = np.random.default_rng(0)
    frame = random.integers(0, 256, (80, 60, 3), np.uint8)
    samples = (0.1 * random.standard_normal(16_000)).astype(np.float32)
    chunk = MediaChunk(0.0, 1.0, (frame,), (0.0,), samples)
    unit, _ = model.encode_media(chunk, model.new_stream())
    return bare_cache(model).prefill(unit.unit, unit.embeddings)


def test_a_conversion_for_mlx_is_the_same_model(
    folder: Path, golden_model: Any, reference: Backend, bare_cache: Any
) -> None:
    weights = folder / "model.safetensors"
    stored = convert(load_file(weights))
    assert is_converted(stored)
    assert "resampler.attn.k_proj.bias" in stored
    weights.unlink()
    save_file(stored, weights)
    converted = load_model(folder, reference)
    want = heard(golden_model(reference), bare_cache)
    assert heard(converted, bare_cache).tobytes() == want.tobytes()


def rewrite(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Change config.json and tensors of a folder."""
    weights, file = folder / "model.safetensors", folder / "config.json"
    config, stored = json.loads(file.read_text()), load_file(weights)
    change(config, stored)
    for path in (weights, file):
        path.unlink()
    file.write_text(json.dumps(config))
    save_file(stored, weights)


@pytest.mark.parametrize(
    ("stated", "drops", "stored", "run"),
    [
        (2, False, 2, 2),
        (2, True, 2, 1),  # the dropped layer is in the file
        (3, True, 2, 2),  # it is not
        (3, False, 2, 2),  # config.json counts more than there are
        (2, None, 2, 1),  # the flag's default
    ],
)
def test_layers_of_the_vision_tower_are_those_that_are_stored(
    folder: Path, reference: Backend, stated: int, drops: bool | None, stored: int, run: int
) -> None:
    def change(config: dict[str, Any], tensors: dict[str, Any]) -> None:
        config["vision_config"]["num_hidden_layers"] = stated
        config["drop_vision_last_layer"] = drops

    rewrite(folder, change)
    model: Any = load_model(folder, reference)
    assert vision_layers(load_file(folder / "model.safetensors")) == stored
    assert len(model.encoder.vision.layers) == run


def test_a_release_is_told_by_its_tensors(config: dict[str, Any]) -> None:
    del config["version"]
    assert parse_config(config, qk_norm=True).version == "4.5"
    old = parse_config(config, qk_norm=False)
    assert (old.version, old.text.qkv_bias, old.text.qk_norm) == ("2.6", True, False)


def nested(config: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A configuration with one value changed; a dot leads into a section."""
    changed = copy.deepcopy(config)
    *sections, last = key.split(".")
    place = changed
    for section in sections:
        place = place.setdefault(section, {})
    place[last] = value
    return changed


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("version", "4.6", "version must be one of 4.5, 2.6, got '4.6'; other releases"),
        ("layer_types", ["linear_attention", "full_attention"], "layer_types has linear_attention"),
        ("text_config.layer_types", ["linear_attention"], "layer_types has linear_attention"),
        ("layer_types", 5, "layer_types must be a list, got 5"),
        ("layer_types", "full_attention", "layer_types must be a list, got 'full_attention'"),
        (
            "partial_rotary_factor",
            0.25,
            r"one axis.*partial_rotary_factor 0\.25",
        ),
        ("rope_parameters", {"partial_rotary_factor": 0.25}, "one axis and turn whole heads"),
        ("rope_scaling", {"mrope_section": [11, 11, 10]}, "one axis and turn whole heads"),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}, "unscaled"),
        ("use_sliding_window", True, "use_sliding_window must be False"),
        ("hidden_act", "gelu", "hidden_act must be 'silu'"),
        ("hidden_size", 200, "hidden_size must be a multiple of 128"),
        ("num_key_value_heads", 3, "num_key_value_heads"),
        ("head_dim", 31, "even head size"),
        ("vocab_size", 0, "vocab_size must be a positive integer"),
        ("vision_config.patch_size", 16, "patch_size 14"),
        ("vision_config.num_attention_heads", 3, "multiple of num_attention_heads"),
        ("vision_config", None, "must have an object vision_config"),
        ("audio_config.num_mel_bins", 128, "num_mel_bins 80"),
        ("audio_config.d_model", 50, "multiple of encoder_attention_heads"),
        ("audio_chunk_length", 60.0, "audio_chunk_length"),
        ("audio_pool_step", 51, "audio_pool_step at most one chunk"),
    ],
)
def test_configurations_that_are_refused(
    config: dict[str, Any], key: str, value: Any, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse_config(nested(config, key, value))


@pytest.mark.parametrize(
    "names",
    [
        {"architectures": ["MiniCPMV4_6ForConditionalGeneration"], "model_type": "minicpmv4_6"},
        {"architectures": ["MiniCPMO4_6"]},
        {"model_type": "minicpm3"},
    ],
)
def test_another_minicpm_is_refused_with_the_reason(names: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="another attention, another rotary embedding"):
        find_family(names)


@pytest.mark.parametrize("model_type", ["minicpmo"])
def test_the_family_is_found(model_type: str) -> None:
    assert find_family({"architectures": ["MiniCPMO"]}).name == "minicpm_o"
    assert find_family({"model_type": model_type}).name == "minicpm_o"


def test_weights_of_another_release_are_refused(folder: Path, reference: Backend) -> None:
    rewrite(folder, lambda config, tensors: config.update(version="2.6"))
    with pytest.raises(CheckpointError, match=r"version is 2\.6, but the decoder has norms on q"):
        load_model(folder, reference)


def test_a_tower_without_tensors_is_refused_by_name(folder: Path, reference: Backend) -> None:
    def change(config: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name in [n for n in tensors if n.startswith("vpm.")]:
            del tensors[name]

    rewrite(folder, change)
    with pytest.raises(CheckpointError, match=r"missing vpm\.encoder\.layers\.1\.mlp\.fc1\.bias"):
        load_model(folder, reference)


@pytest.mark.parametrize("bad", [[3, 320], ["a"], [-1], {"a": 1}, [True]])
def test_bad_tokens_that_do_not_exist_are_refused(
    folder: Path, reference: Backend, bad: Any
) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({"bad_token_ids": bad}))
    with pytest.raises(CheckpointError, match=r"bad_token_ids in tokenizer_config\.json must be"):
        load_model(folder, reference)


def test_special_tokens_that_are_no_list_are_refused(folder: Path, reference: Backend) -> None:
    settings = {"additional_special_tokens": 5}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"additional_special_tokens in tokenizer_config\.js"):
        load_model(folder, reference)


def test_more_slices_than_the_model_takes_are_refused(
    golden_checkpoint: Path, reference: Backend
) -> None:
    with pytest.raises(ConfigError, match=r"at most 9 slices of 200,704 pixels.*which are 10"):
        load_model(golden_checkpoint, reference, media=MediaOptions(max_pixels=10 * 448 * 448))


def test_published_sizes() -> None:
    """Of the decoders, as transformers counts them; both together are known to within 1 %."""
    for repository, billions in ((NEW, 9.0), (OLD, 8.4)):
        shapes = expected_tensors(parse_config(PRESETS[repository]))
        assert round(sum(map(prod, shapes.values())) / 1e9, 1) == billions
