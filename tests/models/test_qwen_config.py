"""Configurations and names: both spellings, three naming schemes, the published sizes."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from omnitide.backend import Backend
from omnitide.errors import CheckpointError
from omnitide.models import load_model
from omnitide.models.checkpoint import read_config
from omnitide.models.qwen2_5_omni.config import parse_config
from omnitide.models.qwen2_5_omni.names import canonical, expected_tensors
from omnitide.models.qwen2_5_omni.presets import PRESETS
from omnitide.models.qwen2_5_omni.tiny import tiny_config

SMALL, LARGE = "Qwen/Qwen2.5-Omni-3B", "Qwen/Qwen2.5-Omni-7B"


@pytest.mark.parametrize(
    ("repository", "part", "parameters", "tensors"),
    [
        (LARGE, "", 8_931_813_888, 1_346),
        (LARGE, "model.", 7_070_619_136, 338),
        (LARGE, "lm_head.", 544_997_376, 1),
        (LARGE, "visual.", 676_550_144, 518),
        (LARGE, "audio_tower.", 639_647_232, 489),
        # The total of the published file, less 384.6 M of talker and 449.05 M of vocoder.
        (SMALL, "", 4_703_464_448, 1_442),
        (SMALL, "model.", 3_085_938_688, 434),
        (SMALL, "lm_head.", 311_164_928, 1),
        (SMALL, "visual.", 668_684_288, 518),
        (SMALL, "audio_tower.", 637_676_544, 489),
    ],
)
def test_published_sizes(repository: str, part: str, parameters: int, tensors: int) -> None:
    shapes = expected_tensors(parse_config(PRESETS[repository]))
    counts = [prod(shape) for name, shape in shapes.items() if name.startswith(part)]
    assert (sum(counts), len(counts)) == (parameters, tensors)


@pytest.mark.parametrize("repository", [SMALL, LARGE])
def test_tensors_are_those_of_transformers(repository: str) -> None:
    import torch
    from transformers.models.qwen2_5_omni import configuration_qwen2_5_omni as configuration
    from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as modeling

    values = PRESETS[repository]["thinker_config"]
    with torch.device("meta"):
        model = modeling.Qwen2_5OmniThinkerForConditionalGeneration(
            configuration.Qwen2_5OmniThinkerConfig(**values)
        )
    want = {canonical(name): tuple(weight.shape) for name, weight in model.state_dict().items()}
    assert expected_tensors(parse_config(PRESETS[repository])) == want


@pytest.mark.parametrize(("repository", "bytes_per_token"), [(SMALL, 36_864), (LARGE, 57_344)])
def test_cache_bytes_of_a_token(repository: str, bytes_per_token: int) -> None:
    text = parse_config(PRESETS[repository]).text
    assert 2 * text.num_layers * text.num_kv_heads * text.head_dim * 2 == bytes_per_token


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        ("thinker.model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"),
        ("model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"),
        ("model.language_model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"),
        ("model.visual.merger.ln_q.weight", "visual.merger.ln_q.weight"),
        ("thinker.visual.merger.ln_q.weight", "visual.merger.ln_q.weight"),
        ("model.audio_tower.proj.bias", "audio_tower.proj.bias"),
        ("audio_tower.proj.bias", "audio_tower.proj.bias"),
        ("thinker.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("talker.model.norm.weight", None),
        ("token2wav.code2wav_bigvgan_model.conv_pre.bias", None),
    ],
)
def test_canonical_names(stored: str, name: str | None) -> None:
    assert canonical(stored) == name


def _logits(folder: Path, backend: Backend, bare_cache: Any) -> Any:
    model = load_model(folder, backend)
    asked = model.encode_prompt("The same text for all.")
    return bare_cache(model).prefill(asked.unit, asked.embeddings)


@pytest.mark.parametrize("scheme", ["4", "5", "saved by 5"])
def test_naming_schemes_of_transformers(
    scheme: str,
    tiny_checkpoint: Callable[..., Path],
    transformers_thinker: Any,
    tmp_path: Path,
    reference: Backend,
    bare_cache: Any,
) -> None:
    published = tiny_checkpoint()
    folder = tmp_path / "model"
    shutil.copytree(published, folder)
    thinker = transformers_thinker(published)
    if scheme == "4":
        stored = load_file(published / "model.safetensors")
        renamed = {name.removeprefix("thinker."): weight for name, weight in stored.items()}
        save_file(renamed, folder / "model.safetensors")
    elif scheme == "5":
        state = {name: weight.numpy() for name, weight in thinker.state_dict().items()}
        save_file(state, folder / "model.safetensors")
    else:
        # The thinker alone at the top of config.json, in the new spelling.
        thinker.save_pretrained(folder)
        assert "rope_parameters" in read_config(folder)["text_config"]
    np.testing.assert_array_equal(
        _logits(folder, reference, bare_cache), _logits(published, reference, bare_cache)
    )


def test_both_spellings_of_rotary_embedding() -> None:
    old = tiny_config()
    new = copy.deepcopy(old)["thinker_config"]
    text = new["text_config"]
    scaling = text.pop("rope_scaling")
    text["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": text.pop("rope_theta"),
        "mrope_section": scaling["mrope_section"],
    }
    for kind in ("audio", "image", "video"):
        new[f"{kind}_token_id"] = new.pop(f"{kind}_token_index")
    assert parse_config(new) == parse_config(old)
    text["rope_parameters"]["rope_theta"] = 5e5
    assert parse_config(new) != parse_config(old)


BAD = {
    "a missing size": ("text_config", "hidden_size", None, r"text_config: hidden_size must be a"),
    "a size that is text": ("vision_config", "depth", "32", r"depth must be a positive.*'32'"),
    "a size of 0": ("audio_config", "encoder_layers", 0, r"encoder_layers must be a positive"),
    "heads that don't divide": ("text_config", "num_attention_heads", 3, r"must be a multiple"),
    "sections that don't add up": (
        "text_config",
        "rope_scaling",
        {"mrope_section": [16, 24, 20], "type": "default"},
        r"add up to half the head size, 128 / 2, got \[16, 24, 20\]",
    ),
    "scaled positions": (
        "text_config",
        "rope_scaling",
        {"mrope_section": [16, 24, 24], "type": "yarn"},
        r"rope_type must be 'default', got 'yarn'",
    ),
    "a sliding window": ("text_config", "use_sliding_window", True, r"use_sliding_window must be"),
    "another activation": ("vision_config", "hidden_act", "gelu", r"hidden_act must be 'silu'"),
    "a vision tower too wide": ("vision_config", "out_hidden_size", 128, r"vision tower must put"),
    "an audio tower too wide": ("audio_config", "output_dim", 128, r"audio tower must put out"),
    "a patch of another size": ("vision_config", "patch_size", 16, r"must be 3, 14, 2 and 2"),
    "an id above the vocabulary": ("text_config", "vocab_size", 260, r"below .* 260, got 265"),
    "layers that are no list": ("vision_config", "fullatt_block_indexes", 7, r"must be a list of"),
    "no vision tower": (None, "vision_config", None, r"must have an object vision_config"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_configuration_is_refused(case: str) -> None:
    section, key, value, message = BAD[case]
    config = tiny_config()
    thinker = config["thinker_config"]
    (thinker[section] if section else thinker)[key] = value
    with pytest.raises(CheckpointError, match=message):
        parse_config(config)
