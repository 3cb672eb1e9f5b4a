"""Converted checkpoints against MLX, tensor by tensor; and conversions that end too early."""

from __future__ import annotations

import fcntl
import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from omnitide.backends import load_backend
from omnitide.convert import conversion, plan
from omnitide.convert.planner import plan_conversion
from omnitide.convert.recipe import Format, Recipe
from omnitide.convert.shard import ShardWriter
from omnitide.convert.workspace import Workspace
from omnitide.errors import CheckpointError, ConfigError
from omnitide.models import load_model
from omnitide.models.qwen2_5_omni.tiny import write_random_checkpoint
from omnitide.whole_file import WholeFile

Run = Callable[..., Any]
RULES = ("*.layers.0.mlp.down_proj=8:32", "lm_head=8", "model.embed_tokens=16")
OTHER = ("thinker.audio_tower.audio_bos_eos_token.weight",)


def _matrices(weights: dict[str, Any]) -> set[str]:
    """Matrices of the decoder."""
    return {
        name
        for name, w in weights.items()
        if name.startswith(("thinker.model.", "thinker.lm_head")) and w.ndim == 2
    }


@pytest.mark.parametrize("num_files", [1, 3])
def test_every_tensor_is_what_mlx_makes_of_it(
    num_files: int, tmp_path: Path, run: Run, stored: Run, by_mlx: Run
) -> None:
    write_random_checkpoint(tmp_path / "source", num_files=num_files)
    run(tmp_path / "source", tmp_path / "out", RULES)
    weights, got = stored(tmp_path / "source"), stored(tmp_path / "out")
    kinds = {name: (64, 4) for name in _matrices(weights) if weights[name].shape[1] % 64 == 0}
    kinds["thinker.model.layers.0.mlp.down_proj.weight"] = (32, 8)
    kinds["thinker.lm_head.weight"] = (64, 8)
    del kinds["thinker.model.embed_tokens.weight"]
    # The rule for down_proj matches the first layer of the decoder, and of the picture encoder not.
    want: dict[str, Any] = {}
    for name, values in weights.items():
        if name in kinds:
            base = name.removesuffix("weight")
            parts = by_mlx(values, *kinds[name])
            want |= {base + p: a for p, a in zip(("weight", "scales", "biases"), parts)}  # noqa: B905
        else:
            want[name] = values
    assert got.keys() == want.keys()
    for name, values in want.items():
        assert got[name].dtype == values.dtype, name
        np.testing.assert_array_equal(got[name], values, err_msg=name)


def test_config_json_says_what_mlx_would_write(source: Path, tmp_path: Path, run: Run) -> None:
    run(source, tmp_path / "out", RULES)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    want = {
        "group_size": 64,
        "bits": 4,
        "mode": "affine",
        "thinker.model.layers.0.mlp.down_proj": {"group_size": 32, "bits": 8},
        "thinker.lm_head": {"group_size": 64, "bits": 8},
    }
    assert config.pop("quantization") == want
    assert config.pop("quantization_config") == want
    assert config == json.loads((source / "config.json").read_text())


def test_the_other_files_come_along(source: Path, tmp_path: Path, run: Run) -> None:
    run(source, tmp_path / "out")
    own = {"conversion.json", "config.json", "model.safetensors"}
    copied = {file.name for file in (tmp_path / "out").iterdir()} - own
    assert copied == {"chat_template.json", "generation_config.json", "tokenizer.json"}
    assert all((tmp_path / "out" / n).read_bytes() == (source / n).read_bytes() for n in copied)


@pytest.mark.usefixtures("many_files")
def test_the_disk_has_every_file_before_the_result_appears(
    source: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    sync = WholeFile.sync

    def record(file: WholeFile) -> None:
        assert not (tmp_path / "out").exists()
        synced.add(file.path.name)
        sync(file)

    monkeypatch.setattr(WholeFile, "sync", record)
    run(source, tmp_path / "out")
    assert synced == {file.name for file in (tmp_path / "out").iterdir()}


def test_the_errors_are_those_of_the_values(
    source: Path, tmp_path: Path, run: Run, stored: Run
) -> None:
    mx = pytest.importorskip("mlx.core", reason="MLX, the oracle, is not installed")
    errors = {error.module: error for error in run(source, tmp_path / "out", RULES)}
    weights, got = stored(source), stored(tmp_path / "out")
    assert len(errors) == sum(name.endswith(".scales") for name in got)
    for module, error in errors.items():
        parts = [got[f"thinker.{module}.{part}"] for part in ("weight", "scales", "biases")]
        wide = [mx.array(p.astype(np.float32) if i else p) for i, p in enumerate(parts)]
        dense = np.array(mx.dequantize(*wide, error.group_size, error.bits)).astype(np.float64)
        values = weights[f"thinker.{module}.weight"].astype(np.float64)
        relative = np.linalg.norm(dense - values) / np.linalg.norm(values)
        assert error.relative_error == pytest.approx(relative, rel=1e-5)
        assert error.largest_error == pytest.approx(np.abs(dense - values).max(), rel=1e-6)


@pytest.mark.parametrize("stored_as", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16", "float32"])
def test_dtypes(
    stored_as: Any, dtype: str | None, source: Path, tmp_path: Path, run: Run, stored: Run
) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "source"))
    weights = {name: w.astype(stored_as) for name, w in stored(source).items()}
    save_file(weights, folder / "model.safetensors")
    run(folder, tmp_path / "out", dtype=dtype)
    half = np.float16 if stored_as == np.float16 else ml_dtypes.bfloat16
    want = np.dtype(half if dtype is None else getattr(ml_dtypes, dtype, None) or dtype)
    got = stored(tmp_path / "out")
    floats = {n: w for n, w in got.items() if w.dtype != np.uint32 and n not in OTHER}
    assert {w.dtype for w in floats.values()} == {want}
    norm = "thinker.model.norm.weight"
    np.testing.assert_array_equal(got[norm], weights[norm].astype(want))


def test_what_is_not_read_is_copied_or_dropped(
    source: Path, tmp_path: Path, run: Run, stored: Run
) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "source"))
    strays = {
        "talker.codec_head.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "token2wav.steps": np.array(7, np.int64),
        "talker.odd": np.ones(3, np.uint8),
    }
    save_file(stored(source) | strays, folder / "model.safetensors")
    run(folder, tmp_path / "with")
    run(folder, tmp_path / "without", drop_unused=True)
    kept, dropped = stored(tmp_path / "with"), stored(tmp_path / "without")
    assert kept.keys() - dropped.keys() == {*strays, *OTHER}
    for name, values in strays.items():
        assert kept[name].dtype == values.dtype
        np.testing.assert_array_equal(kept[name], values)


def test_files_are_cut_by_size_and_indexed(
    source: Path, tmp_path: Path, run: Run, stored: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(source, tmp_path / "one")
    monkeypatch.setattr(plan.make_shards, "__defaults__", (200_000,))
    run(source, tmp_path / "many")
    files = sorted(file.name for file in (tmp_path / "many").glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert len(files) > 3
    one, many = stored(tmp_path / "one"), stored(tmp_path / "many")
    assert one.keys() == many.keys()
    assert all(np.array_equal(one[name], many[name]) for name in one)
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / "many" / file, "np") as opened:
            assert name in opened.keys()  # noqa: SIM118
    assert index["weight_map"].keys() == many.keys()
    assert index["metadata"]["total_size"] == sum(w.nbytes for w in many.values())


def test_values_are_aligned_in_the_file(
    source: Path, tmp_path: Path, run: Run, stored: Run
) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "source"))
    odd = {
        "talker.a": np.ones(3, np.uint8),
        "talker.b": np.ones(3, np.float16),
        "talker.c": np.ones(3, np.float32),
        "talker.d": np.ones(3, np.int64),
    }
    save_file(odd | stored(source), folder / "model.safetensors")
    run(folder, tmp_path / "out")
    raw = (tmp_path / "out" / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    assert header.pop("__metadata__") == {"format": "mlx"}
    sizes = {"I64": 8, "F32": 4, "U32": 4, "BF16": 2, "F16": 2, "U8": 1}
    for entry in header.values():
        assert (8 + size + entry["data_offsets"][0]) % sizes[entry["dtype"]] == 0


@pytest.mark.parametrize("limit", [1 << 14, 1 << 16, 1 << 20])
def test_the_memory_limit_changes_nothing_of_the_result(
    limit: int, source: Path, tmp_path: Path, run: Run
) -> None:
    run(source, tmp_path / "a")
    run(source, tmp_path / "b", memory_limit=limit)
    first, second = (tmp_path / n / "model.safetensors" for n in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_memory_stays_under_the_limit(tmp_path: Path, run: Run, stored: Run, source: Path) -> None:
    """With an embedding of many times the limit."""
    folder = Path(shutil.copytree(source, tmp_path / "source"))
    config = json.loads((folder / "config.json").read_text())
    config["thinker_config"]["text_config"]["vocab_size"] = 30_000
    (folder / "config.json").write_text(json.dumps(config))
    weights = stored(source)
    random = np.random.default_rng(0)
    for name in ("thinker.model.embed_tokens.weight", "thinker.lm_head.weight"):
        values = random.standard_normal((30_000, 256), np.float32)
        weights[name] = values.astype(ml_dtypes.bfloat16)
    save_file(weights, folder / "model.safetensors")
    del weights, values
    limit = 4 << 20
    tracemalloc.start()
    run(folder, tmp_path / "out", memory_limit=limit)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Beside the values: scales and biases of a matrix (1/32 of it in bfloat16), headers, the plan.
    assert peak < limit + 30_000 * 256 // 16 + (2 << 20)


# -- conversions that end too early ---------------------------------------------------------------
class Stopped(Exception):
    """Stands for a process that is killed: no code of ours handles it."""


@pytest.fixture
def many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan.make_shards, "__defaults__", (200_000,))


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`stop_after(n)`: the n-th block of weights from now on is not written."""
    honest = WholeFile.write

    def arrange(count: int) -> None:
        left = [count]

        def write(self: WholeFile, data: bytes) -> None:
            if self.path.suffix == ".safetensors":
                left[0] -= 1
                if left[0] < 0:
                    raise Stopped
            honest(self, data)

        monkeypatch.setattr(WholeFile, "write", write)

    return arrange


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("count", [0, 1, 7, 40, 100])
def test_an_interrupted_conversion_is_no_model_and_goes_on(
    count: int, source: Path, tmp_path: Path, run: Run, stop_after: Run, monkeypatch: Any
) -> None:
    run(source, tmp_path / "want")
    with monkeypatch.context():
        stop_after(count)
        with pytest.raises(Stopped):
            run(source, tmp_path / "out")
    monkeypatch.undo()
    monkeypatch.setattr(plan.make_shards, "__defaults__", (200_000,))
    unfinished = tmp_path / "out.unfinished"
    assert not (tmp_path / "out").exists()
    finished = {f.name: f.stat().st_mtime_ns for f in unfinished.glob("model-*.safetensors")}
    with pytest.raises(CheckpointError, match=r"must hold config\.json"):
        load_model(unfinished, load_backend("reference"))
    told: list[int] = []
    errors = run(source, tmp_path / "out", advance=told.append)
    assert not unfinished.exists()
    got = {f.name: f.read_bytes() for f in (tmp_path / "out").iterdir()}
    want = {f.name: f.read_bytes() for f in (tmp_path / "want").iterdir()}
    assert got == want
    assert errors == run(source, tmp_path / "again")
    assert all((tmp_path / "out" / n).stat().st_mtime_ns == t for n, t in finished.items())
    assert sum(told) == sum(w.stat().st_size for w in source.glob("*.safetensors")) - _header(
        source
    )


def _header(folder: Path) -> int:
    raw = (folder / "model.safetensors").read_bytes()[:8]
    return 8 + int.from_bytes(raw, "little")


@pytest.mark.usefixtures("many_files")
def test_a_folder_that_says_it_is_unfinished_is_refused(
    source: Path, tmp_path: Path, run: Run
) -> None:
    """Also where all files are there, as after a rename by hand."""
    run(source, tmp_path / "out")
    record = tmp_path / "out" / "conversion.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "finished": False}))
    with pytest.raises(CheckpointError, match="has not finished; run `omnitide convert` again"):
        load_model(tmp_path / "out", load_backend("reference"))


@pytest.mark.usefixtures("many_files")
def test_a_finished_file_that_was_cut_is_made_again(
    source: Path, tmp_path: Path, run: Run, stop_after: Run, monkeypatch: Any
) -> None:
    run(source, tmp_path / "want")
    stop_after(40)
    with pytest.raises(Stopped):
        run(source, tmp_path / "out")
    monkeypatch.undo()
    monkeypatch.setattr(plan.make_shards, "__defaults__", (200_000,))
    file = min((tmp_path / "out.unfinished").glob("model-*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1])
    run(source, tmp_path / "out")
    assert (tmp_path / "out" / file.name).read_bytes() == (
        tmp_path / "want" / file.name
    ).read_bytes()


def test_what_a_killed_run_left_is_swept(source: Path, tmp_path: Path, run: Run) -> None:
    left = tmp_path / "out.unfinished" / ".model.safetensors.17.part"
    left.parent.mkdir()
    left.write_bytes(b"half")
    run(source, tmp_path / "out")
    assert not list((tmp_path / "out").glob(".*"))


def test_a_folder_of_someone_else_in_the_way(source: Path, tmp_path: Path, run: Run) -> None:
    stranger = tmp_path / "out.unfinished" / "stranger.txt"
    stranger.parent.mkdir()
    stranger.write_text("mine")
    with pytest.raises(ConfigError, match="of another conversion"):
        run(source, tmp_path / "out")
    assert stranger.read_text() == "mine"


@pytest.mark.parametrize("record", ["[", "[]", '{"digest": 3}', "\xff"])
def test_a_record_that_is_not_ours(record: str, source: Path, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "out.unfinished" / "conversion.json"
    file.parent.mkdir()
    file.write_text(record, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"out\.unfinished is of another conversion"):
        run(source, tmp_path / "out")
    assert file.read_text(encoding="latin-1") == record


def test_one_run_at_a_time(source: Path, tmp_path: Path, run: Run) -> None:
    digest = plan_conversion(source, Recipe(Format(4, 64))).digest()
    with Workspace(tmp_path / "out", digest) as first:
        with first.open("model.safetensors") as file:
            file.write(b"half")
            with pytest.raises(ConfigError, match=r"another run writes to .*out\.unfinished"):
                run(source, tmp_path / "out")
            file.appear()  # the second run has not swept it
        assert {f.name for f in first.folder.iterdir()} == {"conversion.json", "model.safetensors"}
    run(source, tmp_path / "out")
    load_model(tmp_path / "out", load_backend("reference"))


def test_a_folder_that_another_run_finishes_meanwhile(
    source: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening the folder and locking it."""
    flock = fcntl.flock

    def late(folder: int, how: int) -> None:
        (tmp_path / "out.unfinished").rename(tmp_path / "out")
        flock(folder, how)

    monkeypatch.setattr("omnitide.convert.workspace.fcntl.flock", late)
    with pytest.raises(ConfigError, match="another run writes"):
        run(source, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_other_options_do_not_go_on(
    source: Path, tmp_path: Path, run: Run, stop_after: Run, monkeypatch: Any
) -> None:
    stop_after(3)
    with pytest.raises(Stopped):
        run(source, tmp_path / "out")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"out\.unfinished is of another conversion"):
        run(source, tmp_path / "out", bits=8)


def test_a_model_that_has_changed_does_not_go_on(
    source: Path, tmp_path: Path, run: Run, stop_after: Run, monkeypatch: Any, stored: Run
) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "source"))
    stop_after(3)
    with pytest.raises(Stopped):
        run(folder, tmp_path / "out")
    monkeypatch.undo()
    save_file({n: -w for n, w in stored(folder).items()}, folder / "model.safetensors")
    with pytest.raises(ConfigError, match="or the model has changed"):
        run(folder, tmp_path / "out")


@pytest.mark.parametrize("occupant", ["file", "folder", "link"])
def test_a_taken_place_is_refused(occupant: str, source: Path, tmp_path: Path, run: Run) -> None:
    target = tmp_path / "out"
    if occupant == "file":
        target.write_text("mine")
    elif occupant == "folder":
        target.mkdir()
        (target / "mine").touch()
    else:
        target.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="must be a new folder"):
        run(source, target)
    assert not (tmp_path / "out.unfinished").exists()


@pytest.mark.parametrize("name", [".", "/", "below/.."])
def test_a_place_without_a_name(
    name: str, source: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    with pytest.raises(ConfigError, match="must be a folder with a name, got"):
        run(source, Path(name))
    assert [f.name for f in tmp_path.rglob("*")] == ["below"]


def test_an_empty_folder_is_taken(source: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "out").mkdir()
    run(source, tmp_path / "out")
    load_model(tmp_path / "out", load_backend("reference"))


@pytest.mark.parametrize(("free", "told"), [(0, r"0\.0"), (1 << 20, r"1\.0")])
def test_a_disk_that_is_too_small_is_refused_before_weights_are_read(
    free: int, told: str, source: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr(conversion.shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(ShardWriter, "write", lambda *_: pytest.fail("weights were read"))
    # 1.52 MiB of weights, by hand: see the command's own report.
    with pytest.raises(
        CheckpointError, match=rf"needs 1\.5 MiB on the disk of .*, {told} MiB are free"
    ):
        run(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("values", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["thinker.lm_head.weight", "thinker.model.norm.weight"])
@pytest.mark.parametrize("stored_as", [np.float32, ml_dtypes.bfloat16])
def test_values_that_are_no_numbers(
    stored_as: Any,
    values: float,
    name: str,
    source: Path,
    tmp_path: Path,
    run: Run,
    stored: Run,
) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "source"))
    weights = stored(source)
    weights[name] = weights[name].astype(stored_as)
    weights[name].flat[-1] = values
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{name} in model.safetensors holds values that are"):
        run(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_values_that_are_not_read_may_be_anything(
    source: Path, tmp_path: Path, run: Run, stored: Run
) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "source"))
    weights = {**stored(source), "talker.x": np.full(3, np.nan, np.float32)}
    save_file(weights, folder / "model.safetensors")
    run(folder, tmp_path / "out")
    np.testing.assert_array_equal(stored(tmp_path / "out")["talker.x"], weights["talker.x"])


def test_values_too_large_for_the_dtype(
    source: Path, tmp_path: Path, run: Run, stored: Run
) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "source"))
    weights = stored(source)
    weights["thinker.model.norm.weight"][3] = 70_000
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="too large for F16; give another --dtype"):
        run(folder, tmp_path / "out", dtype="float16")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_values_too_far_apart_for_a_scale(
    dtype: str, source: Path, tmp_path: Path, run: Run, stored: Run
) -> None:
    """Each is finite, but their distance is beyond float32."""
    folder = Path(shutil.copytree(source, tmp_path / "source"))
    weights = stored(source)
    weights["thinker.lm_head.weight"][3, 5:7] = 3e38, -3e38
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"too far apart for .* --module 'lm_head=16'"):
        run(folder, tmp_path / "out", dtype=dtype)
    run(folder, tmp_path / "kept", ("lm_head=16",))


@pytest.mark.parametrize("factor", [1e30, 1e-30])
def test_errors_of_weights_whose_squares_float32_does_not_hold(
    factor: float, source: Path, tmp_path: Path, run: Run, stored: Run, by_mlx: Run
) -> None:
    folder = Path(shutil.copytree(source, tmp_path / "source"))
    weights = stored(source)
    name = "thinker.lm_head.weight"
    weights[name] = (weights[name].astype(np.float32) * np.float32(factor)).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    errors = {e.module: e for e in run(folder, tmp_path / "out", dtype="float32")}
    mx = pytest.importorskip("mlx.core", reason="MLX, the oracle, is not installed")
    parts = [mx.array(part) for part in by_mlx(weights[name], 64, 4)]
    wide = weights[name].astype(np.float64)
    difference = np.array(mx.dequantize(*parts, 64, 4)).astype(np.float64) - wide
    want = np.linalg.norm(difference) / np.linalg.norm(wide)
    assert errors["lm_head"].relative_error == pytest.approx(want, rel=1e-6)


def test_a_quantised_model_is_refused(source: Path, tmp_path: Path, run: Run) -> None:
    run(source, tmp_path / "out")
    with pytest.raises(CheckpointError, match=r"is quantised already \(20 matrices\)"):
        run(tmp_path / "out", tmp_path / "twice")


def test_an_unknown_dtype(source: Path, tmp_path: Path, run: Run) -> None:
    with pytest.raises(ConfigError, match="one of float16, bfloat16, float32, got 'int8'"):
        run(source, tmp_path / "out", dtype="int8")
