"""The example and the benchmark, run as a user runs them on a folder with a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tiny_model: Callable[..., Any], tokenizer: Callable[[str], Any], tmp_path: Path) -> Path:
    """A checkpoint that `mlx_lm.load` reads."""
    model, path = tiny_model("llama"), tmp_path / "model"
    tokenizer("chatml")._tokenizer.save_pretrained(path)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(path / "model.safetensors"), weights, {"format": "mlx"})
    arguments = {k: v for k, v in vars(model.args).items() if v is not None}
    (path / "config.json").write_text(json.dumps(arguments))
    return path


def run(script: str, *arguments: str, said: str = "") -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, str(ROOT / script), *arguments],
        input=said,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"},
    )


def test_a_chat_is_bounded_and_goes_on_another_day(folder: Path, tmp_path: Path) -> None:
    arguments = [str(folder), "--max-tokens", "8", "--max-kv-size", "60"]
    arguments += ["--cache-file", str(tmp_path / "talk")]
    first = run("examples/long_chat.py", *arguments, said="w1 w2 w3\n" * 6 + "\nw9\n")
    assert first.returncode == 0, first.stderr
    held = [line for line in first.stderr.splitlines() if "tokens held" in line]
    assert len(held) == 6
    kept, seen = (int(n) for n in held[-1].strip("(").split(" tokens")[0].split(" of "))
    assert kept <= 60 < seen
    second = run("examples/long_chat.py", *arguments, said="w4\n")
    assert second.returncode == 0, second.stderr
    (line,) = [line for line in second.stderr.splitlines() if "tokens held" in line]
    assert int(line.split(" of ")[1].split()[0]) > seen

    (tmp_path / "talk.safetensors").write_bytes(b"nothing")
    third = run("examples/long_chat.py", *arguments)
    assert third.returncode == 1
    assert third.stderr.strip().splitlines()[-1].startswith("[mlx-lm] can't read")
    assert "Traceback" not in third.stderr


def test_a_chat_needs_a_model_made_for_it(
    folder: Path, tokenizer: Callable[[str], Any], tmp_path: Path
) -> None:
    missing = run("examples/long_chat.py", str(tmp_path / "none"), said="w1\n")
    assert missing.returncode == 2
    assert f"can't load {tmp_path / 'none'}: " in missing.stderr
    assert "Traceback" not in missing.stderr
    for file in folder.glob("*token*"):
        file.unlink()
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer("plain")._tokenizer.save_pretrained(folder)
    plain = run("examples/long_chat.py", str(folder), said="w1\n")
    assert plain.returncode == 2
    assert plain.stderr.strip().endswith("has no chat template; take a model made for chat")


def test_the_benchmark_compares_caches(folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"w{i * i % 60}" for i in range(400)))
    done = run(
        "benchmarks/mlx_lm_cache.py",
        *("--model", str(folder), "--text", str(text), "--tokens", "300", "--decode", "4"),
        *("--prefill-step-size", "32", "--high-watermark", "96", "--low-watermark", "64"),
        *("--rounds", "1", "--policy", "turns", "--policy", "full"),
    )
    assert done.returncode == 0, done.stderr
    head, titles, *rows = done.stdout.splitlines()
    assert head.startswith("300 tokens in pieces of 32, then 4 decoded")
    assert titles.split()[-1] == "perplexity"
    values = {row.split()[0]: row.split()[1:] for row in rows}
    assert list(values) == ["KVCache", "RotatingKVCache", "turns", "full"]
    kept = {name: int(v[4]) for name, v in values.items()}
    assert (kept["KVCache"], kept["full"]) == (304, 304)
    assert kept["RotatingKVCache"] == 96
    assert kept["turns"] <= 96
    # Nothing is lost under the full policy, so the text is as likely as with mlx-lm's cache.
    assert values["full"][5] == values["KVCache"][5] != values["turns"][5]


def test_the_benchmark_needs_a_tokenizer_for_a_text(tmp_path: Path) -> None:
    done = run("benchmarks/mlx_lm_cache.py", "--text", str(tmp_path / "none"))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("--text needs --model, whose tokenizer reads it")
