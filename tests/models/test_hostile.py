"""Checkpoints that mean harm: refused with a message, in bounded time and memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnitide.backends import load_backend
from omnitide.errors import CheckpointError
from omnitide.models import load_model


@pytest.fixture
def folder(tmp_path: Path, tiny_checkpoint: Callable[..., Path]) -> Path:
    return Path(shutil.copytree(tiny_checkpoint(), tmp_path / "model"))


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as error:
        load_model(folder, load_backend("reference", "float32"))
    return str(error.value)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("text_config", "num_hidden_layers", 10**8),
        ("text_config", "num_hidden_layers", 5000),
        ("vision_config", "depth", 10**8),
        ("vision_config", "window_size", 10**30),
        ("audio_config", "encoder_layers", 10**8),
        ("audio_config", "n_window", 10**7),
        ("text_config", "rms_norm_eps", 10**400),
    ],
)
def test_huge_numbers(folder: Path, section: str, key: str, value: int) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["thinker_config"][section][key] = value
    (folder / "config.json").write_text(json.dumps(config))
    assert key in refused(folder)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "chat_template.json"])
def test_deep_json(folder: Path, name: str) -> None:
    (folder / name).write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    assert "can't be read" in refused(folder)


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1/0 }}",
        "{{ messages[0].content + 1 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% include 'x' %}",
        "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<|im_end|>{% endif %}"
        "{% endfor %}",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        "{% if m.role == 'assistant' %}And now the user says:{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ],
)
def test_templates(folder: Path, template: str) -> None:
    (folder / "chat_template.jinja").write_text(template)
    assert refused(folder).startswith("[chat]")


@pytest.mark.parametrize(
    ("vocab", "merges", "settings"),
    [("[]", "", "{}"), ('{"a": "b"}', "", "{}"), ('{"a": 0}', "q r", "{}"), ('{"a": 0}', "", "[]")],
)
def test_vocabularies(folder: Path, vocab: str, merges: str, settings: str) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(vocab)
    (folder / "merges.txt").write_text(merges)
    (folder / "tokenizer_config.json").write_text(settings)
    assert refused(folder).startswith("[tokenizer]")


def test_tokenizer_larger_than_the_model(folder: Path) -> None:
    tokenizer: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["e"] += 5000
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "below the vocabulary's size 288" in refused(folder)
