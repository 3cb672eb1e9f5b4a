"""A checkpoint that was made for small pictures gets small ones from every command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnitide.harness.talker import Talker

Call = Callable[..., Any]

PIXELS = 56 * 56
TOKENS = 2 * 4 + 50 + 4
"""Of two seconds: two pairs of 56 x 56 pixels, sound, markers."""


@pytest.fixture
def modest(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """A checkpoint that asks for 56 x 56 pixels."""
    folder = tmp_path / "modest"
    shutil.copytree(tiny_checkpoint(), folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"max_pixels": PIXELS}))
    return folder


def test_generate_and_attention_map(call: Call, media: Path, modest: Path) -> None:
    given = ("--model", modest, "--video", media / "film.mp4", "--json")
    asked = ("-p", "What?", "--max-tokens", 1)
    small = call("generate", *given, *asked).json()["tokens_seen"]
    large = call("generate", *given, *asked, "--max-pixels", 112 * 112).json()["tokens_seen"]
    assert large - small == 3 * 2 * (16 - 4)
    assert call("attention-map", *given).json()["sizes"]["tokens"] == 3 * TOKENS
    more = call("attention-map", *given, "--max-pixels", 112 * 112).json()
    assert more["sizes"]["tokens"] == 3 * (TOKENS + 2 * (16 - 4))


def test_eval(call: Call, modest: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    few = ("--modality", "shape", "--distance", 0, "--samples", 1, "--lead", 0, "--size", 112)
    assert (
        call("eval", "needle", "--model", modest, "--policy", "full", *few, "--out", out).code == 0
    )
    assert json.loads((out / "run.json").read_text())["options"]["media"]["max_pixels"] == PIXELS


def test_harnesses(modest: Path) -> None:
    assert Talker(str(modest), backend="reference").media.max_pixels == PIXELS
    given = Talker(str(modest), backend="reference", max_pixels=112 * 112)
    assert given.media.max_pixels == 112 * 112
