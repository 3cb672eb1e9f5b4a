"""`omnitide bench` on the backends that are here, at sizes that take no time."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnitide.backends import describe_backends
from omnitide.bench import peers
from omnitide.bench.ceilings import Ceilings
from omnitide.cli import bench as bench_module
from omnitide.cli.bench import read_settings
from omnitide.cli.parser import parse

CPU = [i.name for i in describe_backends() if i.available and not i.accelerated]

MARKS = ("--high-watermark", 300, "--low-watermark", 200)
SMALL: dict[str, tuple[Any, ...]] = {
    "attention": ("--history", 100, "--queries", 1, 8, "--live", "scattered", "--live", "dense"),
    "migrate": ("--rows", 20),
    "decode": ("--history", 100, "--layers", 1),
    "update": ("--history", 200, "--tokens", 16, "--split", *MARKS),
    "session": ("--stream", "audio", "--minutes", 1, *MARKS),
}
"""Benchmarks with options that make them short."""

FIELDS = {
    "attention": {"live", "policy", "layout", "queries", "history", "tiles", "us", "floor_us"},
    "migrate": {"rows", "layers", "us", "us_p10", "us_p90", "floor_us", "share_of_copy"},
    "decode": {"policy", "layout", "history", "layers", "ms", "ms_p10", "ms_p90", "floor_ms"},
    "update": {"tokens", "history", "live", "ms", "floor_ms", "evictions", "attention_ms"},
    "session": {"first_ms", "last_ms", "last_to_first", "first_memory", "last_memory"},
}


@pytest.fixture(autouse=True)
def _known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "measure", lambda backend: Ceilings(1e10, 1e11))


def arguments(name: str, *more: Any) -> tuple[Any, ...]:
    repeat = 1 if name == "session" else 2
    return ("bench", name, "--shape", "tiny", "--repeat", repeat, *SMALL[name], *more)


@pytest.mark.parametrize("backend", CPU)
@pytest.mark.parametrize("name", SMALL)
def test_json_has_the_machine_the_floor_and_the_rows(
    name: str, backend: str, call: Callable[..., Any]
) -> None:
    done = call(*arguments(name, "--backend", backend, "--json"))
    assert (done.code, done.err) == (0, "")
    found = done.json()
    assert found["bench"] == name
    assert found["machine"]["backend"] == backend
    assert {"python", "omnitide"} <= set(found["machine"]["versions"])
    assert found["ceilings"] == {"copy_bytes_per_s": 1e10, "flops_per_s": 1e11}
    assert found["shape"]["name"] == "tiny"
    assert found["settings"]["seed"] == 0
    rows = found["rows"]
    expected = {"attention": 4, "update": 2}.get(name, 1)
    assert len(rows) == expected
    for row in rows:
        assert FIELDS[name] <= set(row)
        assert row["who"] == "omnitide"


@pytest.mark.parametrize("name", SMALL)
def test_tables_have_a_line_for_each_row(name: str, call: Callable[..., Any]) -> None:
    done = call(*arguments(name, "--backend", "reference"))
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0].startswith("reference on CPU")
    assert "at best 10.0 GB/s copied (read and written), 0.1 TFLOP/s" in done.out
    layers = 1 if name == "decode" else 3
    assert f"tiny: {layers} layers, 2 heads, 1 KV heads of 128" in lines
    rows = [line for line in lines if line.startswith("omnitide ")]
    assert len(rows) == {"attention": 4, "update": 2}.get(name, 1)
    assert ("note: 1 of 3 layers were run, as asked" in lines) == (name == "decode")


@pytest.mark.parametrize("backend", CPU)
@pytest.mark.parametrize("name", ["decode", "update"])
def test_matrices_may_be_quantised(name: str, backend: str, call: Callable[..., Any]) -> None:
    given = arguments(name, "--backend", backend, "--q-bits", 4, "--q-group-size", 32)
    found = call(*given, "--json").json()
    assert found["shape"]["quantization"] == {"bits": 4, "group_size": 32}
    assert (
        call(*arguments(name, "--backend", backend, "--json")).json()["shape"]["quantization"]
        is None
    )
    layers = found["shape"]["layers"]
    line = f"tiny: {layers} layers, 2 heads, 1 KV heads of 128, matrices in 4 bits, groups of 32"
    assert line in call(*given).out.splitlines()


@pytest.mark.parametrize("backend", CPU)
@pytest.mark.parametrize("name", ["decode", "update"])
def test_keys_and_values_may_be_packed(name: str, backend: str, call: Callable[..., Any]) -> None:
    given = arguments(name, "--backend", backend, "--kv-bits", 8)
    assert call(*given, "--json").json()["settings"]["kv_bits"] == 8
    plain = call(*arguments(name, "--backend", backend, "--json")).json()
    assert plain["settings"]["kv_bits"] is None
    done = call(*given, "--q-bits", 8, "--q-group-size", 32)
    (line,) = (line for line in done.out.splitlines() if line.startswith("tiny: "))
    assert line.endswith("matrices in 8 bits, groups of 32, keys and values in 8 bits")


@pytest.mark.parametrize("name", SMALL)
def test_pictures_are_drawn(name: str, call: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "bench.png"
    assert call(*arguments(name, "--backend", "reference", "--plot", file)).code == 0
    assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "option"), [("update", "--tokens"), ("attention", "--queries")])
def test_a_bad_count_is_named_by_its_option(
    call: Callable[..., Any], name: str, option: str
) -> None:
    done = call("bench", name, option, 0)
    assert (done.code, done.out) == (2, "")
    assert option in done.err
    assert "must be from 1 to 1,048,576, got 0" in done.err


def test_a_run_that_fails_leaves_no_picture(call: Callable[..., Any], tmp_path: Path) -> None:
    given = arguments("decode", "--backend", "reference", "--policy", "h2o")
    assert call(*given, "--plot", tmp_path / "bench.png").code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["attention", "decode", "update"])
def test_torch_is_measured_beside(name: str, call: Callable[..., Any]) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    given = arguments(name, "--backend", "reference", "--peer", "torch", "--json")
    found = call(*given).json()
    ours = [row for row in found["rows"] if row["who"] == "omnitide"]
    beside = [row for row in found["rows"] if row["who"] == "torch"]
    assert len(beside) == {"attention": 2, "decode": 1, "update": 1}[name]
    assert "torch" in found["machine"]["versions"]
    # The same floor as our dense rows, full context first: equal work.
    same = [row for row in ours if name != "attention" or row["live"] == "dense"]
    key = "floor_us" if name == "attention" else "floor_ms"
    assert beside[0][key] == pytest.approx(same[0][key], rel=1e-6)


@pytest.mark.parametrize("packing", [(), ("--q-bits", 8, "--q-group-size", 32)], ids=["plain", "8"])
@pytest.mark.parametrize("name", ["decode", "update"])
def test_mlx_lm_is_measured_beside(
    name: str, packing: tuple[Any, ...], call: Callable[..., Any]
) -> None:
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")
    given = arguments(name, "--backend", "reference", "--policy", "full", "--peer", "mlx-lm")
    done = call(*given, *packing, "--json")
    assert (done.code, done.err) == (0, "")
    found = done.json()
    ours, theirs = found["rows"]
    assert (ours["who"], theirs["who"], theirs["policy"]) == ("omnitide", "mlx-lm", "full")
    assert {"mlx", "mlx-lm"} <= set(found["machine"]["versions"])
    # The same work, so the same floor: of the packed matrices where they are packed.
    assert theirs["floor_ms"] == pytest.approx(ours["floor_ms"], rel=1e-6)


def test_attention_of_mlx_lm_is_not_measured_alone(call: Callable[..., Any]) -> None:
    done = call(*arguments("attention", "--backend", "reference", "--peer", "mlx-lm"))
    assert done.code == 0
    assert "note: peer mlx-lm is left out: its attention is not measured on its own" in done.out


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("attention", "torch"),
        ("attention", "flashinfer"),
        ("decode", "torch"),
        ("decode", "flashinfer"),
        ("decode", "mlx-lm"),
    ],
)
def test_a_missing_peer_is_said_and_no_error(
    name: str, peer: str, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [m for m in sys.modules if m.startswith("omnitide.bench.peers.")]:
        monkeypatch.delitem(sys.modules, module)
        monkeypatch.delattr(peers, module.rpartition(".")[2])
    for module in (peer.replace("-", "_"), "mlx_lm.generate"):
        monkeypatch.setitem(sys.modules, module, None)
    done = call(*arguments(name, "--backend", "reference", "--peer", peer))
    assert done.code == 0
    assert f"note: peer {peer} is left out: it " in done.out
    assert "omnitide " in done.out


def test_heads_may_be_given(call: Callable[..., Any]) -> None:
    more = ("--heads", 6, "--kv-heads", 3, "--head-dim", 64, "--json", "--backend", "reference")
    found = call(*arguments("attention", *more)).json()
    shape = found["shape"]
    assert (shape["heads"], shape["kv_heads"], shape["head_dim"]) == (6, 3, 64)
    row = next(r for r in found["rows"] if r["live"] == "dense" and r["queries"] == 1)
    assert row["bytes"] == 4 * (2 * 101 * 3 * 64 + 2 * 6 * 64)


REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "no-such-benchmark": (("bench", "x"), "invalid choice"),
    "no-such-shape": (("bench", "decode", "--shape", "x"), "--shape"),
    "no-such-live": (("bench", "attention", "--live", "x"), "--live"),
    "no-such-peer": (
        ("bench", "decode", "--peer", "vllm"),
        "[bench] --peer must be one of torch, flashinfer, mlx-lm; got 'vllm'",
    ),
    "empty-peer": (
        ("bench", "decode", "--peer", "torch,"),
        "[bench] --peer must be names by commas, got 'torch,'",
    ),
    "no-repeat": (
        ("bench", "decode", "--repeat", 0),
        "[bench] --repeat must be at least 1, got 0",
    ),
    "no-history": (
        ("bench", "decode", "--history", 0),
        "[bench] --history must be from 1 to 1,048,576, got 0",
    ),
    "no-rows": (
        ("bench", "migrate", "--rows", -3),
        "[bench] --rows must be from 1 to 1,048,576, got -3",
    ),
    "no-minutes": (
        ("bench", "session", "--minutes", 0),
        "[bench] --minutes must be at least 1, got 0",
    ),
    "seed": (("bench", "migrate", "--seed", -1), "[bench] --seed must be at least 0, got -1"),
    "too-many-layers": (
        ("bench", "decode", "--shape", "tiny", "--layers", 4),
        "[bench] tiny has 3 layers, got --layers 4",
    ),
    "no-layers": (("bench", "decode", "--layers", 0), "[bench] --layers must be at least 1, got 0"),
    "mass": (
        ("bench", "decode", "--policy", "h2o"),
        "[bench] policy h2o decides by the attention of a model",
    ),
    "watermarks": (
        ("bench", "update", "--high-watermark", 100, "--low-watermark", 200),
        "[retention] low watermark 200 is above the high watermark 100",
    ),
    "prefix": (
        ("bench", "decode", "--shape", "tiny", "--history", 10),
        "must be longer than the system prefix",
    ),
    "heads": (
        ("bench", "attention", "--heads", 5, "--kv-heads", 2),
        "[shape] --heads must be a multiple of --kv-heads, both at least 1; got 5 and 2",
    ),
    "q-bits": (
        ("bench", "decode", "--q-bits", 3),
        "[bench] --q-bits must be one of 4, 8, got 3",
    ),
    "q-group-alone": (
        ("bench", "update", "--q-group-size", 32),
        "[bench] --q-group-size is for --q-bits, which was not given",
    ),
    "q-bits-and-peer": (
        ("bench", "decode", "--shape", "minicpm-o", "--q-bits", 4, "--peer", "torch"),
        "[bench] --peer torch has no quantised matrices like ours, only mlx-lm has; leave it out",
    ),
    "kv-bits": (
        ("bench", "decode", "--kv-bits", 4),
        "[bench] --kv-bits must be 8, got 4; leave it out",
    ),
    "kv-bits-and-peer": (
        ("bench", "update", "--kv-bits", 8, "--peer", "torch"),
        "[bench] --peer torch: no peer packs keys and values like ours; leave out",
    ),
    "kv-bits-of-a-session": (("bench", "session", "--kv-bits", 8), "unknown arguments"),
    "q-bits-of-a-session": (("bench", "session", "--q-bits", 4), "unknown arguments"),
    "head-size": (
        ("bench", "attention", "--head-dim", 7),
        "[rotary] head_dim must be even and positive, got 7",
    ),
    "dtype": (("bench", "decode", "--dtype", "int8"), "got dtype 'int8'"),
    "picture": (("bench", "decode", "--plot", "a.gif"), "[plot] the name must end in"),
    "comparison-layout": (("bench", "decode", "--layout", "contiguous"), "--layout"),
    "unknown-option": (("bench", "migrate", "--history", 3), "unknown arguments"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str, call: Callable[..., Any]) -> None:
    given, message = REFUSED[case]
    if "--dtype" not in given and given[1] != "x":
        given += ("--backend", "reference")
    done = call(*given)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("omnitide: error: ")
    assert message in done.err


def test_nothing_is_measured_before_the_options_are_checked(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(backend: object) -> Ceilings:
        raise AssertionError("measured too early")

    monkeypatch.setattr(bench_module, "measure", measure)
    assert call("bench", "decode", "--repeat", 0, "--backend", "reference").code == 2


@pytest.mark.parametrize("name", ["", *SMALL])
def test_help_is_printed(name: str, call: Callable[..., Any]) -> None:
    done = call("bench", *([name, "--help"] if name else []))
    assert done.code == 0
    assert f"omnitide bench {name}".rstrip() in done.out


PAGE = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text("utf-8")
SHOWN = re.findall(r"^(?:\| .*?`)?omnitide (bench [a-z]+ -[^`\n]*)", PAGE, re.M)


@pytest.mark.parametrize("command", SHOWN)
def test_the_commands_of_the_page_are_understood(command: str) -> None:
    options = parse(shlex.split(command))
    read_settings(options, accelerated=True)
    assert options.bench == command.split()[1]


def test_the_page_shows_every_benchmark() -> None:
    assert {command.split()[1] for command in SHOWN} == set(SMALL)
    assert len(SHOWN) == 13


def test_equal_seeds_give_equal_cells(call: Callable[..., Any]) -> None:
    def tiles(seed: int) -> list[int]:
        given = ("bench", "attention", "--shape", "tiny", "--history", 500, "--repeat", 1)
        more = ("--live", "scattered", "--seed", seed, "--layout", "native", "--stream", "mix")
        done = call(*given, *more, "--backend", "reference", "--json")
        return [row["tiles"] for row in json.loads(done.out)["rows"]]

    assert tiles(1) == tiles(1)
