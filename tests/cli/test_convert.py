"""`omnitide convert` and `generate --dry-run` as a user meets them."""

from __future__ import annotations

import json
import re
import resource
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from omnitide import Session, load
from omnitide.config import DuplexConfig, MediaOptions
from omnitide.duplex import DuplexSession
from omnitide.media.recording import read_recording
from omnitide.memory import duplex_room
from omnitide.models.outline import read_outline
from omnitide.pages import PAGE_SIZE

Call = Callable[..., Any]
ONE_SECOND = MediaOptions(fps=1.0, chunk_seconds=1.0)


def test_the_report_and_the_model(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "four"
    done = call("convert", "--hf-path", checkpoint, "--mlx-path", out)
    assert done.code == 0
    rows = done.out.splitlines()
    assert rows[0].split() == ["matrix", "number", "bits,", "group", "relative", "error", "largest"]
    assert any(row.startswith("model.layers.*.self_attn.q_proj ") for row in rows)
    assert "20 matrices quantised, 128 tensors kept" in rows[-1]
    asked = call("generate", "--model", out, "--prompt", "Hello", "--max-tokens", 4, "--json")
    assert asked.code == 0
    assert asked.json()["text"]


def test_each_matrix_is_shown_when_asked(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    done = call("convert", "--model", checkpoint, "--mlx-path", tmp_path / "four", "--verbose")
    assert sum(row.startswith("model.layers.") for row in done.out.splitlines()) == 18


def test_names_are_never_cut(
    call: Call, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what --module asks for."""
    monkeypatch.setenv("COLUMNS", "40")
    options = ("--mlx-path", tmp_path / "out", "--module", "*=4:32")
    done = call("convert", "--hf-path", checkpoint, *options, "--verbose")
    record = json.loads((tmp_path / "out" / "conversion.json").read_text())
    names = {m["module"] for m in record["files"]["model.safetensors"]["modules"]}
    assert {row.split()[0] for row in done.out.splitlines()[1:-1]} == names


def test_nothing_that_steers_a_terminal_is_printed(
    call: Call, checkpoint: Path, tmp_path: Path
) -> None:
    done = call("convert", "--hf-path", checkpoint, "--mlx-path", tmp_path / "a\x1b[31mb")
    assert done.code == 0
    assert "\x1b" not in done.out + done.err
    assert "a\\x1b[31mb: 1.52 MiB" in done.out


def test_json_names_everything(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "eight"
    options = ("--q-bits", 8, "--q-group-size", 32, "--module", "lm_head=16", "--drop-unused")
    done = call("convert", "--model", checkpoint, "--mlx-path", out, "--json", *options)
    result = done.json()
    assert result["folder"] == str(out)
    assert {m["bits"] for m in result["modules"]} == {8}
    assert "thinker.lm_head.weight" in result["kept"]
    assert result["left_out"] == ["thinker.audio_tower.audio_bos_eos_token.weight"]
    assert 0 < min(m["relative_error"] for m in result["modules"]) < 0.01
    written = sum(w.nbytes for w in load_file(out / "model.safetensors").values())
    assert result["written_bytes"] == written


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--mlx-path must be given"),
        (["--mlx-path", ""], "--mlx-path must be given"),
        (["--q-bits", "3"], "got 3 bits in groups of 64; give others with --q-bits"),
        (["--q-bits", "4.5"], "expected a whole number"),
        (["--q-group-size", "48"], "groups of 48"),
        (["--memory-limit", "0"], "--memory-limit must be at least 0.015625 GiB"),
        (["--memory-limit", "nan"], "--memory-limit must be at least"),
        (["--memory-limit", "inf"], "at most 1,048,576 GiB, got inf"),
        (["--memory-limit", "1e300"], "got 1e+300"),
        (["--module", "lm_head=" + "4" * 5000], "a rule reads PATTERN=BITS"),
        (["--module", "lm_head"], "a rule reads PATTERN=BITS"),
        (["--module", "nothing=4"], "must match a matrix"),
        (["--dtype", "int8"], "the dtype must be one of"),
    ],
)
def test_bad_options(
    call: Call, checkpoint: Path, tmp_path: Path, options: list[str], words: str
) -> None:
    given = ["--mlx-path", tmp_path / "out"] if options and "--mlx-path" not in options else []
    done = call("convert", "--hf-path", checkpoint, *given, *options)
    assert done.code == 2
    assert done.out == ""
    assert words in done.err
    assert list(tmp_path.iterdir()) == []


def test_no_model_is_given(call: Call, tmp_path: Path) -> None:
    done = call("convert", "--mlx-path", tmp_path / "out")
    assert done.code == 2
    assert "--hf-path must be given" in done.err


@pytest.fixture
def large(checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint that takes a while: a vocabulary of 200,000."""
    folder = Path(shutil.copytree(checkpoint, tmp_path / "large"))
    config = json.loads((folder / "config.json").read_text())
    config["thinker_config"]["text_config"]["vocab_size"] = 200_000
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    for name in ("thinker.model.embed_tokens.weight", "thinker.lm_head.weight"):
        weights[name] = np.tile(weights[name], (695, 1))[:200_000]
    save_file(weights, folder / "model.safetensors")
    return folder


def test_ctrl_c_leaves_no_model_and_the_same_command_goes_on(
    start: Call, program: Call, large: Path, tmp_path: Path
) -> None:
    out, unfinished = tmp_path / "out", tmp_path / "out.unfinished"
    command = ("convert", "--model", large, "--mlx-path", out, "--memory-limit", 0.016)
    process = start(*command)
    while not list(unfinished.glob(".model.safetensors.*.part")):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on from there" in err
    assert "Traceback" not in err
    assert not out.exists()
    refused = program("generate", "--model", unfinished, "--prompt", "Hello")
    assert refused.code == 2
    assert "must hold config.json" in refused.err
    done = program(*command)
    assert done.code == 0
    assert "going on with out.unfinished" in done.err
    assert out.is_dir()


def test_what_is_not_gone_on_with_is_not_said_to_be(
    call: Call, checkpoint: Path, tmp_path: Path
) -> None:
    unfinished = tmp_path / "out.unfinished"
    unfinished.mkdir()
    record = {"finished": False, "digest": "of other options", "files": {}}
    (unfinished / "conversion.json").write_text(json.dumps(record))
    done = call("convert", "--model", checkpoint, "--mlx-path", tmp_path / "out")
    assert done.code == 2
    assert "is of another conversion" in done.err
    assert "going on" not in done.err


def test_a_disk_that_fills_up_is_told_and_what_is_finished_stays(
    program: Call, checkpoint: Path, tmp_path: Path
) -> None:
    """A limit on the size of files stands for the disk: the system refuses a write half way."""
    command = ("convert", "--model", checkpoint, "--mlx-path", tmp_path / "out")

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, resource.RLIM_INFINITY))

    done = program(*command, preexec_fn=limited)
    assert done.code == 2
    assert "[convert] can't write" in done.err
    assert "File too large" in done.err
    assert not (tmp_path / "out").exists()
    left = {file.name for file in (tmp_path / "out.unfinished").iterdir()}
    assert left == {"conversion.json"}
    assert program(*command).code == 0


def test_a_place_that_can_not_be_written(call: Call, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = call("convert", "--model", checkpoint, "--mlx-path", tmp_path / "file" / "out")
    assert done.code == 2
    assert "can't make" in done.err


def test_progress_in_lines_where_there_is_no_screen(
    call: Call, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnitide.cli.convert.SECONDS_BETWEEN_LINES", 0.0)
    done = call("convert", "--model", checkpoint, "--mlx-path", tmp_path / "out", "--verbose")
    lines = [line for line in done.err.splitlines() if " % " in line]
    assert lines[-1].startswith("100 %  2.73 MiB of 2.73 MiB")


# -- the memory of a run --------------------------------------------------------------------------
@pytest.mark.usefixtures("packed_weights")
@pytest.mark.parametrize("backend", ["reference", "mlx"])
@pytest.mark.parametrize("policy", ["omnipick", "full"])
def test_dry_run_tells_what_a_session_takes(
    backend: str, policy: str, call: Call, checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "four"
    call("convert", "--model", checkpoint, "--mlx-path", out)
    options = ("--backend", backend, "--dtype", "float32", "--max-tokens", 20, "--policy", policy)
    told = call("generate", "--dry-run", "--model", out, *options, "--json").json()
    model = load(out, backend=backend, dtype="float32")
    session = Session(model, policy=policy, max_tokens=20, media=MediaOptions())
    assert told["kv_bytes"] == session.cache.pools.nbytes
    capacity = None if policy == "full" else session.capacity_tokens
    assert told["kv_tokens"] == capacity
    # Every float in float32, packed elements as stored; the unread embedding is not counted.
    stored = load_file(out / "model.safetensors")
    del stored["thinker.audio_tower.audio_bos_eos_token.weight"]
    want = sum(w.size * 4 for w in stored.values())
    assert told["weight_bytes"] == want
    assert told["total_bytes"] == sum(
        told[k] for k in ("weight_bytes", "kv_bytes", "scratch_bytes")
    )
    assert told["fits"] is True


def test_dry_run_counts_small_matrices_as_the_floats_that_they_become(
    call: Call, checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "four"
    call("convert", "--model", checkpoint, "--mlx-path", out)
    command = ("generate", "--dry-run", "--backend", "reference", "--dtype", "float32")
    told = call(*command, "--model", out, "--json").json()
    plain = call(*command, "--model", checkpoint, "--json").json()
    assert told["weight_bytes"] == plain["weight_bytes"]
    assert told["scratch_bytes"] == plain["scratch_bytes"]
    assert " quantised and kept as floats" in call(*command, "--model", out).out


def test_dry_run_counts_turned_keys_where_a_backend_keeps_them(
    call: Call, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("generate", "--dry-run", "--model", checkpoint, "--backend", "reference", "--json")
    plain = call(*command).json()
    name = "omnitide.backends.reference.backend.ReferenceBackend.pool_arrays"
    monkeypatch.setattr(name, 3)
    turned = call(*command).json()
    assert 2 * turned["kv_bytes"] == 3 * plain["kv_bytes"]


@pytest.mark.parametrize("backend", ["reference", "mlx"])
@pytest.mark.parametrize("policy", ["omnipick", "full"])
def test_dry_run_tells_what_packed_keys_and_values_take(
    backend: str, policy: str, call: Call, checkpoint: Path
) -> None:
    options = ("--backend", backend, "--dtype", "float32", "--policy", policy)
    command = ("generate", "--dry-run", "--model", checkpoint, *options, "--json")
    told, plain = call(*command, "--kv-bits", 8).json(), call(*command).json()
    model = load(checkpoint, backend=backend, dtype="float32")
    session = Session(model, policy=policy, kv_bits=8, media=MediaOptions())
    session.append_text("Hello")  # the factors of channels come with the first rows
    pools = session.cache.pools
    assert told["kv_bytes"] == pools.nbytes
    # A layer's cells are floats while it attends, whatever they are in the pools.
    assert told["scratch_bytes"] >= plain["scratch_bytes"]
    assert told["scratch_bytes"] > 2 * pools.num_pages * PAGE_SIZE * 128 * 4


def test_dry_run_in_words(call: Call, checkpoint: Path) -> None:
    done = call("generate", "--dry-run", "--model", checkpoint, "--backend", "reference")
    assert done.code == 0
    labels = [row.split()[0] for row in done.out.splitlines()[1:]]
    assert labels == ["weights", "KV", "scratch", "together", "free", "It"]
    assert done.out.rstrip().endswith("It fits.")


def test_dry_run_that_does_not_fit(
    call: Call, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnitide.backends.reference.backend.host.memory_free", lambda: 1 << 20)
    done = call("generate", "--dry-run", "--model", checkpoint, "--backend", "reference")
    assert done.code == 2
    assert "It does not fit: convert the model to fewer bits" in done.out


def test_dry_run_reads_no_weights(
    call: Call, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "omnitide.backends.reference.backend.ReferenceBackend.read_safetensors"
    monkeypatch.setattr(name, lambda *_: pytest.fail("weights were read"))
    assert call("generate", "--dry-run", "--model", checkpoint, "--backend", "reference").code == 0


def test_dry_run_refuses_what_a_run_would(call: Call, checkpoint: Path) -> None:
    done = call("generate", "--dry-run", "--model", checkpoint, "--max-kv-size", 64)
    assert done.code == 2
    assert "--max-kv-size 64 is too small" in done.err


@pytest.mark.parametrize("options", [(), ("--policy", "full"), ("--kv-bits", 8), ("--recall", 99)])
@pytest.mark.parametrize("voice", [False, True])
def test_dry_run_tells_what_a_duplex_session_takes(
    options: tuple[Any, ...],
    voice: bool,
    call: Call,
    minicpm_checkpoint: Callable[..., Path],
    media: Path,
) -> None:
    folder, clip = minicpm_checkpoint(), media / "deaf.wav"
    given = ("--duplex", "--unit-tokens", 7, *options, *(("--voice", clip) if voice else ()))
    command = ("generate", "--dry-run", "--model", folder, "--backend", "reference", *given)
    told = call(*command, "--dtype", "float32", "--json").json()
    named = dict(zip(options[::2], options[1::2], strict=True))
    model = load(folder, backend="reference", dtype="float32", media=ONE_SECOND)
    config = DuplexConfig(unit_tokens=7, recall=named.get("--recall", 0))
    speech = read_recording(str(clip)) if voice else None
    session = DuplexSession(
        model,
        policy=named.get("--policy", "omnipick"),
        kv_bits=named.get("--kv-bits"),
        duplex=config,
        voice=speech,
    )
    room = duplex_room(read_outline(folder), ONE_SECOND, None, config, speech)
    assert (room.prefix, room.unit) == (session.cache.capacity.prefix, session.largest_unit)
    pools = session.cache.pools
    assert told["kv_bytes"] == pools.nbytes
    assert told["kv_tokens"] == (None if "full" in options else session.capacity_tokens)
    stored = load_file(folder / "model.safetensors")
    assert told["weight_bytes"] == sum(w.size * 4 for w in stored.values())


def test_dry_run_of_a_duplex_stream_is_refused_where_it_would_be(
    call: Call, checkpoint: Path, minicpm_checkpoint: Callable[..., Path]
) -> None:
    asked = call("generate", "--dry-run", "--duplex", "--model", checkpoint)
    assert asked.code == 2
    assert "speaks only when it is asked" in asked.err
    long = ("--model", minicpm_checkpoint(), "--sound-memory", 29.5)
    for options in ((), ("--duplex",)):
        done = call("generate", "--dry-run", *options, *long)
        assert done.code == 2
        assert "--sound-memory must be at most 28 s" in done.err


def test_dry_run_with_nothing_given_is_of_the_small_duplex_model(call: Call) -> None:
    told = call("generate", "--dry-run", "--duplex", "--backend", "reference", "--json").json()
    assert (told["model"], told["fits"]) == ("embedded default", True)


def test_dry_run_counts_what_a_stream_of_sound_remembers(
    call: Call, minicpm_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values of 30 s in each layer of the audio tower, twice."""
    command = ("generate", "--dry-run", "--backend", "reference", "--dtype", "float32", "--json")
    whole = call(*command, "--model", minicpm_checkpoint()).json()["scratch_bytes"]
    name = "omnitide.models.minicpm_o.outline._stream_values"
    monkeypatch.setattr(name, lambda config: 0)
    less = call(*command, "--model", minicpm_checkpoint()).json()["scratch_bytes"]
    assert whole - less == 2 * 2 * 2 * 1500 * 64 * 4


# -- what the page shows --------------------------------------------------------------------------
PAGE = Path(__file__).parents[2] / "docs" / "quantization.md"
COMMANDS = re.findall(r"^omnitide ((?:.*\\\n)*.*)$", PAGE.read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("convert")])
def test_the_conversions_of_the_page_can_be_made(
    command: str, call: Call, checkpoint: Path, tmp_path: Path
) -> None:
    words = shlex.split(command.replace("\\\n", " "))
    words[words.index("--hf-path") + 1] = str(checkpoint)
    words[words.index("--mlx-path") + 1] = str(tmp_path / "out")
    assert call(*words).code == 0
    assert (tmp_path / "out" / "config.json").is_file()


def test_the_page_shows_commands_of_each_kind() -> None:
    assert {c.split()[0] for c in COMMANDS} == {"convert", "generate"}
    assert any("--dry-run" in c for c in COMMANDS)
