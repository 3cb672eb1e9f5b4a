"""`omnitide eval` as a command: bad input, missing clips, tables, pictures and cards."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omnitide.cli.eval_defaults import CHUNK_SECONDS, FPS
from omnitide.evaluation.checksum import checkpoint_hash, file_hash
from omnitide.evaluation.manifest import Manifest
from omnitide.evaluation.mark import Mark
from omnitide.evaluation.record import Answer, Record
from omnitide.evaluation.results import Result, Results
from omnitide.evaluation.runner import MEDIA
from omnitide.evaluation.streamingbench import StreamingBench
from omnitide.evaluation.summary import Summary, summarise
from omnitide.evaluation.tables import aligned, markdown, reading_words


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--policy", "best"), "'best'"),
        (("--policy", ""), "expected one of"),
        (("--watermarks", "2500"), "pairs high/low"),
        (("--watermarks", "100/200"), "above the high watermark"),
        (("--workers", "0"), "--workers must be at least 1, got 0"),
        (("--workers", "many"), "many"),
        (("--limit", "0"), "--limit must be at least 1, got 0"),
        (("--task", "Juggling"), "--task must be one of Counting, Event Understanding"),
        (("--fps", "0"), "fps"),
        (("--context", "some"), "--context must be seconds or all"),
        (("--protocol", "official"), "holds none of questions_real.json"),
        (("--videos", "nowhere"), "--videos must be a folder"),
        (("--data", "nowhere"), "--data must be a file or a folder"),
        (("--model", "no/such/folder"), "no/such/folder"),
        (("--judge-url", "http://x/v1"), "go together"),
        (("--against", "best"), "--against must be one of"),
        (("--ray", "local", "--ray-gpus", "-1"), "--ray-gpus must be at least 0, got -1"),
        (("--no-such-option",), "unrecognized arguments|unknown arguments"),
    ],
)
def test_bad_input_ends_in_a_message(
    call: Callable[..., Any],
    small: tuple[Any, ...],
    tmp_path: Path,
    change: tuple[str, ...],
    message: str,
) -> None:
    done = call(*small, "--limit", 1, "--out", tmp_path / "out", *change)
    assert done.code == 2
    assert re.search(message, done.err), done.err
    assert done.out == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("missing", ["--data", "--videos"])
def test_data_and_films_must_be_named(
    call: Callable[..., Any], tmp_path: Path, missing: str
) -> None:
    given = {"--data": tmp_path, "--videos": tmp_path}
    del given[missing]
    done = call("ovobench", *(x for pair in given.items() for x in pair))
    assert done.code == 2
    assert "needs --data and --videos" in done.err


@pytest.mark.parametrize("where", ["/proc/nowhere/out", "file"])
def test_a_folder_that_cannot_be_written_is_refused(
    call: Callable[..., Any], small: tuple[Any, ...], tmp_path: Path, where: str
) -> None:
    (tmp_path / "file").write_text("")
    out = where if where.startswith("/") else str(tmp_path / where)
    done = call(*small, "--out", out)
    assert done.code == 2
    assert "[eval] can't" in done.err


@pytest.mark.parametrize("command", ["summary", "card", "judge"])
def test_a_folder_without_results_is_refused(
    call: Callable[..., Any], tmp_path: Path, command: str
) -> None:
    more = ("--judge-url", "http://x/v1", "--judge-model", "m") if command == "judge" else ()
    done = call(command, tmp_path, *more)
    assert (done.code, done.out) == (2, "")
    assert "holds no results" in done.err


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 0}', '{"format": 1, "color": 2}'])
def test_a_damaged_manifest_is_refused(call: Callable[..., Any], tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    done = call("summary", tmp_path)
    assert done.code == 2
    assert "run.json" in done.err


def test_missing_clips_and_bad_rows_are_counted_listed_and_in_no_score(
    call: Callable[..., Any],
    streaming: Any,
    films: Callable[..., Path],
    ask: Callable[..., Any],
    tmp_path: Path,
) -> None:
    entries = [
        {"video_path": "here.mp4", "questions": [ask("00:00:03"), ask("soon")]},
        {"video_path": "gone.mp4", "questions": [ask("00:00:03")] * 3},
        {"video_path": "late.mp4", "questions": [ask("00:09:00")]},
    ]
    streaming.write("questions_real_stream.json", entries)
    folder = films("here.mp4", "late.mp4")
    (folder / "torn.mp4").write_bytes(b"no film")
    given = ("streamingbench", "--data", streaming.folder, "--videos", folder)
    done = call(*given, "--out", tmp_path / "out", "--max-pixels", 3136, "--backend", "reference")
    assert done.code == 0
    assert "note: missing clip: 1, 3 questions left out; listed in" in done.err
    assert "note: malformed row: 1, 1 questions left out" in done.err
    assert "- gone: no film gone.mp4 under" in done.out
    assert "entry 0 question 1: a time stamp must be" in done.out
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert found["settings"][0]["scores"]["all"]["marks"] == 2
    assert found["settings"][0]["coverage"]["past_end"] == 1
    assert {p["kind"] for p in found["problems"]} >= {"missing clip", "malformed row"}


def test_an_item_that_fails_is_told_and_is_in_no_score(
    call: Callable[..., Any], small: tuple[Any, ...], films: Any, tmp_path: Path
) -> None:
    folder = small[small.index("--videos") + 1]
    (folder / "sample_1_real.mp4").unlink()
    (folder / "sample_1_real.mp4").write_bytes(b"no film at all")
    done = call(*small, "--out", tmp_path / "out", "--policy", "full")
    assert done.code == 2
    assert "error: 1 items failed and are in no score" in done.err
    assert "failed: sample_1_real under full: [media]" in done.out
    found = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert found["settings"][0]["scores"]["all"]["marks"] == 4
    assert found["settings"][0]["scores"]["session, s"]["marks"] == 2
    films("again.mp4")
    (folder / "sample_1_real.mp4").unlink()
    (folder / "again.mp4").rename(folder / "sample_1_real.mp4")
    mended = call(*small, "--out", tmp_path / "out", "--policy", "full", "--retry-failed", "--json")
    assert mended.code == 0
    assert mended.json()["settings"][0]["scores"]["all"]["marks"] == 6


def test_one_frame_and_one_second_of_sound_by_default(
    call: Callable[..., Any], small: tuple[Any, ...], tmp_path: Path
) -> None:
    assert (FPS, CHUNK_SECONDS) == (MEDIA.fps, MEDIA.chunk_seconds) == (1.0, 1.0)
    out, quiet = tmp_path / "out", tmp_path / "quiet"
    assert call(*small, "--limit", 1, "--out", out, "--policy", "full").code == 0
    more = ("--audio", "off")
    assert call(*small, "--limit", 1, "--out", quiet, "--policy", "full", *more).code == 0
    seen = [json.loads((folder / "items.jsonl").read_text())["record"] for folder in (out, quiet)]
    assert [r["clip_seconds"] for r in seen] == [8.0, 8.0]
    # a second of sound is 25 tokens and 2 markers; 8 of them are followed
    assert seen[0]["stats"]["tokens_seen"] - seen[1]["stats"]["tokens_seen"] == 8 * 27


def test_only_some_tasks_and_clips(
    call: Callable[..., Any], small: tuple[Any, ...], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = call(*small, "--limit", 2, "--task", "Counting", "--out", out, "--json")
    assert done.json()["settings"][0]["scores"]["all"]["marks"] == 2
    manifest = json.loads((out / "run.json").read_text())
    assert manifest["selection"] == {
        "clips": 2, "items": 2, "questions": 2, "of_clips": 3, "of_items": 3,
    }  # fmt: skip


def made_results(tmp_path: Path, names: list[str], trained: bool = True) -> Results:
    """Results of six clips with one question each, right with a chance of its own a setting."""
    random = np.random.default_rng(0)
    results = []
    for place, name in enumerate(names):
        for clip in range(6):
            right = float(random.random() < 0.3 + 0.1 * place)
            reply = "B" if right else "A"
            marks = tuple(
                Mark(f"c{clip}#0", "Counting", metric, right) for metric in ("official", "robust")
            )
            record = Record(
                f"c{clip}", f"c{clip}", name, (Answer("0", reply, 1.0),),
                loop_seconds=1.0 + place + 0.1 * clip, update_ms=5.0,
                stats={"tokens_seen": 100, "tokens_kept": 50},
            )  # fmt: skip
            results.append(Result(record, marks, (), clip))
    manifest = Manifest(
        "streamingbench", {"protocol": "stream"}, "d" * 64, "some/model", "c" * 64, "reference",
        "float32", trained,
        {"media": {"fps": 1.0, "chunk_seconds": 1.0, "max_pixels": 3136},
         "sampling": {"temperature": 0.0, "seed": 0}, "system_prompt": None},
        {"backend": "reference", "device": "CPU", "dtype": "float32", "platform": "Linux",
         "workers": 1, "ray": False, "versions": {"python": "3.11", "omnitide": "0"}},
        {"clips": 6, "items": 6, "questions": 6, "of_clips": 6, "of_items": 6},
        [{"kind": "missing clip", "where": "x", "what": "no film x", "questions": 2}],
    )  # fmt: skip
    return Results(tmp_path, manifest, tuple(results))


NAMES = ["fifo 2500/1800", "omnipick 5000/3500", "omnipick 2500/1800", "full"]


def made_summary(tmp_path: Path, names: list[str] = NAMES, **more: Any) -> Summary:
    return summarise(made_results(tmp_path, names), StreamingBench().scores, draws=50, **more)


def test_settings_stand_in_the_order_of_policies_and_watermarks(tmp_path: Path) -> None:
    found = made_summary(tmp_path)
    assert found.settings == (
        "full", "omnipick 2500/1800", "omnipick 5000/3500", "fifo 2500/1800",
    )  # fmt: skip
    assert found.reference == "full"
    assert found.facts["omnipick 5000/3500"] == {
        "policy": "omnipick", "high_watermark": 5000, "low_watermark": 3500,
    }  # fmt: skip
    pairs = set(found.differences)
    assert {(name, "full") for name in found.settings[1:]} <= pairs
    assert ("fifo 2500/1800", "omnipick 2500/1800") in pairs
    other = made_summary(tmp_path, against="fifo 2500/1800")
    assert other.reference == "fifo 2500/1800"
    assert ("full", "fifo 2500/1800") in other.differences


def test_a_difference_is_that_of_the_two_values(tmp_path: Path) -> None:
    found = made_summary(tmp_path)
    for (first, second), scores in found.differences.items():
        for name, estimate in scores.items():
            a, b = (found.estimates[s][name].value for s in (first, second))
            assert a is not None
            assert b is not None
            assert estimate.value == pytest.approx(a - b)


def test_agreement_with_the_reference_is_counted(tmp_path: Path) -> None:
    results = made_results(tmp_path, NAMES)
    found = made_summary(tmp_path)
    said = {name: [r.record.answers[0].reply for r in results.of(name)] for name in NAMES}
    for name in NAMES:
        equal = [a == b for a, b in zip(said[name], said["full"], strict=True)]
        value = found.estimates[name]["equal replies"].value
        assert value == pytest.approx(100 * sum(equal) / 6)


def test_the_summary_does_not_depend_on_the_order_of_lines(tmp_path: Path) -> None:
    results = made_results(tmp_path, NAMES)
    turned = Results(tmp_path, results.manifest, tuple(reversed(results.results)))
    scores = StreamingBench().scores
    assert (
        summarise(turned, scores, draws=50).as_dict()
        == summarise(results, scores, draws=50).as_dict()
    )


def test_tables_hold_values_intervals_and_differences(tmp_path: Path) -> None:
    found = made_summary(tmp_path)
    text = markdown(found, [], short=False)
    row = next(x for x in text.splitlines() if x.startswith("| all  ") and "fifo" in x)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    estimate, less = (
        found.estimates["fifo 2500/1800"]["all"], found.differences["fifo 2500/1800", "full"]["all"]
    )  # fmt: skip
    assert estimate.value is not None
    assert less.value is not None
    assert float(cells[2]) == pytest.approx(estimate.value, abs=0.05)
    assert float(cells[6]) == pytest.approx(less.value, abs=0.05)
    assert cells[4:6] == ["6", "6"]


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        ({"protocol": "stream", "context": None, "track": "", "sound": None}, "protocol stream"),
        ({"protocol": "official", "context": 60.0}, "protocol official, context 60.0"),
        ({"protocol": "official", "context": None}, "protocol official, context all"),
        ({"track": "dialogue", "as_published": True}, "track dialogue, as_published True"),
        ({}, ""),
    ],
)
def test_tables_say_how_the_data_were_read(reading: dict[str, Any], words: str) -> None:
    assert reading_words(reading) == words


def test_tables_escape_what_would_break_them() -> None:
    lines = list(aligned(["a", "b"], [["x|y", "z"]]))
    assert lines == ["| a    | b |", "|------|---|", "| x\\|y | z |"]


def test_the_figures_hold_what_they_are_drawn_from(tmp_path: Path) -> None:
    from omnitide.evaluation.picture import draw_time, draw_watermarks

    found = made_summary(tmp_path)
    (axes,) = draw_time([found]).axes
    points = {c.get_label(): c.lines[0].get_xydata()[0] for c in axes.containers}
    assert set(points) == set(NAMES)
    for name, (x, y) in points.items():
        assert x == pytest.approx(found.estimates[name]["session, s"].value)
        assert y == pytest.approx(found.estimates[name]["all"].value)
    assert axes.yaxis_inverted()
    assert not axes.xaxis_inverted()
    (axes,) = draw_watermarks([found]).axes
    assert [t.get_text() for t in axes.get_xticklabels()] == ["2,500/1,800", "5,000/3,500"]
    lines = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
    assert set(lines) == {"omnipick", "fifo", "full"}
    expected = [found.estimates[f"omnipick {m}"]["all"].value for m in ("2500/1800", "5000/3500")]
    assert list(lines["omnipick"].get_ydata()) == pytest.approx(expected)
    assert lines["full"].get_ydata()[0] == found.estimates["full"]["all"].value


@pytest.mark.parametrize("number", [13, 14])
def test_figures_are_drawn_by_the_command(
    call: Callable[..., Any], small: tuple[Any, ...], tmp_path: Path, number: int
) -> None:
    out, file = tmp_path / "out", tmp_path / "figure.png"
    sweep = ("--policy", "fifo,full", "--watermarks", "300/200", "--limit", 1)
    assert call(*small, *sweep, "--out", out).code == 0
    assert call("figure", number, out, out, "--plot", file).code == 0
    with Image.open(file) as image:
        assert image.width > 1.5 * image.height  # two panels
    for more, message in (
        (("--plot", tmp_path / "x.gif"), "x.gif"),
        ((), "--plot"),
        (("--plot", file, "--score", "none"), "--score must be one of"),
    ):
        done = call("figure", number, out, *more)
        assert (done.code, done.out) == (2, "")
        assert message in done.err


def test_a_figure_of_watermarks_needs_some(tmp_path: Path) -> None:
    from omnitide.errors import ConfigError
    from omnitide.evaluation.picture import draw_watermarks

    with pytest.raises(ConfigError, match="needs settings with watermarks"):
        draw_watermarks([made_summary(tmp_path, ["full"])])


def test_a_card_holds_hash_settings_machine_versions_and_results(
    call: Callable[..., Any],
    small: tuple[Any, ...],
    tiny_checkpoint: Callable[..., Path],
    tmp_path: Path,
) -> None:
    out, card = tmp_path / "out", tmp_path / "CARD.md"
    assert call(*small, "--limit", 1, "--out", out, "--policy", "omnipick,full").code == 0
    assert call("card", out, out, "--output", card).code == 0
    text = card.read_text()
    assert f"`{checkpoint_hash(tiny_checkpoint())}`" in text
    for words in (
        f"# {tiny_checkpoint()}", "The weights are random", "omnipick 2500/1800",
        "1 fps, 1 s a unit",
        "reference on CPU", "python 3.", "temperature 0", "2 questions in 1 of 3 sessions",
        "| all", "session, s", "Nothing was left out.",
    ):  # fmt: skip
        assert words in text
    assert call("card", out).out == call("card", out, "--output", card).out + card.read_text()


def test_a_card_is_of_one_checkpoint(tmp_path: Path) -> None:
    from dataclasses import replace

    from omnitide.errors import ConfigError
    from omnitide.evaluation.card import write_card

    results = made_results(tmp_path, NAMES)
    other = replace(results, manifest=replace(results.manifest, checkpoint="e" * 64))
    summary = made_summary(tmp_path)
    assert "Left out: 1 clips or rows with 2 questions" in write_card([(results, summary)])
    with pytest.raises(ConfigError, match="of one checkpoint"):
        write_card([(results, summary), (other, summary)])


def test_a_checkpoint_is_hashed_by_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name, data in (("model.safetensors", b"w"), ("config.json", b"{}"), ("x.bin", b"no")):
        (tmp_path / "a" / name).write_bytes(data)
    lines = [
        f"{name} {hashlib.sha256(data).hexdigest()}\n"
        for name, data in (("config.json", b"{}"), ("model.safetensors", b"w"))
    ]
    expected = hashlib.sha256("".join(lines).encode()).hexdigest()
    assert checkpoint_hash(tmp_path / "a") == expected
    (tmp_path / "a" / "model.safetensors").write_bytes(b"W")
    assert checkpoint_hash(tmp_path / "a") != expected


def test_a_downloaded_file_is_known_by_the_name_of_its_blob(tmp_path: Path) -> None:
    blobs, name = tmp_path / "blobs", "0123456789abcdef" * 4
    blobs.mkdir()
    (blobs / name).write_bytes(b"anything")
    link = tmp_path / "model.safetensors"
    link.symlink_to(blobs / name)
    assert file_hash(link) == name
    assert file_hash(blobs / name) == hashlib.sha256(b"anything").hexdigest()


def test_flips_of_comparisons_are_counted(tmp_path: Path) -> None:
    results = made_results(tmp_path, ["full"])
    wins = [("AB", 1.0, 0.0), ("BA", 1.0, 1.0)]
    changed = [
        Result(r.record, tuple(
            Mark(f"c{i}#x/{order}", "commentary", "win", even if i % 2 else odd)
            for order, even, odd in wins
        ), (), i)
        for i, r in enumerate(results.results)
    ]  # fmt: skip
    found = summarise(
        Results(tmp_path, results.manifest, tuple(changed)), StreamingBench().scores, draws=10
    )
    assert found.flips == 0.5


EVENT = {
    "video_id": "abcdefghijk", "event_id": 3, "begin": 1.3, "end": 6.4, "video": "abcdefghijk.mp4",
    "event_title": "A putt", "event_asr": '[[1.5, 2.5, "he putts"]]',
    "event_asr_text": "he putts", "preasr": "", "preasr_text": "so far " * 200,
}  # fmt: skip
PROBE = {
    "id": 7, "task": "EPM", "video": "x.mp4", "realtime": 5, "question": "Where?",
    "options": ["here", "there"], "gt": 0,
}  # fmt: skip
PROACTIVE = {
    "task_type": "Proactive Output", "question": 'When it turns, output "3".',
    "time_stamp": "00:00:02", "ground_truth_time_stamp": "00:00:04", "ground_truth_output": "3",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "file", "content", "films_", "more", "metrics"),
    [
        ("livesports", "LiveSports-3K-CC.json", [EVENT], ["abcdefghijk.mp4"], (),
         {"rouge-l", "chrf", "speech-f1", "words", "repetition"}),
        ("livesports", "LiveSports-3K-CC.json", [EVENT], ["abcdefghijk.mp4"], ("--audio", "on"),
         {"rouge-l", "chrf", "speech-f1", "words", "repetition"}),
        ("ovobench", "ovo_bench_new.json", [PROBE], ["x.mp4"], (), {"official", "robust"}),
        ("ovobench", "ovo_bench_new.json", [PROBE], ["7.mp4"], ("--protocol", "official"),
         {"official", "robust"}),
        ("streamingbench", "questions_proactive.json",
         [{"video_path": "x.mp4", "questions": [PROACTIVE]}], ["x.mp4"], (), {"time", "answer"}),
        ("streamingbench", "questions_proactive.json",
         [{"video_path": "x.mp4", "questions": [PROACTIVE]}], ["x.mp4"],
         ("--protocol", "official", "--context", "all"), {"time", "answer"}),
    ],
)  # fmt: skip
def test_every_benchmark_runs_from_its_files_to_its_scores(
    call: Callable[..., Any],
    films: Callable[..., Path],
    tmp_path: Path,
    name: str,
    file: str,
    content: Any,
    films_: list[str],
    more: tuple[str, ...],
    metrics: set[str],
) -> None:
    (tmp_path / file).write_text(json.dumps(content))
    out = tmp_path / "out"
    done = call(
        name, "--data", tmp_path, "--videos", films(*films_), "--out", out, "--json",
        "--max-pixels", 3136, "--backend", "reference", "--watermarks", "200/150", *more,
    )  # fmt: skip
    assert done.code == 0, done.err
    (line,) = [json.loads(text) for text in (out / "items.jsonl").read_text().splitlines()]
    assert line["record"]["error"] is None
    assert {metric for _, _, metric, _ in line["marks"]} == metrics
    assert list((out / "predictions").rglob("*.json*"))
    found = done.json()["settings"][0]
    assert found["coverage"]["items"] == 1
    assert len(found["scores"]) > len(metrics)
