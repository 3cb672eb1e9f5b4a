"""`python -m training.evaluate` from end to end on a small random model, and what it remembers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide import MediaOptions, Session, load
from omnitide.config import RetentionConfig
from omnitide.errors import ConfigError
from omnitide.evaluation.results import Result, read_results
from omnitide.layouts import LAYOUTS
from omnitide.media.chunk import MediaChunk

SERVED = [name for name, layout in LAYOUTS.items() if not layout.simulated]
MEDIA = MediaOptions(2.0, 2.0, 112 * 112)

Call = Callable[..., int]


@pytest.fixture
def call(tiny_checkpoint: Callable[..., Path], made_media: Any, tmp_path: Path) -> Call:
    """Run the command on few short streams; the bank's contents don't matter."""
    from training.evaluate import main

    bank = tmp_path / "bank.npz"
    bank.write_bytes(b"any")

    def run(*options: Any) -> int:
        given = ["--model", tiny_checkpoint(), "--speech", bank, "--backend", "reference"]
        given += ["--units", 7, "--questions", 4, *options]
        return main(list(map(str, given)))

    return run


def replies(folder: Path) -> dict[tuple[str, str], list[str]]:
    return {r.record.key: [a.text for a in r.record.answers] for r in read_results(folder).results}


def test_placement_and_migration_never_change_an_answer(call: Call, tmp_path: Path) -> None:
    from training.measure.tables import layout_differences

    out = tmp_path / "out"
    marks = ("--watermarks", "320/240", "--streams", 1)
    policies = "omnipick,h2o,full"
    assert call("--out", out, *marks, "--policy", policies, "--layouts", ",".join(SERVED)) == 0
    results = read_results(out).results
    assert not [r for r in results if r.record.error is not None]
    assert len(results) == 3 * len(SERVED)
    found = layout_differences(results)
    assert {name: differ for name, (_, differ) in found.items()} == {
        "full": 0, "omnipick 320/240": 0, "h2o 320/240": 0,
    }  # fmt: skip
    assert all(asked == 4 for asked, _ in found.values())
    cut = [r.record.stats for r in results if not r.record.setting.startswith("full")]
    assert all(stats["evictions"] > 0 for stats in cut)
    assert sum(stats["rows_moved"] for stats in cut) > 0
    # Policies do differ, so that equal replies say something.
    assert len({tuple(texts) for texts in replies(out).values()}) > 1
    assert "| omnipick 320/240" in (out / "recall.md").read_text()


def test_a_run_goes_on_with_more_streams_and_settings(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "out"
    one = ("--policy", "full,fifo", "--watermarks", "320/240")
    assert call("--out", out, "--streams", 1, *one) == 0
    lines = (out / "items.jsonl").read_text()
    assert call("--out", out, "--streams", 2, *one, "--vary", "omnipick:image_sink=0") == 0
    assert (out / "items.jsonl").read_text().startswith(lines)
    names = {"full", "fifo 320/240", "omnipick 320/240 image_sink=0"}
    assert set(replies(out)) == {(name, f"tune-{n}") for name in names for n in (0, 1)}
    summary = json.loads((out / "summary.json").read_text())
    assert summary["reference"] == "full"
    assert {s["setting"] for s in summary["settings"]} == names


def test_tasks_may_count_by_another_split(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from training.measure import tables as recall_tables

    given, out = ("--policy", "full", "--streams", 2, "--tasks", "hear,see"), tmp_path / "out"
    assert call("--out", tmp_path / "tune", *given) == 0
    monkeypatch.setattr(recall_tables, "LEAST_QUESTIONS", 1)
    monkeypatch.setattr(recall_tables, "SOLVED", 0.0)
    assert call("--out", tmp_path / "hear", *given[:-1], "hear") == 0
    other = ("--split", "test", "--counted-from", tmp_path / "hear")
    assert call("--out", out, *given, *other) == 0
    tables = (out / "recall.md").read_text()
    assert "| hear " in tables
    assert "| (see) " in tables


def test_tasks_count_by_no_other_results(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What would let every task count unseen is refused before the run."""
    out, given = tmp_path / "out", ("--streams", 1, "--watermarks", "320/240")
    assert call("--out", tmp_path / "cut", *given, "--policy", "fifo") == 0
    manifest = tmp_path / "cut" / "run.json"
    for change, message in (
        ({}, "must hold results of the policy full"),
        ({"benchmark": "needle"}, "must hold results of recall, "),
    ):
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
        other = ("--counted-from", tmp_path / "cut")
        assert call("--out", out, *given, "--policy", "full", *other) == 2
        assert message in capsys.readouterr().err
    assert call("--out", out, *given, "--counted-from", tmp_path / "nothing") == 2
    assert not out.exists()


def test_time_that_is_over_leaves_tables_of_what_is_there(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = ("--policy", "full,fifo", "--watermarks", "320/240", "--streams", 2)
    assert call("--out", out, *given, "--minutes", 0) == 1  # not one item
    assert call("--out", out, *given, "--minutes", 10) == 0
    assert len(replies(out)) == 4


def test_another_bank_is_refused(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, given = tmp_path / "out", ("--policy", "full", "--streams", 1)
    assert call("--out", out, *given) == 0
    (tmp_path / "bank.npz").write_bytes(b"other")
    assert call("--out", out, *given) == 2
    assert "holds results with another reading (bank" in capsys.readouterr().err
    (tmp_path / "bank.npz").unlink()
    assert call("--out", out, *given) == 2
    assert "--speech must be a bank, there is none at" in capsys.readouterr().err


def test_workers_are_processes(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several workers are asked for with the plan that remembers; they paint for themselves."""
    from training.measure import run as module
    from training.measure.models import RememberingPlan

    asked = []

    class Pool(module.InlinePool):
        def __init__(self, plan: RememberingPlan, workers: int) -> None:
            asked.append((type(plan), workers))
            super().__init__(plan.load(), plan.options)

    monkeypatch.setattr(module, "ProcessPool", Pool)
    out = tmp_path / "out"
    assert call("--out", out, "--policy", "full", "--streams", 1, "--workers", 2) == 0
    assert asked == [(RememberingPlan, 2)]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("omnipick:image_sink=0,audio_sink=4", ("omnipick", {"image_sink": 0, "audio_sink": 4})),
        ("h2o:heavy_share=0.25", ("h2o", {"heavy_share": 0.25})),
    ],
)
def test_variants(text: str, parsed: Any) -> None:
    from training.measure.variants import make_settings, parse_variant

    assert parse_variant(text) == parsed
    names = [s.name for s in make_settings(("full", "fifo"), ((9, 6), (8, 5)), [parsed])]
    change = " ".join(f"{key}={value}" for key, value in sorted(parsed[1].items()))
    assert names == ["full", "fifo 9/6", "fifo 8/5", *(f"{parsed[0]} {m} {change}"
                     for m in ("9/6", "8/5"))]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["omnipick", "omnipick:", "omnipick:image_sink", "omnipick:image_sink=few",
             "omnipick:high_watermark=9", "omnipick:sink=0"],
)  # fmt: skip
def test_variants_that_make_no_sense(text: str) -> None:
    from training.measure.variants import parse_variant

    with pytest.raises(ConfigError, match="--vary must read POLICY:NAME=NUMBER"):
        parse_variant(text)


@pytest.mark.parametrize(
    ("variant", "message"),
    [(("nobody", {"image_sink": 0}), "expected one of"), (("h2o", {"heavy_share": 2}), "heavy")],
)
def test_variants_of_unknown_policies_and_numbers(variant: Any, message: str) -> None:
    from training.measure.variants import make_settings

    with pytest.raises(ConfigError, match=message):
        make_settings(("full",), ((9, 6),), [variant])


def test_a_stream_is_encoded_once_and_answers_are_the_model_s(
    tiny_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from training.measure.models import EncodesOnce

    model = load(tiny_checkpoint(), backend="reference", media=MEDIA)
    random = np.random.default_rng(0)

    def chunk(index: int) -> MediaChunk:
        frames = tuple(random.integers(0, 256, (56, 56, 3), np.uint8) for _ in range(4))
        samples = (0.1 * random.standard_normal(32_000)).astype(np.float32)
        times = tuple(2.0 * index + k / 2 for k in range(4))
        return MediaChunk(2.0 * index, 2.0 * index + 2.0, frames, times, samples)

    streams = [[chunk(i) for i in range(3)] for _ in range(2)]
    retention = RetentionConfig(high_watermark=150, low_watermark=100)

    def follow(of: Any, policy: str, chunks: list[MediaChunk]) -> list[int]:
        session = Session(of, policy=policy, retention=retention, max_tokens=4, largest_unit=100)
        for one in chunks:
            session.append_media(one)
        return [r.token for r in session.ask("What?")]

    plain = {(p, s): follow(model, p, streams[s]) for s in (0, 1) for p in ("fifo", "full")}
    encode, count = model.encode_media, []

    def counted(*given: Any) -> Any:
        count.append(given[0])
        return encode(*given)

    monkeypatch.setattr(model, "encode_media", counted)
    remembering = EncodesOnce(model)
    assert {key: follow(remembering, key[0], streams[key[1]]) for key in plain} == plain
    assert [c.start for c in count] == [0.0, 2.0, 4.0] * 2
    # A stream that comes back was forgotten, and one chunk after another state is another unit.
    assert follow(remembering, "full", streams[0]) == plain["full", 0]
    assert len(count) == 9
    _, after = remembering.encode_media(streams[0][1], remembering.new_stream())
    assert len(count) == 10
    assert after is not None


def test_settings_are_compared_on_the_same_streams(call: Call, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert call("--out", out, "--streams", 2, "--policy", "full") == 0
    more = ("--watermarks", "320/240", "--policy", "fifo")
    assert call("--out", out, "--streams", 1, *more) == 0
    head, rows = "| setting", ("| full", "| fifo 320/240")
    table = (out / "recall.md").read_text().split("### ")[1].splitlines()
    columns = next(line for line in table if line.startswith(head)).split("|")
    place = [name.strip() for name in columns].index("streams")
    found = [line.split("|")[place].strip() for line in table if line.startswith(rows)]
    assert found == ["1", "1"]
    assert len(replies(out)) == 3


def test_failed_streams_are_compared_under_no_setting() -> None:
    from omnitide.evaluation.record import Record
    from omnitide.evaluation.results import Results
    from training.measure.tables import on_same_streams

    records = [
        Record("a", "a", "full"), Record("b", "b", "full"), Record("c", "c", "full"),
        Record("a", "a", "fifo"), Record("b", "b", "fifo", error="no memory"),
    ]  # fmt: skip
    manifest: Any = None
    given = Results(Path(), manifest, tuple(Result(record) for record in records))
    assert [r.record.key for r in on_same_streams(given).results] == [("full", "a"), ("fifo", "a")]
    one = Results(Path(), manifest, given.results[:3])
    assert on_same_streams(one).results == one.results


def test_layouts_that_disagree_are_counted() -> None:
    from omnitide.evaluation.record import Answer, Record
    from training.measure.tables import layout_differences

    def result(setting: str, *texts: str) -> Result:
        answers = tuple(Answer(str(n), text) for n, text in enumerate(texts))
        return Result(Record("x", "x", setting, answers))

    found = layout_differences(
        [
            result("omnipick 9/6", "a", "b", "c"),
            result("omnipick 9/6 paper", "a", "B", "c"),
            result("omnipick 9/6 eager", "a", "b", "C"),
            result("omnipick 9/6 image_sink=0", "a"),
            result("omnipick 9/6 image_sink=0 paper", "a"),
            result("fifo 9/6", "a"),
        ]
    )
    assert found == {"omnipick 9/6": (3, 2), "omnipick 9/6 image_sink=0": (1, 0)}
