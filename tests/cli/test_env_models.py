"""`omnitide env` and `omnitide models`."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest

from omnitide.backends import BACKENDS, auto_backend, describe_backend
from omnitide.cli.models import units_of_a_minute
from omnitide.config import MediaOptions

Call = Callable[..., Any]

PAPER = ("--width", 1344, "--height", 1344, "--fps", 1, "--chunk-seconds", 1)
PAPER_PIXELS = ("--max-pixels", 1344 * 1344)


def test_env_as_json(call: Call) -> None:
    result = call("env", "--json")
    found = result.json()
    assert result.code == 0
    assert result.err == ""
    assert found["versions"]["numpy"] == version("numpy")
    assert found["versions"]["python"] == platform.python_version()
    assert found["cpu_count"] == os.cpu_count()
    assert found["memory_bytes"] > 2**28
    assert found["auto"] == auto_backend().name
    assert [backend["name"] for backend in found["backends"]] == list(BACKENDS)


def test_env_says_why_a_backend_is_missing_and_which_is_taken(call: Call) -> None:
    text = call("env").out
    for name in BACKENDS:
        assert f"{name}: " in text
    assert "cuda: not available" in text
    assert "omnitide[cuda12]" in text
    assert f"{auto_backend().name}: available, taken by auto" in text
    assert text.count("taken by auto") == 1


@pytest.mark.skipif(describe_backend("mlx").accelerated, reason="here Metal is")
@pytest.mark.skipif(not describe_backend("mlx").available, reason="MLX is not here")
def test_shaders_asked_for_without_metal_are_an_error_that_env_foretells(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNITIDE_MLX_ATTENTION", "metal")
    why = "OMNITIDE_MLX_ATTENTION=metal needs a Mac with Metal; unset it to run in plain operations"
    shown = call("env")
    assert shown.code == 0
    assert f"  note    It can't be loaded as it is set: {why}\n" in shown.out
    for command in (("bench", "decode", "--backend", "mlx"), ("selftest",)):
        refused = call(*command)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err == f"omnitide: error: [backend] {why}\n"


def test_models_reproduce_table_1_of_the_paper(call: Call) -> None:
    # Qwen2.5-Omni-7B, one 1344 x 1344 image and one second of sound a unit: 2,304 + 25 tokens,
    # about 2,300 a unit and 140K a minute. The four markers are ours to count.
    found = call("models", *PAPER, *PAPER_PIXELS, "--json").json()
    costs = {cost["name"]: cost for cost in found["checkpoints"]}
    cost = costs["Qwen/Qwen2.5-Omni-7B"]
    assert cost["tokens_per_unit"] == 2304 + 25 + 4
    assert cost["tokens_per_minute"] == 60 * (2304 + 25 + 4)
    assert round(cost["tokens_per_minute"], -4) == 140_000


@pytest.mark.parametrize(
    ("name", "layers", "kv_heads", "parameters"),
    [
        ("Qwen/Qwen2.5-Omni-3B", 36, 2, 4_703_464_448),
        ("Qwen/Qwen2.5-Omni-7B", 28, 4, 8_931_813_888),
    ],
)
def test_models_state_kv_bytes(
    call: Call, name: str, layers: int, kv_heads: int, parameters: int
) -> None:
    found = call("models", *PAPER, *PAPER_PIXELS, "--high-watermark", 5000, "--json").json()
    (cost,) = (cost for cost in found["checkpoints"] if cost["name"] == name)
    token = 2 * layers * kv_heads * 128 * 2
    assert cost["parameters"] == parameters
    assert cost["kv_bytes_per_token"] == token
    assert cost["kv_bytes_per_minute"] == token * cost["tokens_per_minute"]
    assert cost["kv_bytes_per_hour"] == token * cost["tokens_per_minute"] * 60
    # High watermark, largest unit, and a reply of 100 with its closing.
    assert 5000 + 2333 + 100 <= cost["bounded_tokens"] <= 5000 + 2333 + 100 + 64
    assert cost["bounded_tokens"] * token <= cost["bounded_kv_bytes"]
    assert cost["bounded_kv_bytes"] <= (cost["bounded_tokens"] + 8 * 64) * token


def test_models_without_sound_and_with_smaller_pixels(call: Call) -> None:
    # 1920 x 1080 within 448 x 448 pixels is 588 x 336, 21 x 12 cells: two steps a chunk.
    silent = call("models", "--no-audio", "--json").json()["checkpoints"][0]
    heard = call("models", "--json").json()["checkpoints"][0]
    assert heard["tokens_per_unit"] - silent["tokens_per_unit"] == 50 + 2
    assert silent["tokens_per_unit"] == 2 * 21 * 12 + 2
    assert silent["tokens_per_minute"] == 30 * silent["tokens_per_unit"]


def test_models_as_table(call: Call) -> None:
    result = call("models", *PAPER, *PAPER_PIXELS)
    assert result.code == 0
    for words in ("Qwen/Qwen2.5-Omni-3B", "2,333", "139,980", "36 KiB", "56 KiB", "unbounded"):
        assert words in result.out


@pytest.mark.parametrize(
    ("name", "sound", "parameters"),
    [
        # The modules that are loaded of about 9 B; the part that speaks is not.
        ("openbmb/MiniCPM-o-4_5", 10 + 2, 9_008_851_872),
        ("openbmb/MiniCPM-o-2_6", 25 + 2 + 1, 8_423_157_488),
    ],
)
def test_models_of_minicpm_see_a_second_at_a_time(
    call: Call, name: str, sound: int, parameters: int
) -> None:
    found = call("models", "--json").json()
    assert "MiniCPM-o 4.5 and 2.6" in found["families"]["minicpm_o"]
    (cost,) = (cost for cost in found["checkpoints"] if cost["name"] == name)
    assert (cost["fps"], cost["seconds_per_unit"]) == (1.0, 1.0)
    assert cost["parameters"] == parameters
    assert cost["tokens_per_unit"] == 66 + sound
    # 1920 x 1080 pixels ask for eleven slices; nine are made, 3 x 3 or as many in other rows.
    sliced = call("models", "--max-pixels", 9 * 448 * 448, "--json").json()["checkpoints"]
    (cost,) = (cost for cost in sliced if cost["name"] == name)
    assert cost["tokens_per_unit"] in (66 * 9 + sound, 66 * 10 + sound)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--width", 0), "--width must be at least 1"),
        (("--high-watermark", 0), "high_watermark must be at least 1"),
        (("--width", 100_000, "--height", 1), "at most 200 times"),
        (("--fps", 0), "fps must be in"),
    ],
)
def test_models_refuse(call: Call, arguments: tuple[object, ...], words: str) -> None:
    result = call("models", *arguments)
    assert result.code == 2
    assert result.out == ""
    assert words in result.err


@pytest.mark.parametrize(
    ("fps", "seconds", "frames"),
    [
        (2.0, 2.0, [4] * 30),
        (1.0, 1.5, [2, 1] * 20),
        (0.5, 1.0, [1, 0] * 30),
        (2.0, 0.3, [1, 1, 0, 1, 0] * 40),
    ],
)
def test_units_of_a_minute_are_cut_as_the_reader_cuts(
    fps: float, seconds: float, frames: list[int]
) -> None:
    units = units_of_a_minute(MediaOptions(fps, seconds), sound=True)
    assert [unit[0] for unit in units] == frames
    assert sum(unit[1] for unit in units) == 60 * 16_000
    assert {unit[1] for unit in units_of_a_minute(MediaOptions(fps, seconds), sound=False)} == {0}
