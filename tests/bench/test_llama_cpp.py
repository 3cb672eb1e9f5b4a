"""llama.cpp beside ours: commands, llama-bench's JSON, the table; and a real one where given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
REAL = os.environ.get("OMNITIDE_LLAMA_BENCH")
Script = Callable[[str], Any]


def llama_test(prompt: int, generated: int, depth: int, *samples: int) -> dict[str, Any]:
    """One object of llama-bench's list, as much of it as is read."""
    return {
        "build_commit": "abc",
        "build_number": 7,
        "backends": "CUDA",
        "gpu_info": "a GPU",
        "cpu_info": "a CPU",
        "model_size": 4_680_000_000,
        "n_prompt": prompt,
        "n_gen": generated,
        "n_depth": depth,
        "samples_ns": list(samples),
    }


LLAMA = [
    llama_test(512, 0, 100, 63_000_000, 61_000_000, 90_000_000),
    llama_test(0, 4, 100, 18_000_000, 16_000_000, 20_000_000),
]


@pytest.fixture
def options(script: Script, tmp_path: Path) -> Callable[..., Any]:
    """`options(...)`: a command line read, with a llama-bench that is a file."""
    program = tmp_path / "llama-bench"
    program.write_text("")
    program.chmod(0o755)

    def read(*given: object) -> Any:
        words = ["--llama-bench", str(program), *map(str, given)]
        return script("llama_cpp").read_options(words)

    return read


def test_llama_bench_is_asked_for_every_case_at_once(
    script: Script, options: Callable[..., Any]
) -> None:
    given = options("--history", 64, 128, "--tokens", 16, 48, "--in-a-row", 3, "--threads", 2)
    command = script("llama_cpp").llama_command(given, Path("x.gguf"))
    pairs = dict(zip(command[1::2], command[2::2], strict=True))
    assert command[0] == str(given.llama_bench)
    assert pairs == {
        "--model": "x.gguf",
        "--output": "json",
        "--n-prompt": "16,48",
        "--n-gen": "3",
        "--n-depth": "64,128",
        "--repetitions": "5",
        # An update is one pass, however long.
        "--batch-size": "48",
        "--ubatch-size": "48",
        "--flash-attn": "1",
        "--threads": "2",
    }


@pytest.mark.parametrize("name", ["decode", "update"])
@pytest.mark.parametrize("bits", [0, 8])
def test_ours_has_the_same_history(
    script: Script, options: Callable[..., Any], name: str, bits: int
) -> None:
    given = options("--history", 64, "--tokens", 16, "--q-group-size", 32, "--peer", "mlx-lm")
    command = " ".join(script("llama_cpp").our_command(given, name, bits))
    assert f"-m omnitide bench {name} --json --policy full --shape qwen2.5-omni-7b" in command
    assert "--history 64" in command
    assert command.endswith("--peer mlx-lm")
    assert ("--tokens 16" in command) == (name == "update")
    assert ("--q-bits 8 --q-group-size 32" in command) == (bits == 8)


def test_milliseconds_are_medians_and_of_one_token(script: Script) -> None:
    times, build = script("llama_cpp").read_llama(json.dumps(LLAMA))
    assert times == {(512, 100): pytest.approx(63), (1, 100): pytest.approx(4.5)}
    assert build == "llama.cpp abc (7), CUDA, a GPU, 4,680.0 MB of weights"


@pytest.mark.parametrize("text", ["", "{}", "[]", "[{}]", '["n_gen"]', '[{"n_gen": 1}]'])
def test_other_json_is_refused(script: Script, text: str) -> None:
    module = script("llama_cpp")
    with pytest.raises(module.Failed, match="printed no JSON that is known here"):
        module.read_llama(text)


def test_the_table_has_a_column_for_each_program(script: Script) -> None:
    module = script("llama_cpp")
    found = module.Found({}, [])
    rows = [
        {"who": "omnitide", "history": 100, "ms": 1.234},
        {"who": "mlx-lm", "history": 100, "ms": 9.1},
    ]
    versions = {"python": "3.12", "cupy": "14.2"}
    machine = {"backend": "cuda", "device": "a GPU", "dtype": "bfloat16", "versions": versions}
    module.add_ours(found, {"machine": machine, "rows": rows, "notes": ["one"]}, 4)
    update = [{"who": "omnitide", "history": 100, "tokens": 512, "ms": 1021.5}]
    module.add_ours(found, {"machine": machine, "rows": update, "notes": ["one"]}, 4)
    module.add_ours(found, {"machine": machine, "rows": rows[:1], "notes": []}, 0)
    found.columns["llama.cpp"] = {(1, 100): 4.5}
    assert module.lines(found, "tiny") == [
        "tiny, ms              omnitide, 4 bits  mlx-lm, 4 bits  omnitide  llama.cpp",
        "a token after 100                 1.23            9.10      1.23       4.50",
        "512 tokens after 100          1,021.50               -         -          -",
        "note: cuda on a GPU, bfloat16; python 3.12, cupy 14.2",
        "note: one",
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--llama-bench", "nowhere"), "there is no file nowhere"),
        (("--llama-bench", __file__), "must be a program, and can't be run"),
        (("--gguf", __file__), "is there and is no GGUF file"),
        (("--gguf", Path(__file__).parent), "can't be read: Is a directory"),
        (("--gguf", "nowhere/x.gguf"), "can't be written"),
        (("--gguf", Path(__file__) / "x.gguf"), "can't be written"),
        (("--shape", "x"), "argument --shape: invalid choice"),
        (("--history", "0"), "must be a whole number from 1, got '0'"),
        (("--tokens", "1"), "must be a whole number from 2, got '1'"),
        (("--tokens", "many"), "must be a whole number from 2, got 'many'"),
        (("--q-bits", "3"), "argument --q-bits: invalid choice"),
    ],
)
def test_a_bad_command_line_is_refused(
    options: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    given: tuple[str, ...],
    message: str,
) -> None:
    with pytest.raises(SystemExit) as stopped:
        options(*given)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def call(program: str, *more: object) -> subprocess.CompletedProcess[str]:
    """The script on the tiny shape, in a process of its own."""
    command = [sys.executable, str(ROOT / "benchmarks" / "llama_cpp.py"), "--llama-bench", program]
    command += ["--shape", "tiny", "--backend", "reference", "--repeat", "1", "--history", "40"]
    command += ["--tokens", "8", "--q-bits", "4", "--q-group-size", "32", *map(str, more)]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_a_program_that_fails_is_said_without_a_traceback(tmp_path: Path) -> None:
    program = tmp_path / "llama-bench"
    program.write_text("#!/bin/sh\necho no such model >&2\nexit 3\n")
    program.chmod(0o755)
    done = call(str(program))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip().endswith("ended with 3:\nno such model")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(REAL is None, reason="OMNITIDE_LLAMA_BENCH names no llama-bench")
def test_a_real_llama_bench_runs_the_file(tmp_path: Path) -> None:
    model = tmp_path / "kept.gguf"
    done = call(str(REAL), "--gguf", model, "--llama-repeat", 2, "--in-a-row", 2, "--threads", 1)
    assert done.returncode == 0, done.stderr
    head, token, update, *notes = done.stdout.splitlines()
    assert head.split("  ")[-1].strip() == "llama.cpp"
    assert token.startswith("a token after 40 ")
    assert update.startswith("8 tokens after 40 ")
    assert all(float(line.split()[-1]) > 0 for line in (token, update))
    assert any(note.startswith("note: llama.cpp ") for note in notes)
    assert model.stat().st_size > 100_000
