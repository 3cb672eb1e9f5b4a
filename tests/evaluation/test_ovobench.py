"""OVO-Bench: its annotation file, its scores by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnitide.errors import ConfigError
from omnitide.evaluation.bootstrap import estimates
from omnitide.evaluation.dataset import Dataset, Reading
from omnitide.evaluation.film import Film
from omnitide.evaluation.item import Item
from omnitide.evaluation.ovobench import OVOBench
from omnitide.evaluation.record import Record

BENCH = OVOBench()

BACKWARD = {
    "id": 0, "task": "EPM", "video": "src/x.mp4", "realtime": 7, "question": "Where was it?",
    "options": ["on a table", "in a box", "nowhere"], "answer": "in a box", "gt": 1,
}  # fmt: skip
REC = {
    "id": 5, "task": "REC", "video": "src/x.mp4", "activity": "jumps", "start_times": [1],
    "end_times": [2], "test_info": [{"realtime": 3, "count": 1}, {"realtime": 6, "count": 12}],
}  # fmt: skip
SSR = {
    "id": 6, "task": "SSR", "video": "y.mp4", "tutorial": "tea", "all_steps": ["boil"],
    "start_time": [1], "end_time": [2],
    "test_info": [
        {"realtime": 2, "step": "boil", "type": 1}, {"realtime": 5, "step": "boil", "type": 0},
    ],
}  # fmt: skip
CRR = {
    "id": 7, "task": "CRR", "video": "y.mp4", "question": "Who wins?", "answer": "x", "ask_time": 1,
    "clue_time": 4, "test_info": [{"realtime": 3, "type": 0}],
}  # fmt: skip
ALL = [BACKWARD, REC, SSR, CRR]


def read(tmp_path: Path, folder: Path, records: list[Any], **options: Any) -> Dataset:
    path = tmp_path / "ovo_bench_new.json"
    path.write_text(json.dumps(records))
    return BENCH.read(Reading((tmp_path,), folder, **options))


def test_a_film_is_followed_once_with_all_its_probes(
    tmp_path: Path, films: Callable[..., Path]
) -> None:
    found = read(tmp_path, films("x.mp4", "deep/y.mp4"), ALL)
    x, y = found.items
    assert (x.clip, y.clip) == ("src/x.mp4", "y.mp4")
    assert [(q.id, q.at, q.expected, q.task) for q in x.questions] == [
        ("0", 7.0, "B", "EPM"), ("5_0", 3.0, "1", "REC"), ("5_1", 6.0, "12", "REC"),
    ]  # fmt: skip
    assert [(q.id, q.expected) for q in y.questions] == [
        ("6_0", "Yes"), ("6_1", "No"), ("7_0", "No"),
    ]  # fmt: skip
    assert "A. on a table\nB. in a box\nC. nowhere" in x.questions[0].prompt
    assert "jumps" in x.questions[1].prompt
    assert isinstance(x.source, Film)
    assert not x.source.sound
    assert {p.kind for p in found.problems} == {"unexpected count"}


def test_the_official_protocol_shows_each_probe_what_is_before_it(
    tmp_path: Path, films: Callable[..., Path]
) -> None:
    found = read(tmp_path, films("x.mp4", "6_0.mp4"), ALL, protocol="official")
    assert [item.id for item in found.items] == ["0", "5_0", "5_1", "6_0"]
    sources = [item.source for item in found.items]
    assert [s.stop for s in sources if isinstance(s, Film)] == [7.0, 3.0, 6.0, None]
    missing = [p for p in found.problems if p.kind == "missing clip"]
    assert [(p.where, p.questions) for p in missing] == [("6_1", 1), ("7_0", 1)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"task": "XYZ"}, "task must be one of"),
        ({"gt": 3}, "gt must name one of 3 options"),
        ({"options": ["a"]}, "options must be 2 to 8"),
        ({"realtime": "late"}, "time stamp"),
        ({"realtime": -3}, "at least 0"),
        ({"gt": float("inf")}, "infinity"),
        ({"question": None}, "question must be text, got None"),
        ({"question": "\ud800?"}, "surrogates not allowed"),
        ({"options": "a box"}, "options must be a list, got 'a box'"),
        ({**CRR, "id": 1, "question": 3}, "question must be text, got 3"),
        ({**REC, "id": 1, "activity": " "}, "activity must be text"),
        ({**SSR, "id": 1, "test_info": [{"realtime": 2, "step": 1}]}, "step must be text, got 1"),
    ],
)
def test_malformed_records_are_listed(
    tmp_path: Path, films: Callable[..., Path], change: dict[str, Any], reason: str
) -> None:
    records = [BACKWARD, {**BACKWARD, "id": 1, **change}, "?", {"task": "REC", "id": 2}]
    found = read(tmp_path, films("x.mp4"), records)
    assert sum(len(item.questions) for item in found.items) == 1
    whats = [p.what for p in found.problems if p.kind == "malformed row"]
    assert len(whats) == 3
    assert reason in whats[0]


def test_a_file_of_another_kind_is_refused(tmp_path: Path, films: Callable[..., Path]) -> None:
    with pytest.raises(ConfigError, match="must hold a list of records"):
        read(tmp_path, films("x.mp4"), {"a": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "[" * 100_000, "\x00", "[1"])
def test_a_file_that_is_no_json_is_refused(
    tmp_path: Path, films: Callable[..., Path], text: str
) -> None:
    (tmp_path / "ovo_bench_new.json").write_text(text)
    with pytest.raises(ConfigError, match="must be JSON"):
        BENCH.read(Reading((tmp_path,), films("x.mp4")))


def test_a_long_value_is_told_in_short(tmp_path: Path, films: Callable[..., Path]) -> None:
    records = [BACKWARD, {**BACKWARD, "id": 1, "options": "x" * 90_000}]
    (problem,) = (
        p for p in read(tmp_path, films("x.mp4"), records).problems if p.kind == "malformed row"
    )
    assert problem.what.startswith("options must be a list")
    assert len(problem.what) < 400


def test_an_empty_run_says_what_was_left_out(tmp_path: Path, films: Callable[..., Path]) -> None:
    found = read(tmp_path, films("z.mp4"), [BACKWARD])
    assert [p.kind for p in found.problems] == ["unexpected count", "missing clip"]
    with pytest.raises(ConfigError, match=r"2 problems, such as: missing clip: src/x\.mp4"):
        found.selected()


def test_an_id_that_stands_twice_is_taken_once(tmp_path: Path, films: Callable[..., Path]) -> None:
    found = read(tmp_path, films("x.mp4"), [BACKWARD, {**BACKWARD, "gt": 2}])
    (item,) = found.items
    assert [q.expected for q in item.questions] == ["B"]
    assert [p.where for p in found.problems if p.kind == "malformed row"] == ["0"]


@pytest.mark.parametrize(
    ("name", "reply", "official", "robust"),
    [
        ("0", "B", 1, 1),
        ("0", "It is B", 1, 1),
        ("0", "Being far", 1, 0),
        ("0", "A", 0, 0),
        ("5_1", "12", 1, 1),
        ("5_1", "1 and 2", 1, 0),
        ("5_1", "12 times, yes 12", 0, 1),
        ("5_1", "none", 0, 0),
        ("6_0", "Yes, now", 1, 1),
        ("6_0", "Y", 1, 1),
        ("6_0", "No. Yes", 1, 0),
        ("6_1", "No", 1, 1),
        ("6_1", "Not now", 1, 0),
        ("6_1", "", 0, 0),
    ],
)
def test_replies_are_marked_by_the_authors_rule_and_by_a_strict_one(
    tmp_path: Path,
    films: Callable[..., Path],
    record: Callable[..., Record],
    name: str,
    reply: str,
    official: int,
    robust: int,
) -> None:
    items = read(tmp_path, films("x.mp4", "y.mp4"), ALL).items
    (item,) = (i for i in items if name in [q.id for q in i.questions])
    said = {q.id: reply if q.id == name else "" for q in item.questions}
    marks = BENCH.marks(item, record(item, **said))
    found = {m.metric: m.value for m in marks if m.question.endswith(f"#{name}")}
    assert found == {"official": official, "robust": robust}


def test_scores_equal_those_by_hand(
    tmp_path: Path, films: Callable[..., Path], record: Callable[..., Record]
) -> None:
    now = {**BACKWARD, "id": 9, "task": "OCR", "video": "y.mp4", "gt": 0}
    x, y = read(tmp_path, films("x.mp4", "y.mp4"), [*ALL, now]).items
    marks: dict[str, Any] = {
        "x": BENCH.marks(x, record(x, **{"0": "B", "5_0": "2", "5_1": "12"})),
        "y": BENCH.marks(y, record(y, **{"6_0": "Yes", "6_1": "Yes", "7_0": "No", "9": "C"})),
    }
    tasks = sorted({m.task for found in marks.values() for m in found})
    found = {name: e.value for name, e in estimates(BENCH.scores(tasks), marks, draws=10).items()}
    # REC 1 of 2, SSR 1 of 2, CRR 1 of 1: forward is the mean of these three
    assert (found["EPM"], found["REC"], found["SSR"], found["CRR"]) == (100, 50, 50, 100)
    assert found["backward"] == 100
    assert found["real-time"] == 0
    assert found["forward"] == pytest.approx(200 / 3)
    assert found["all"] == pytest.approx((100 + 0 + 200 / 3) / 3)


def test_predictions_are_in_the_authors_three_lists(
    tmp_path: Path, films: Callable[..., Path], record: Callable[..., Record]
) -> None:
    items = read(tmp_path, films("x.mp4", "y.mp4"), ALL).items
    pairs = [(i, record(i, **{q.id: f"said {q.id}" for q in i.questions})) for i in items]
    found = json.loads(BENCH.predictions(pairs)["ovobench.json"])
    assert [(e["id"], e["response"], e["ground_truth"]) for e in found["backward"]] == [
        (0, "said 0", "B")
    ]
    assert found["realtime"] == []
    assert [e["id"] for e in found["forward"]] == [5, 6, 7]
    assert [i["response"] for i in found["forward"][0]["test_info"]] == ["said 5_0", "said 5_1"]


def test_answers_may_be_absent(
    tmp_path: Path, films: Callable[..., Path], record: Callable[..., Record]
) -> None:
    blind = {k: v for k, v in BACKWARD.items() if k not in ("gt", "answer")}
    (item,) = read(tmp_path, films("x.mp4"), [blind]).items
    made: Item = item
    assert BENCH.marks(made, record(made, **{"0": "B"})) == []
