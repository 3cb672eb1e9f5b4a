"""The options of migrations: a run obeys and reports them, and its trace repeats them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnitide.media.clip import ClipPicture, ClipSound, write_film


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen seconds of film with sound."""
    path = tmp_path_factory.mktemp("film") / "film.mp4"
    write_film(path, 16, ClipPicture(), ClipSound())
    return path


@pytest.fixture
def record(call: Callable[..., Any], film: Path, tmp_path: Path) -> Callable[..., Any]:
    """`record(*arguments)`: a run that evicts; its report and its trace."""

    def run(*arguments: object) -> tuple[dict[str, Any], Path]:
        trace = tmp_path / "run.jsonl"
        done = call(
            "generate", "--video", film, "--trace", trace, "--json", "--max-tokens", 3,
            "--high-watermark", 420, "--low-watermark", 300, "--backend", "reference", *arguments,
        )  # fmt: skip
        assert done.code == 0
        report: dict[str, Any] = json.loads(done.out)
        assert report["evictions"] > 2
        return report, trace

    return run


CHEAP = ("--tile-cost-us", 1000, "--row-cost-us", 0.001)
DEAR = ("--tile-cost-us", 0.001, "--row-cost-us", 1000)


@pytest.mark.parametrize(
    ("arguments", "rule", "moves"),
    [
        (("--layout", "paper", "--accept", "tiles"), "tiles", True),
        (("--layout", "paper", "--accept", "span", "--span-pages", 90), "span", False),
        (("--layout", "paper", "--accept", "layout"), "layout", True),
        (("--layout", "paper", *CHEAP), "cost", True),
        (("--layout", "paper", "--accept", "cost", *DEAR), "cost", False),
        (("--layout", "suffix", "--span-pages", 1, *CHEAP), "cost", True),
        (("--layout", "suffix", "--span-pages", 90, *CHEAP), "cost", False),
        (("--layout", "eager"), "layout", True),
    ],
)
def test_a_run_obeys_its_rule_and_its_trace_repeats_it(
    call: Callable[..., Any],
    record: Callable[..., Any],
    arguments: tuple[object, ...],
    rule: str,
    moves: bool,
) -> None:
    report, trace = record(*arguments)
    (row,) = json.loads(call("simulate", "--trace", trace, "--json").out)
    assert report["accept"] == row["accept"] == rule
    assert (report["rows_moved"] > 0) is moves
    for name in ("rows_moved", "evictions", "active_subblocks", "physical_span"):
        assert row[name] == report[name], name


def test_costs_are_reported_and_recorded(
    call: Callable[..., Any], record: Callable[..., Any]
) -> None:
    report, trace = record("--layout", "paper", "--tile-cost-us", 40, "--row-cost-us", 0.5)
    assert (report["tile_cost_us"], report["row_cost_us"]) == (40, 0.5)
    (row,) = json.loads(call("simulate", "--trace", trace, "--json").out)
    assert (row["tile_cost_us"], row["row_cost_us"]) == (40, 0.5)
    (changed,) = json.loads(call("simulate", "--trace", trace, "--row-cost-us", 7, "--json").out)
    assert (changed["tile_cost_us"], changed["row_cost_us"]) == (40, 7)
    free, _ = record("--layout", "paper", "--accept", "tiles")
    assert free["tile_cost_us"] is free["row_cost_us"] is None


def test_options_go_before_the_recorded_rule(
    call: Callable[..., Any], record: Callable[..., Any]
) -> None:
    _, trace = record("--layout", "paper", "--accept", "cost", *DEAR)
    repeat = ("simulate", "--trace", trace, "--json")
    (same,), (other,) = (
        json.loads(call(*repeat, *more).out) for more in ((), ("--accept", "tiles"))
    )
    assert (same["accept"], same["rows_moved"]) == ("cost", 0)
    assert other["accept"] == "tiles"
    assert other["rows_moved"] > 0


def test_the_report_shows_the_costs_of_moves(call: Callable[..., Any], film: Path) -> None:
    run = ("generate", "--video", film, "--max-tokens", 2, "--backend", "reference")
    tight = ("--high-watermark", 420, "--low-watermark", 300, "--layout", "paper")
    shown = call(*run, *tight, "--tile-cost-us", 40, "--row-cost-us", 0.5).err
    assert "moves judged at  40 us a subblock, 0.5 us a row" in shown
    assert "moves judged" not in call(*run, *tight, "--accept", "tiles").err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--accept", "best"), "--accept"),
        (("--accept", "tiles", "--layout", "native"), "--accept is for a layout that moves rows"),
        (("--span-pages", 3), "--span-pages is for --accept span and --layout suffix"),
        (("--span-pages", 0, "--layout", "suffix"), "--span-pages must be at least 1, got 0"),
        (("--tile-cost-us", 1), "--tile-cost-us needs the other cost beside it"),
        (("--row-cost-us", 1), "--row-cost-us needs the other cost beside it"),
        (("--tile-cost-us", "nan", "--row-cost-us", 1), "--tile-cost-us must be at least 0"),
        (("--tile-cost-us", 1, "--row-cost-us", -1), "--row-cost-us must be at least 0"),
        (("--tile-cost-us", 1, "--row-cost-us", 1, "--layout", "eager"), "are for --accept cost"),
        (("--tile-cost-us", 1, "--row-cost-us", 1, "--layout", "native"), "are for --accept cost"),
        (
            ("--tile-cost-us", 1, "--row-cost-us", 1, "--accept", "span"),
            "are read by --accept cost",
        ),
    ],
)
def test_options_without_sense_or_effect_are_refused(
    call: Callable[..., Any], arguments: tuple[object, ...], message: str
) -> None:
    done = call("generate", "--model", "absent", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_simulated_rules(call: Callable[..., Any]) -> None:
    def row(*arguments: object) -> dict[str, Any]:
        shape = ("--shape", "minicpm-duplex", "--units", 60)
        (found,) = json.loads(call("simulate", *shape, *arguments, "--json").out)
        return dict(found)

    assert row("--layout", "paper", *DEAR)["rows_moved"] == 0
    assert row("--layout", "paper", *CHEAP)["rows_moved"] > 0
    assert row("--layout", "paper", "--accept", "tiles", *DEAR)["rows_moved"] > 0
    assert row("--layout", "suffix", "--accept", "layout", "--span-pages", 90)["rows_moved"] == 0
    assert row("--layout", "suffix", "--accept", "layout", "--span-pages", 1)["rows_moved"] > 0
