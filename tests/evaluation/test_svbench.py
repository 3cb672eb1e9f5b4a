"""SVBench: its folders, its two tracks, its marks by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnitide.errors import ConfigError
from omnitide.evaluation.dataset import Dataset, Reading
from omnitide.evaluation.record import Record
from omnitide.evaluation.svbench import SVBench

BENCH = SVBench()


def chain(stop: Any, *pairs: tuple[str, str]) -> dict[str, Any]:
    return {
        "chain": {"questions": [q for q, _ in pairs], "answers": [a for _, a in pairs]},
        "qac_timestamps_start": 0.0,
        "qac_timestamps_end": stop,
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """`write(dialogue=..., streaming=..., names=..., nested=False)`: a data set's folder."""

    def write(
        dialogue: dict[str, Any] | None = None,
        streaming: dict[str, Any] | None = None,
        names: list[str] | None = None,
        nested: bool = False,
    ) -> Path:
        top = tmp_path / "data"
        root = top / "SVBench" if nested else top
        for kind, content in (("Dialogue", dialogue), ("Streaming", streaming)):
            folder = root / kind / f"{kind}_EN"
            folder.mkdir(parents=True)
            for name, entries in (content or {}).items():
                (folder / f"{name}.json").write_text(json.dumps(entries))
        if names is not None:
            meta = root / "Meta" / "Meta_EN"
            meta.mkdir(parents=True)
            lines = ["Video_Name,Sort_of_Set,Path_of_Streaming,Path_of_Video,Video_Duration"]
            lines += [f"{n},Test,SVBench/Path/{n}.json,SVBench/Video/{n}.mp4,8.0" for n in names]
            (meta / "meta_test.csv").write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
        return top

    return write


def read(data: Path, folder: Path, track: str = "") -> Dataset:
    return BENCH.read(Reading((data,), folder, track=track))


def kinds(found: Dataset) -> list[str]:
    return sorted(p.kind for p in found.problems)


@pytest.mark.parametrize("nested", [False, True])
def test_a_dialogue_asks_each_chain_at_its_end(
    write: Callable[..., Path], films: Callable[..., Path], nested: bool
) -> None:
    entries = [
        chain(3.5, ("Who?", "A man."), ("Where?", "At sea.")),
        chain("00:00:06.250", ("Why?", "Fun.")),
        {},
        chain("7", ("When?", "Now.")),
    ]
    data = write({"v1": entries, "train": entries}, names=["v1"], nested=nested)
    found = read(data, films("Video/v1.mp4", "train.mp4"))
    (item,) = found.items
    assert (item.id, item.clip) == ("v1", "v1")
    assert [(q.id, q.at, q.expected) for q in item.questions] == [
        ("0.0", 3.5, "A man."), ("0.1", 3.5, "At sea."),
        ("1.0", 6.25, "Fun."), ("3.0", 7.0, "Now."),
    ]  # fmt: skip
    assert item.questions[0].prompt.startswith("Who?")
    assert kinds(found) == ["note", "unexpected count"]  # an empty chain; 1 video of 200


def test_a_path_is_a_session_of_its_own(
    write: Callable[..., Path], films: Callable[..., Path]
) -> None:
    paths = [
        {"questions": ["a?", "b?"], "answers": ["1", "2"], "timestamps": [[0, 3], [2, 6.5]]},
        {"questions": ["c?"], "answers": ["3"], "timestamps": [[1, 2]]},
    ]
    data = write(streaming={"v1": paths}, names=["v1"])
    found = read(data, films("v1.mp4"), "streaming")
    assert [(i.id, i.clip) for i in found.items] == [("v1/path0", "v1"), ("v1/path1", "v1")]
    assert [q.at for q in found.items[0].questions] == [3.0, 6.5]


def test_what_is_wrong_is_listed(write: Callable[..., Path], films: Callable[..., Path]) -> None:
    good = chain(3, ("Who?", "A man."))
    entries = [
        good,
        chain("later", ("x?", "y")),
        {**good, "chain": {"questions": ["a?", "b?"], "answers": ["1"]}},
        {"chain": {"questions": [""], "answers": [""]}, "qac_timestamps_end": 3},
        7,
    ]
    data = write({"v1": entries, "v2": [good]}, names=["v1", "v2", "v3", ""])
    found = read(data, films("v1.mp4"))
    assert [len(i.questions) for i in found.items] == [1]
    missing = [(p.where, p.questions) for p in found.problems if p.kind == "missing clip"]
    assert missing == [("v2", 1)]
    malformed = [p.what for p in found.problems if p.kind == "malformed row"]
    assert len(malformed) == 6  # four chains, v3 without a file, a row without a name
    assert "2 questions have 1 answers" in " ".join(malformed)
    assert "must be an object, got 7; left out" in malformed


def test_without_a_list_every_file_is_read(
    write: Callable[..., Path], films: Callable[..., Path]
) -> None:
    data = write({"v1": [chain(3, ("a?", "b"))], "v2": [chain(3, ("a?", "b"))]})
    found = read(data, films("v1.mp4", "v2.mp4"))
    assert [i.id for i in found.items] == ["v1", "v2"]
    assert kinds(found) == ["note"]


@pytest.mark.parametrize(
    ("track", "message"),
    [("songs", "--track must be"), ("dialogue-fr", "--track"), ("dialogue-zh", "Dialogue_ZH")],
)
def test_tracks_that_are_none_are_refused(
    write: Callable[..., Path], films: Callable[..., Path], track: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(write({}), films(), track)


def test_answers_may_be_absent(
    write: Callable[..., Path], films: Callable[..., Path], record: Callable[..., Record]
) -> None:
    entries = [{"chain": {"questions": ["a?"]}, "qac_timestamps_end": 3}]
    (item,) = read(write({"v1": entries}), films("v1.mp4")).items
    made = record(item, **{"0.0": "words"})
    assert BENCH.marks(item, made) == []
    assert BENCH.units(item, made) == []
    (text,) = BENCH.predictions([(item, made)]).values()
    assert json.loads(text) == [{"questions": ["a?"], "gt_answers": [""], "answers": ["words"]}]


def test_overlap_with_the_reference_by_hand(
    write: Callable[..., Path], films: Callable[..., Path], record: Callable[..., Record]
) -> None:
    entries = [chain(3, ("a?", "the red cat sat"), ("b?", "nothing"))]
    (item,) = read(write({"v1": entries}), films("v1.mp4")).items
    made = record(item, **{"0.0": "The cat is red", "0.1": ""})
    found = {(m.question, m.metric): m.value for m in BENCH.marks(item, made)}
    # the, cat, red are shared: 3 of 4 and 3 of 4; in order only two of them
    assert found["v1#0.0", "token-f1"] == pytest.approx(0.75)
    assert found["v1#0.0", "rouge-l"] == pytest.approx(0.5)
    assert found["v1#0.1", "token-f1"] == found["v1#0.1", "rouge-l"] == 0


def test_a_judge_is_given_a_chain_as_one(
    write: Callable[..., Path], films: Callable[..., Path], record: Callable[..., Record]
) -> None:
    entries = [chain(3, ("a?", "one"), ("b?", "two")), chain(5, ("c?", "three"))]
    (item,) = read(write({"v1": entries}), films("v1.mp4")).items
    units = BENCH.units(item, record(item, **{"0.0": "un", "0.1": "deux", "1.0": "trois"}))
    assert [u.question for u in units] == ["v1#0", "v1#1"]
    assert set(units[0].marks) == {"SA", "CC", "LC", "TU", "IC", "OS"}
    assert units[0].marks["TU"] == (-1, 10)
    for words in ("a?", "one", "un", "b?", "two", "deux"):
        assert words in units[0].prompt
    assert "trois" not in units[0].prompt
