"""Everything a user can get wrong: one message on stderr, exit code 2, no words on stdout."""

from __future__ import annotations

import io
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from omnitide.media.clip import ClipPicture, ClipSound, write_film

Call = Callable[..., Any]

NO_SAMPLES = (
    b"RIFF"
    + struct.pack("<I", 36)
    + b"WAVEfmt "
    + struct.pack("<IHHIIHH", 16, 1, 1, 16_000, 32_000, 2, 16)
    + b"data"
    + struct.pack("<I", 0)
)
"""A whole WAV file of zero length."""


@pytest.fixture
def refused(call: Call) -> Callable[..., str]:
    """`refused(*arguments)` runs a command line that must be refused; returns the message."""

    def run(*arguments: object) -> str:
        result = call(*arguments)
        assert result.code == 2
        assert result.out == ""
        assert result.err.startswith("omnitide: error: ")
        return str(result.err)

    return run


@pytest.fixture
def model(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be damaged."""
    return Path(shutil.copytree(checkpoint, tmp_path / "model"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seed", "soon"], ["--seed", "soon"]),
        (["--seed", "-1"], ["seed", "at least 0"]),
        (["--max-tokens", "many"], ["--max-tokens", "whole number", "many"]),
        (["--max-tokens", "0"], ["--max-tokens", "at least 1", "0"]),
        (["--max-tokens", "99999999999"], ["--max-tokens", "at most", "99999999999"]),
        (["--prompt", ""], ["prompt", "empty"]),
        (["--prompt", "  \n"], ["prompt", "empty"]),
        (["--system-prompt", "\udcff"], ["--system-prompt", "UTF-8"]),
        (["--prompt", "\udcff"], ["--prompt", "UTF-8"]),
        (["--ask-at", "-1"], ["ask-at", "at least 0"]),
        (["--ask-at", "nan"], ["ask-at", "nan"]),
        (["-p", "a", "-p", "b", "--ask-at=1", "--ask-at=2", "--ask-at=3"], ["3 moments", "2"]),
        (["--high-watermark", "100", "--low-watermark", "101"], ["low watermark 101", "100"]),
        (["--low-watermark", "3000"], ["low watermark 3,000", "2,500"]),
        (["--high-watermark", "0"], ["high_watermark", "at least 1"]),
        (["--image-sink", "-1"], ["image_sink", "at least 0"]),
        (["--recent-units", "0"], ["recent_units", "at least 1"]),
        (["--policy", "best"], ["--policy", "best", "omnipick"]),
        (["--layout", "best"], ["--layout", "best", "predictive"]),
        (["--backend", "abacus"], ["--backend", "abacus", "reference"]),
        (["--backend", "cuda"], ["cuda", "omnitide[cuda12]"]),
        (["--backend", "reference", "--dtype", "int4"], ["int4", "float32"]),
        (["--temp", "-1"], ["temperature", "at least 0"]),
        (["--temp", "nan"], ["temperature", "nan"]),
        (["--top-p", "0"], ["top_p", "(0, 1]"]),
        (["--top-k", "-1"], ["top_k", "at least 0"]),
        (["--min-p", "2"], ["min_p", "[0, 1]"]),
        (["--fps", "0"], ["fps", "(0, 240]"]),
        (["--fps", "nan"], ["fps", "nan"]),
        (["--chunk-seconds", "90"], ["chunk_seconds", "(0, 60]"]),
        (["--max-pixels", "1"], ["max_pixels", "784"]),
        (["--max-kv-size", "0"], ["--max-kv-size", "at least 1"]),
        (["--video", ""], ["--video", "empty"]),
        (["--tempo", "1"], ["--tempo"]),
        (["--max-tok", "1"], ["--max-tok"]),
        (["--model"], ["--model", "expected one argument"]),
        (["--model", "no/such/folder"], ["no/such/folder"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_option(refused: Callable[..., str], arguments: list[str], words: list[str]) -> None:
    message = refused("generate", *arguments)
    assert [word for word in words if word not in message] == []


def test_unknown_command(refused: Callable[..., str]) -> None:
    assert "invent" in refused("invent")


def test_options_are_checked_before_files_and_files_before_the_model(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    nothing = tmp_path / "nothing"
    assert "prompt" in refused("generate", "--model", nothing, "--video", nothing, "-p", "")
    marks = ("--low-watermark", 3000)
    assert "low watermark" in refused("generate", "--model", nothing, "--video", nothing, *marks)
    assert "does not exist" in refused("generate", "--model", nothing, "--video", nothing)
    assert "does not exist" in refused("generate", "--model", nothing, "--image", nothing)


def test_system_prefix_above_the_low_watermark(refused: Callable[..., str], media: Path) -> None:
    marks = ("--high-watermark", 300, "--low-watermark", 200, "--system-prompt", "x" * 400)
    message = refused("generate", "--image", media / "picture.png", *marks)
    assert "the low watermark is 200" in message
    assert "--system-prompt" in message


def test_max_kv_size_that_holds_no_unit(refused: Callable[..., str], media: Path) -> None:
    message = refused("generate", "--image", media / "picture.png", "--max-kv-size", 500)
    assert "--max-kv-size 500 is too small" in message
    assert "--max-pixels" in message


@pytest.mark.parametrize("option", ["--video", "--audio", "--image"])
@pytest.mark.parametrize(
    ("name", "contents", "words"),
    [
        ("absent.mp4", None, "does not exist"),
        ("empty.mp4", b"", "is empty"),
        ("words.mp4", b"Not a film, but a few words about one. " * 50, "words.mp4"),
    ],
)
def test_file_that_is_no_media(
    refused: Callable[..., str],
    tmp_path: Path,
    option: str,
    name: str,
    contents: bytes | None,
    words: str,
) -> None:
    if contents is not None:
        (tmp_path / name).write_bytes(contents)
    assert words in refused("generate", option, tmp_path / name)


@pytest.mark.parametrize("option", ["--video", "--audio"])
def test_film_of_zero_length(refused: Callable[..., str], tmp_path: Path, option: str) -> None:
    (tmp_path / "nothing.wav").write_bytes(NO_SAMPLES)
    assert "a length of 0" in refused("generate", option, tmp_path / "nothing.wav")


def test_directory_as_film(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "is a directory" in refused("generate", "--video", tmp_path)


def test_film_without_its_end_can_not_be_opened(
    refused: Callable[..., str], media: Path, tmp_path: Path
) -> None:
    # The index of a plain MP4 stands at its end.
    whole = (media / "film.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    assert "cut off" in refused("generate", "--video", tmp_path / "cut.mp4")


@pytest.fixture
def cut_film(tmp_path: Path) -> Path:
    """Six seconds by the header, of which somewhat more than the first half is there."""
    whole = tmp_path / "whole.mp4"
    index_first = {"movflags": "+faststart"}
    write_film(whole, 6, ClipPicture(), ClipSound(), container_options=index_first)
    cut = tmp_path / "cut.mp4"
    contents = whole.read_bytes()
    cut.write_bytes(contents[: len(contents) * 7 // 10])
    return cut


def test_film_that_breaks_off_is_answered_from_what_was_seen(call: Call, cut_film: Path) -> None:
    result = call("generate", "--video", cut_film, "-m", 6, "--json")
    found = result.json()
    assert result.code == 2
    assert "broke off" in found["broken"]
    assert f"omnitide: error: {found['broken']}" in result.err
    (reply,) = found["text"]
    assert reply["tokens"] == 6
    assert 2.0 < reply["time"] < 6.0
    assert found["units"] >= 5  # system prefix, two chunks at least, question, reply


def test_film_that_breaks_off_keeps_words_and_table(call: Call, cut_film: Path) -> None:
    result = call("generate", "--video", cut_film, "-m", 6)
    assert result.code == 2
    assert len(result.out.strip()) > 0
    table, _, message = result.err.partition("omnitide: error: ")
    assert "tokens/s" in table
    assert "broke off" in message


def test_history_that_may_grow_no_more_keeps_what_there_is(call: Call, media: Path) -> None:
    full = ("--policy", "full", "--max-kv-size", 384, "-m", 20, "--ask-at", 2)
    result = call("generate", "--video", media / "film.mp4", *full, "--json")
    found = result.json()
    assert result.code == 2
    assert "capacity leaves" in found["broken"]
    assert found["broken"] in result.err
    assert [reply["tokens"] for reply in found["text"]] == [20]
    assert found["tokens_kept"] <= found["capacity_tokens"] == 384


def _edit_config(model: Path, **changes: Any) -> None:
    file = model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_model_folder_without_config(refused: Callable[..., str], model: Path) -> None:
    (model / "config.json").unlink()
    message = refused("generate", "--model", model)
    assert "config.json" in message
    assert str(model) in message


def test_unknown_architecture(refused: Callable[..., str], model: Path) -> None:
    _edit_config(model, architectures=["LlamaForCausalLM"])
    message = refused("generate", "--model", model)
    assert "LlamaForCausalLM" in message
    assert "Qwen2_5OmniModel" in message


def test_tensors_at_fault_are_all_named(refused: Callable[..., str], model: Path) -> None:
    file = model / "model.safetensors"
    tensors = load_file(file)
    attention = "thinker.model.layers.0.self_attn"
    first, second = f"{attention}.q_proj.weight", f"{attention}.k_proj.weight"
    third = f"{attention}.v_proj.weight"
    shape = tensors[third].shape
    del tensors[first], tensors[second]
    tensors[third] = tensors[third].reshape(-1)[:1].copy()
    tensors["thinker.model.extra.weight"] = tensors[third].copy()
    save_file(tensors, file)
    message = refused("generate", "--model", model)
    for name in (first, second, third):
        assert name.removeprefix("thinker.") in message
    assert "thinker.model.extra.weight" in message
    assert str(list(shape)) in message
    assert "4 at fault" in message


def test_pickle_checkpoint(refused: Callable[..., str], model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    message = refused("generate", "--model", model)
    assert "pytorch_model.bin" in message
    assert "safetensors" in message


def test_truncated_safetensors(refused: Callable[..., str], model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    assert str(file) in refused("generate", "--model", model)


def test_closed_stdin(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert "stdin" in refused("generate", "-p", "-")


def test_stdin_that_is_empty(refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "empty" in refused("generate", "-p", "-")


def test_stdin_that_is_no_text(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", stdin)
    assert "UTF-8" in refused("generate", "-p", "-")


def test_names_from_files_can_not_steer_the_terminal(
    refused: Callable[..., str], model: Path
) -> None:
    _edit_config(model, architectures=["\x1b]0;owned\x07"])
    message = refused("generate", "--model", model)
    assert "\x1b" not in message
    assert "\\x1b]0;owned\\x07" in message
