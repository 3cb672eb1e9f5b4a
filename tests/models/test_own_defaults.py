"""A checkpoint that was made for small pictures or for retention says so, and all are told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from omnitide import load
from omnitide.backend import Backend
from omnitide.config import FamilyDefaults, MediaOptions, family_retention
from omnitide.errors import CheckpointError
from omnitide.loading import defaults_of
from omnitide.models import family_defaults, load_model
from omnitide.models.outline import read_outline
from omnitide.models.own_defaults import own_defaults

FAMILY = FamilyDefaults(max_pixels=10_000, min_pixels=2_000)


def write(folder: Path, contents: Any) -> Path:
    (folder / "preprocessor_config.json").write_text(json.dumps(contents))
    return folder


@pytest.mark.parametrize(
    ("contents", "most", "least"),
    [
        ({"max_pixels": 5_000}, 5_000, 2_000),
        ({"max_pixels": 784}, 784, 784),
        ({"max_pixels": 10_000}, 10_000, 2_000),
        ({"max_pixels": 12_845_056, "min_pixels": 3136}, 10_000, 2_000),
        ({"max_pixels": None}, 10_000, 2_000),
        ({}, 10_000, 2_000),
    ],
)
def test_the_smaller_bound_holds(tmp_path: Path, contents: Any, most: int, least: int) -> None:
    found = own_defaults(FAMILY, write(tmp_path, contents))
    assert (found.max_pixels, found.min_pixels) == (most, least)
    assert found.text_budget == FAMILY.text_budget


def test_without_the_file_the_family_decides(tmp_path: Path) -> None:
    assert own_defaults(FAMILY, tmp_path) == FAMILY


@pytest.mark.parametrize("wrong", [783, 0, -1, 12544.0, "12544", True, [12544]])
def test_what_is_no_number_of_pixels_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(CheckpointError, match=r"max_pixels in .* must be an integer of at least"):
        own_defaults(FAMILY, write(tmp_path, {"max_pixels": wrong}))


def test_a_file_that_is_no_object_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="must hold a JSON object, got list"):
        own_defaults(FAMILY, write(tmp_path, []))


def write_config(folder: Path, retention: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({"retention": retention}))
    return folder


def test_what_a_checkpoint_says_of_retention_reaches_the_policies(tmp_path: Path) -> None:
    found = own_defaults(FAMILY, write_config(tmp_path, {"image_sink": 0, "text_budget": 70}))
    assert found == replace(FAMILY, image_sink=0, text_budget=70)
    config = family_retention(found, audio_sink=3)
    assert (config.image_sink, config.audio_sink, config.text_budget) == (0, 3, 70)


@pytest.mark.parametrize(
    "wrong",
    [[], "none", 0, {"image_sink": -1}, {"image_sink": True}, {"image_sink": 1.0}, {"fps": 1}],
)
def test_what_says_no_retention_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(CheckpointError, match=r"retention in .* must give numbers of tokens for"):
        own_defaults(FAMILY, write_config(tmp_path, wrong))


@pytest.mark.parametrize("kind", ["qwen2_5_omni", "minicpm_o"])
def test_model_outline_and_defaults_agree(
    tiny_checkpoint: Callable[..., Path],
    minicpm_checkpoint: Callable[..., Path],
    reference: Backend,
    tmp_path: Path,
    kind: str,
) -> None:
    made = tiny_checkpoint() if kind == "qwen2_5_omni" else minicpm_checkpoint()
    folder = tmp_path / "own"
    shutil.copytree(made, folder)
    write(folder, {"max_pixels": 112 * 112})
    model = load_model(folder, reference)
    assert model.media.max_pixels == 112 * 112
    outline = read_outline(folder, "x")
    assert model.defaults == outline.defaults == family_defaults(folder) == defaults_of(folder)
    assert family_defaults(folder).max_pixels == 112 * 112
    assert family_defaults(made).max_pixels == FamilyDefaults().max_pixels


def test_who_gives_a_bound_gets_it(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "own"
    shutil.copytree(tiny_checkpoint(), folder)
    write(folder, {"max_pixels": 112 * 112})
    assert load(folder, backend="reference").media.max_pixels == 112 * 112
    given = MediaOptions(max_pixels=224 * 224)
    assert load(folder, backend="reference", media=given).media.max_pixels == 224 * 224
