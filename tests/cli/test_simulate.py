"""`omnitide simulate`, and traces from `omnitide generate`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from omnitide.cli import main
from omnitide.errors import TraceError
from omnitide.layouts import LAYOUTS
from omnitide.media.clip import ClipPicture, ClipSound, write_film
from omnitide.policies import POLICIES
from omnitide.simulation.simulator import needs_model
from omnitide.simulation.trace import Trace, TraceWriter
from omnitide.units import Unit

KEYS = (
    "shape",
    "policy",
    "layout",
    "live_cells",
    "active_pages",
    "active_subblocks",
    "active_subblock_ratio",
    "physical_span",
    "peak_span",
    "rows_moved",
    "rows_moved_share_of_eager",
    "evictions",
    "plan_ms_p50",
)

SHORT = ("simulate", "--units", 25)


@pytest.fixture
def rows(call: Callable[..., Any]) -> Callable[..., list[dict[str, Any]]]:
    """`rows(*arguments)`: the list that a short simulation prints."""

    def run(*arguments: object) -> list[dict[str, Any]]:
        done = call(*SHORT, *arguments, "--json")
        assert (done.code, done.err) == (0, "")
        found: list[dict[str, Any]] = json.loads(done.out)
        return found

    return run


def test_json_is_a_list_of_rows(rows: Callable[..., Any]) -> None:
    (row,) = rows("--shape", "audio", "--high-watermark", 500)
    assert set(KEYS) <= set(row)
    assert (row["shape"], row["policy"], row["layout"]) == ("audio", "omnipick", "predictive")
    assert row["evictions"] > 0


def test_without_a_shape_a_common_one_is_taken(rows: Callable[..., Any]) -> None:
    assert rows()[0]["shape"] == "qwen-448"


def test_compare_shows_every_layout(rows: Callable[..., Any]) -> None:
    found = rows("--compare")
    assert [row["layout"] for row in found] == list(LAYOUTS)
    assert {row["policy"] for row in found} == {"omnipick"}
    assert len({row["live_cells"] for row in found}) == 1


def test_compare_of_one_layout_shows_every_policy(rows: Callable[..., Any]) -> None:
    found = rows("--compare", "--layout", "native")
    assert [row["policy"] for row in found] == [n for n in POLICIES if not needs_model(n)]


def test_policies_and_layouts_that_are_named_are_combined(rows: Callable[..., Any]) -> None:
    named = ("--policy", "fifo", "--policy", "omnipick", "--layout", "native", "--layout", "paper")
    found = rows("--compare", *named, "--layout", "native")
    assert [(row["policy"], row["layout"]) for row in found] == [
        ("fifo", "native"),
        ("fifo", "paper"),
        ("omnipick", "native"),
        ("omnipick", "paper"),
    ]


def test_options_reach_the_simulation(rows: Callable[..., Any]) -> None:
    (plain,) = rows()
    (tuned,) = rows("--high-watermark", 4000, "--low-watermark", 3000)
    assert (tuned["high_watermark"], tuned["low_watermark"]) == (4000, 3000)
    assert tuned["peak_live_cells"] > plain["peak_live_cells"]
    (bounded,) = rows("--max-kv-size", 3008)
    assert bounded["capacity_pages"] == 47
    assert bounded["high_watermark"] < 2500
    (dear,) = rows("--tile-cost-us", 23.6)
    assert dear["attention_ms"] == pytest.approx(2 * plain["attention_ms"], abs=2e-3)
    assert rows("--seed", 1)[0]["tokens_seen"] != plain["tokens_seen"]


def test_the_table_has_the_figures(call: Callable[..., Any], rows: Callable[..., Any]) -> None:
    (row,) = rows("--layout", "native")
    done = call(*SHORT, "--layout", "native")
    assert done.code == 0
    assert done.out.startswith("qwen-448: 26 units, ")
    lines = {line[:25].strip(): line[25:].strip() for line in done.out.splitlines()}
    assert lines["cells kept"] == f"{row['live_cells']:,}"
    assert lines["physical span"] == f"{row['physical_span']:,}"
    assert lines["slots walked a cell"] == f"{row['active_subblock_ratio']:.3f}"


def test_many_simulations_fit_a_narrow_table(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    done = call(*SHORT, "--compare")
    tables = done.out.count("cells kept")
    assert tables == -(-len(LAYOUTS) // 2)
    assert all(len(line) <= 60 for line in done.out.splitlines()[1:-2])


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("b.SVG", b"<?xml")])
def test_plots_are_drawn(call: Callable[..., Any], tmp_path: Path, name: str, start: bytes) -> None:
    path = tmp_path / name
    done = call(*SHORT, "--layout", "native", "--layout", "paper", "--plot", path)
    assert done.code == 0
    assert path.read_bytes().startswith(start)


def test_a_stream_without_evictions_is_drawn(call: Callable[..., Any], tmp_path: Path) -> None:
    done = call("simulate", "--units", 2, "--plot", tmp_path / "a.svg")
    assert done.code == 0
    assert (tmp_path / "a.svg").stat().st_size > 1000


def test_equal_simulations_are_drawn_equally(call: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        assert call(*SHORT, "--plot", tmp_path / name).code == 0
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_without_matplotlib_the_message_says_what_to_install(
    call: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "omnitide.simulation.picture", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = call(*SHORT, "--plot", tmp_path / "a.png")
    assert (done.code, done.out) == (2, "")
    assert "pip install 'omnitide[plot]'" in done.err


BAD = [
    (("--shape", "film"), "--shape"),
    (("--layout", "none"), "--layout"),
    (("--policy", "none"), "--policy"),
    (("--units", 0), "--units must be at least 1"),
    (("--units", -3), "--units must be at least 1"),
    (("--seed", -1), "--seed must be at least 0"),
    (("--image-sink", -1), "image_sink must be at least 0"),
    (("--text-budget", -9), "text_budget must be at least 0"),
    (("--low-watermark", 3000), "low watermark 3,000 is above"),
    (("--high-watermark", 50, "--low-watermark", 20), "system prefix"),
    (("--high-watermark", 2_000_000_000), "at most 16,777,216 are simulated"),
    (("--max-kv-size", 0), "--max-kv-size must be at least 1"),
    (("--max-kv-size", 500), "too small"),
    (("--policy", "full", "--max-kv-size", 3000), "capacity leaves"),
    (("--tile-cost-us", -1), "--tile-cost-us must be at least 0"),
    (("--row-cost-us", "nan"), "--row-cost-us must be at least 0"),
    (("--accept", "best"), "--accept"),
    (("--accept", "tiles", "--layout", "native"), "--accept is for a layout that moves rows"),
    (("--span-pages", 2), "--span-pages is for --accept span and --layout suffix"),
    (("--span-pages", 0, "--accept", "span"), "--span-pages must be at least 1"),
    (("--units", 100_001), "--units must be at most 100,000"),
    (("--plot", "picture.pdf"), "must end in .png or .svg"),
    (("--plot", "nowhere/a.png"), "can't write"),
    (("--trace", "absent.jsonl"), "must be an existing file"),
    (("--trace", "absent.jsonl", "--shape", "audio"), "not both"),
    (("--trace", "absent.jsonl", "--seed", 0), "give --seed or --trace, not both"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_ends_with_a_message(
    call: Callable[..., Any], arguments: tuple[object, ...], message: str
) -> None:
    done = call(*SHORT, *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--high-watermark", 50, "--low-watermark", 20),
        ("--max-kv-size", 500),
        ("--policy", "full", "--max-kv-size", 3000),
    ],
)
def test_advice_names_options_that_simulate_has(
    call: Callable[..., Any], arguments: tuple[object, ...]
) -> None:
    named = set(re.findall(r"--[a-z-]+", call(*SHORT, *arguments).err))
    assert named <= {"--low-watermark", "--high-watermark", "--max-kv-size", "--units"}


def test_a_row_that_does_not_fit_leaves_the_others_be(
    call: Callable[..., Any], tmp_path: Path
) -> None:
    chosen = ("--policy", "full", "--policy", "fifo", "--layout", "native", "--max-kv-size", 3008)
    path = tmp_path / "a.png"
    done = call(*SHORT, *chosen, "--json", "--plot", path)
    assert done.code == 2
    assert [row["policy"] for row in json.loads(done.out)] == ["fifo"]
    assert "error: full, native: [simulate] a media unit has 566 tokens" in done.err
    assert "raise --max-kv-size or lower --units" in done.err
    assert path.read_bytes().startswith(b"\x89PNG")
    table = call(*SHORT, *chosen)
    assert table.code == 2
    assert "fifo" in table.out
    assert "full" not in table.out
    nothing = call(*SHORT, "--policy", "fifo", "--policy", "omnipick", "--max-kv-size", 500)
    assert (nothing.code, nothing.out) == (2, "")
    assert nothing.err.count("too small") == 2


def test_what_a_comparison_of_policies_leaves_out_is_said(call: Callable[..., Any]) -> None:
    shown = call(*SHORT, "--compare", "--layout", "native").out
    assert "h2o is left out: it decides by the attention of a model" in shown
    assert "left out" not in call(*SHORT, "--compare").out


def test_a_policy_that_needs_a_model_is_one_row_less(call: Callable[..., Any]) -> None:
    done = call(*SHORT, "--policy", "h2o", "--policy", "fifo", "--json")
    assert done.code == 2
    assert [row["policy"] for row in json.loads(done.out)] == ["fifo"]
    assert "error: h2o, predictive: [simulate] policy h2o decides by the attention" in done.err


def test_what_is_never_cut_has_no_watermarks(call: Callable[..., Any]) -> None:
    assert "watermarks" not in call(*SHORT, "--policy", "full").out
    both = call(*SHORT, "--policy", "full", "--policy", "fifo")
    assert "watermarks 2,500 and 1,800" in both.out.splitlines()[0]


def test_all_layouts_are_drawn_in_a_grid(call: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    assert call(*SHORT, "--compare", "--plot", path).code == 0
    with Image.open(path) as image:
        width, height = image.size
    assert width < 3000
    assert 0.8 < width / height < 1.25


@pytest.mark.parametrize("held", [b"what an earlier run drew", None])
def test_a_run_that_fails_leaves_the_picture_that_was_there(
    call: Callable[..., Any], tmp_path: Path, held: bytes | None
) -> None:
    path = tmp_path / "a.png"
    if held is not None:
        path.write_bytes(held)
    assert call(*SHORT, "--plot", path, "--max-kv-size", 500).code == 2
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([] if held is None else [held])


def test_a_picture_that_cannot_be_written_does_not_take_the_figures_with_it(
    call: Callable[..., Any], tmp_path: Path
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full, which only Linux has")
    path = tmp_path / "a.png"
    path.symlink_to("/dev/full")
    done = call(*SHORT, "--plot", path, "--json")
    assert done.code == 2
    assert [row["shape"] for row in json.loads(done.out)] == ["qwen-448"]
    assert "can't write" in done.err


def test_an_interrupted_run_leaves_no_picture(
    call: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("omnitide.cli.simulate.simulate", interrupt)
    assert call(*SHORT, "--plot", tmp_path / "a.png").code == 130
    assert list(tmp_path.iterdir()) == []


def test_a_hostile_trace_ends_with_a_message(call: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"[" * 100_000 + b"\n")
    done = call("simulate", "--trace", path)
    assert (done.code, done.out) == (2, "")
    assert "line 1: is nested too deeply" in done.err or "line 1: is no JSON" in done.err


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Callable[..., Path]) -> Any:
    """A trace of a real run that evicts, asks and replies, and what the run reported."""
    folder = tmp_path_factory.mktemp("trace")
    film, trace, report = folder / "film.mp4", folder / "run.jsonl", folder / "run.json"
    write_film(film, 16, ClipPicture(), ClipSound())
    trace.write_text("what an earlier run left\n" * 9)
    arguments = ["generate", "--video", film, "--trace", trace, "--json", "--ask-at", 6]
    arguments += ["--ask-at", 12, "--max-tokens", 9, "--high-watermark", 420]
    arguments += ["--low-watermark", 300, "--text-budget", 20, "--backend", "reference"]
    arguments += ["--model", tiny_checkpoint()]
    with pytest.MonkeyPatch.context() as patch, report.open("w") as out:
        patch.setattr(sys, "stdout", out)
        assert main([str(a) for a in arguments]) == 0
    return trace, json.loads(report.read_text())


def test_a_recorded_run_is_simulated_as_it_went(call: Callable[..., Any], recorded: Any) -> None:
    trace, run = recorded
    done = call("simulate", "--trace", trace, "--json")
    assert done.code == 0
    (row,) = json.loads(done.out)
    assert run["evictions"] > 2
    for name in (
        "units",
        "tokens_seen",
        "evictions",
        "rows_moved",
        "active_pages",
        "active_subblocks",
        "physical_span",
        "policy",
        "high_watermark",
        "low_watermark",
    ):
        assert row[name] == run[name], name
    assert row["live_cells"] == run["tokens_kept"]
    assert row["shape"] == trace.name


def test_options_go_before_what_was_recorded(call: Callable[..., Any], recorded: Any) -> None:
    trace, run = recorded
    done = call(
        "simulate", "--trace", trace, "--policy", "fifo", "--policy", "omnipick", "--json",
        "--high-watermark", 600, "--units", 6,
    )  # fmt: skip
    fifo, omnipick = json.loads(done.out)
    assert fifo["units"] == omnipick["units"] == 7
    assert fifo["tokens_seen"] == omnipick["tokens_seen"] < run["tokens_seen"]
    assert fifo["high_watermark"] == 600
    assert call("simulate", "--trace", trace, "--units", 0).code == 2


def test_a_trace_holds_no_words(recorded: Any) -> None:
    trace, _ = recorded
    assert b'"token"' not in trace.read_bytes()
    assert all((unit.cells["token"] == 0).all() for unit in Trace(trace).units())


@pytest.mark.parametrize("path", ["nowhere/run.jsonl", ".", ""])
def test_a_trace_that_cannot_be_written_is_refused_first(
    call: Callable[..., Any], tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("generate", "--trace", path, "--model", "absent")
    assert (done.code, done.out) == (2, "")
    assert "trace" in done.err


def test_a_run_that_fails_before_its_first_unit_leaves_the_trace_that_was_there(
    call: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    assert call("generate", "--trace", path, "--model", tmp_path / "absent").code == 2
    assert list(tmp_path.iterdir()) == []
    path.write_text("what an earlier run left")
    assert call("generate", "--trace", path, "--model", tmp_path / "absent").code == 2
    assert [p.read_text() for p in tmp_path.iterdir()] == ["what an earlier run left"]


def test_a_full_disk_ends_with_a_message(call: Callable[..., Any]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full, which only Linux has")
    done = call("generate", "--trace", "/dev/full", "--json", "--max-tokens", 2)
    assert (done.code, done.out) == (2, "")
    assert "can't write /dev/full" in done.err


def test_a_disk_that_fills_up_ends_the_stream_with_its_report(
    call: Callable[..., Any], recorded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, _ = recorded
    written = TraceWriter.add
    units: list[Unit] = []

    def fill(writer: TraceWriter, unit: Unit) -> None:
        units.append(unit)
        if len(units) > 3:
            raise TraceError("[trace] can't write run.jsonl: No space left on device")
        written(writer, unit)

    monkeypatch.setattr(TraceWriter, "add", fill)
    path = tmp_path / "run.jsonl"
    film = trace.with_name("film.mp4")
    done = call("generate", "--video", film, "--trace", path, "--json", "--backend", "reference")
    assert done.code == 2
    assert "No space left" in json.loads(done.out)["broken"]
    assert [len(u) for u in Trace(path).units()] == [len(u) for u in units[:3]]
