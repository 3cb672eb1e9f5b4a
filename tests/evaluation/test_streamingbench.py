"""StreamingBench: its files with their oddities, its prompts, its scores by hand."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnitide.errors import ConfigError
from omnitide.evaluation.bootstrap import estimates
from omnitide.evaluation.dataset import Dataset, Reading
from omnitide.evaluation.film import Film
from omnitide.evaluation.item import Item, Poll, Question
from omnitide.evaluation.record import Answer, Record
from omnitide.evaluation.streamingbench import StreamingBench
from omnitide.evaluation.streamingbench_fixes import repaired
from omnitide.evaluation.streamingbench_rows import task_name

BENCH = StreamingBench()


def read(streaming: Any, folder: Path, **options: Any) -> Dataset:
    return BENCH.read(Reading((streaming.folder,), folder, **options))


def kinds(dataset: Dataset) -> dict[str, int]:
    found: dict[str, int] = {}
    for problem in dataset.problems:
        if problem.kind != "unexpected count":
            found[problem.kind] = found.get(problem.kind, 0) + 1
    return found


def test_a_film_is_followed_once_and_asked_in_the_order_of_moments(
    streaming: Any, films: Callable[..., Path], ask: Callable[..., Any]
) -> None:
    questions = [ask("00:00:07"), ask("0:00:03"), ask("00:05")]
    entry = {"video_path": "./videos/sample_7_real.mp4", "questions": questions}
    streaming.write("questions_real_stream.json", [entry])
    found = read(streaming, films("sample_7_real.mp4"))
    (item,) = found.items
    assert item.id == item.clip == "sample_7_real"
    assert [(q.id, q.at, q.expected, q.task) for q in item.questions] == [
        ("0", 7.0, "B", "Counting"), ("1", 3.0, "B", "Counting"), ("2", 5.0, "B", "Counting"),
    ]  # fmt: skip
    assert isinstance(item.source, Film)
    assert (item.source.sound, item.source.start, item.source.stop) == (True, 0.0, None)
    assert kinds(found) == {"note": 1}  # not in the order of their moments
    prompt = item.questions[0].prompt
    assert "Question: What is seen at 00:00:07?\nOptions:\nA. a disc\nB. a bar" in prompt
    assert prompt.endswith("The best option is:")


def test_options_get_letters_only_where_the_first_has_none(
    streaming: Any, films: Callable[..., Path], ask: Callable[..., Any]
) -> None:
    questions = [ask("00:00:03", options=["one", "two", "three", "four"])]
    streaming.write("questions_real_stream.json", [{"video_path": "a.mp4", "questions": questions}])
    (item,) = read(streaming, films("a.mp4")).items
    assert "A. one\nB. two\nC. three\nD. four" in item.questions[0].prompt


@pytest.mark.parametrize(("context", "start"), [(60.0, 132.0 - 60), (None, 0.0), (200.0, 0.0)])
def test_the_official_protocol_has_a_session_for_each_question(
    streaming: Any,
    films: Callable[..., Path],
    ask: Callable[..., Any],
    context: float | None,
    start: float,
) -> None:
    entries = [{"video_path": "a.mp4", "questions": [ask("00:02:12"), ask("00:02:20")]}]
    streaming.write("questions_real.json", entries)
    found = read(streaming, films("a.mp4"), protocol="official", context=context)
    assert [item.id for item in found.items] == ["a/0", "a/1"]
    assert {item.clip for item in found.items} == {"a"}
    source = found.items[0].source
    assert isinstance(source, Film)
    assert (source.start, source.stop) == (start, 132.0)


def test_sequential_questions_are_told_the_right_answers_before_them(
    streaming: Any, films: Callable[..., Path], ask: Callable[..., Any]
) -> None:
    task = "Sequential Question Answering"
    rows = [ask("00:00:03", task, "C"), ask("00:00:06", task, "B")]
    nested = [[{"video_path": "a.mp4", "questions": [row]} for row in rows]]  # a list a video
    streaming.write("questions_sqa.json", nested)
    first, second = read(streaming, films("a.mp4"), protocol="official").items
    assert "conversation" not in first.questions[0].prompt
    assert "At 0:00:03 the question was: What is seen at 00:00:03?" in second.questions[0].prompt
    assert "The answer was: C." in second.questions[0].prompt


def test_known_faults_are_mended_and_told(
    streaming: Any, films: Callable[..., Path], ask: Callable[..., Any]
) -> None:
    split = ["A. red", "green", "B. blue", "C. white", "D. black", "E. .", "F. Translated"]
    entries = [
        {"video_path": "sample_132_real.mp4", "questions": [ask("00:12450")]},
        {"video_path": "sample_3_real.mp4", "questions": [ask("00:00:04", options=split)]},
    ]
    streaming.write("questions_real_stream.json", entries)
    folder = films("sample_132_real.mp4", "sample_3_real.mp4")
    found = read(streaming, folder)
    assert [item.questions[0].at for item in found.items] == [12 * 60 + 45, 4.0]
    assert (
        "A. red, green\nB. blue\nC. white\nD. black\nThe best" in found.items[1].questions[0].prompt
    )
    assert kinds(found) == {"fixed": 2}
    plain = read(streaming, folder, as_published=True)
    assert plain.items[0].questions[0].at == 12450
    assert "A. red\ngreen\nB. blue\nC. white\nThe best" in plain.items[1].questions[0].prompt
    assert kinds(plain) == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("A. x", "B. y", "C. z", "D. w"), ("A. x", "B. y", "C. z", "D. w")),
        (("A. x", "B. y", "more y", "C. z", "D. w"), ("A. x", "B. y, more y", "C. z", "D. w")),
        (("A. x", "B. y", "C. z", "D. w", "E. ."), ("A. x", "B. y", "C. z", "D. w")),
        (("p", "q", "r", "s", "t"), ("p", "q", "r", "s")),
    ],
)
def test_options_are_joined_again(options: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert repaired(options) == expected


@pytest.mark.parametrize(
    ("written", "task"),
    [
        ("Anomaly Context Understanding", "Anomaly Context"),
        ("Misleading_Context_Understanding", "Misleading Context"),
        ("text-rich understanding", "Text-Rich Understanding"),
        ("Counting", "Counting"),
        ("Juggling", "Juggling"),
    ],
)
def test_tasks_have_one_name(written: str, task: str) -> None:
    assert task_name(written) == task


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"time_stamp": "soon"}, "hh:mm:ss"),
        ({"time_stamp": "-00:00:04"}, "at least 0"),
        ({"time_stamp": None}, "hh:mm:ss"),
        ({"options": "A. x"}, "options must be a list"),
        ({"options": ["A. x"]}, "at least two"),
        ({"answer": "nothing"}, "a letter"),
        ({"question": "  "}, "must be text"),
        ({"question": 7}, "must be text"),
    ],
)
def test_a_malformed_row_is_listed_and_the_others_stay(
    streaming: Any,
    films: Callable[..., Path],
    ask: Callable[..., Any],
    change: dict[str, Any],
    reason: str,
) -> None:
    rows = [ask("00:00:03"), {**ask("00:00:04"), **change}, ask("00:00:05")]
    streaming.write("questions_real_stream.json", [{"video_path": "a.mp4", "questions": rows}])
    found = read(streaming, films("a.mp4"))
    assert len(found.items[0].questions) == 2
    (problem,) = (p for p in found.problems if p.kind == "malformed row")
    assert reason in problem.what
    assert problem.where == "questions_real_stream.json entry 0 question 1"
    assert problem.questions == 1


def test_rows_without_keys_and_entries_of_other_kinds_are_malformed(
    streaming: Any, films: Callable[..., Path], ask: Callable[..., Any]
) -> None:
    row = ask("00:00:03")
    del row["time_stamp"]
    entries = [{"video_path": "a.mp4", "questions": [row, "?"]}, {"video_path": "a.mp4"}, 5, None]
    streaming.write("questions_real_stream.json", [*entries])
    found = read(streaming, films("a.mp4"))
    assert found.items == ()
    whats = [p.what for p in found.problems if p.kind == "malformed row"]
    assert len(whats) == 5
    assert "lacks 'time_stamp'" in whats[0]
    with pytest.raises(ConfigError, match=r"no item is left to run; .* problems?, such as"):
        found.selected()


def test_missing_films_are_listed_with_their_questions(
    streaming: Any, films: Callable[..., Path], ask: Callable[..., Any]
) -> None:
    entries = [
        {"video_path": f"./videos/sample_{i}_real.mp4", "questions": [ask("00:00:03")] * 2}
        for i in range(3)
    ]
    streaming.write("questions_real_stream.json", entries)
    found = read(streaming, films("sample_1_real.mp4"))
    assert [item.id for item in found.items] == ["sample_1_real"]
    missing = [p for p in found.problems if p.kind == "missing clip"]
    assert [(p.where, p.questions) for p in missing] == [
        ("sample_0_real", 2), ("sample_2_real", 2),
    ]  # fmt: skip
    assert "./videos/sample_0_real.mp4" in missing[0].what
    assert kinds(found)["doubled row"] == 3  # the same question at the same moment


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("./videos/sample_7_real.mp4", "videos/sample_7_real.mp4"),
        ("./videos/sample_7_real.mp4", "deep/er/sample_7_real.mkv"),
        ("./videos/sample_7_real.mp4", "real/sample_7/any name.mp4"),
        ("./videos/sample_7_real.mp4", "Real-Time Visual Understanding_1-50/sample_7/x.mp4"),
        (
            "./videos/sample_2_Scene_Understanding_1-25.mp4",
            "data/omni/Scene Understanding_1-25/sample_2/v.mp4",
        ),
        ("./videos/sample_3_sqa.mp4", "Sequential Question Answering_1-25/sample_3/v.mp4"),
    ],
)
def test_films_are_found_however_they_were_unpacked(
    streaming: Any, films: Callable[..., Path], ask: Callable[..., Any], path: str, where: str
) -> None:
    entries = [{"video_path": path, "questions": [ask("00:00:03")]}]
    streaming.write("questions_real_stream.json", entries)
    folder = films(where, "other/sample_8/x.mp4")
    (item,) = read(streaming, folder).items
    assert isinstance(item.source, Film)
    assert item.source.path == str(folder / where)


def test_a_csv_of_a_mirror_is_read(
    streaming: Any, films: Callable[..., Path], ask: Callable[..., Any]
) -> None:
    streaming.folder.mkdir()
    path = streaming.folder / "Real_Time_Visual_Understanding.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        names = "question_id,task_type,question,time_stamp,answer,options,frames_required"
        writer = csv.DictWriter(file, names.split(","))
        writer.writeheader()
        writer.writerow({
            "question_id": "Real-Time Visual Understanding_sample_7_2",
            "task_type": "Counting", "question": "How many?", "time_stamp": "00:00:04",
            "answer": "C", "options": "['A. 1', 'B. 2', 'C. 3', 'D. 4']",
        })  # fmt: skip
    found = BENCH.read(Reading((path,), films("sample_7_real.mp4")))
    (item,) = found.items
    assert item.questions[0].expected == "C"
    assert json.loads(item.questions[0].tags["options"]) == ["A. 1", "B. 2", "C. 3", "D. 4"]


@pytest.mark.parametrize(
    ("options", "message"), [("[" * 90_000, "options must be"), ("-" * 90_000, "options must be")]
)
def test_options_without_end_are_malformed(
    streaming: Any, films: Callable[..., Path], options: str, message: str
) -> None:
    streaming.folder.mkdir()
    path = streaming.folder / "mirror.csv"
    head = "question_id,task_type,question,time_stamp,answer,options"
    path.write_text(f"{head}\na_sample_7_2,Counting,How many?,00:00:04,C,{options}\n")
    (problem,) = BENCH.read(Reading((path,), films("sample_7_real.mp4"))).problems
    assert problem.kind == "malformed row"
    assert problem.what.startswith(message)
    assert len(problem.what) < 400


def test_a_csv_whose_quote_never_ends_is_refused(
    streaming: Any, films: Callable[..., Path]
) -> None:
    streaming.folder.mkdir()
    path = streaming.folder / "mirror.csv"
    rows = "sample_1_1,a question,00:00:04\n" * 5000
    path.write_text(f'question_id,question,time_stamp\nx,"{rows}')
    with pytest.raises(ConfigError, match="must be CSV"):
        BENCH.read(Reading((path,), films("a.mp4")))


def test_the_published_counts_are_compared(
    streaming: Any, films: Callable[..., Path], ask: Callable[..., Any]
) -> None:
    entries = [{"video_path": "a.mp4", "questions": [ask("00:00:03")]}]
    streaming.write("questions_real_stream.json", entries)
    (problem,) = read(streaming, films("a.mp4")).problems
    assert (problem.kind, problem.what) == ("unexpected count", "1 questions, 2495 were published")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("questions_real_stream.json", {"a": 1}, "must hold a list of videos"),
        ("other.json", [], "holds none of questions_real_stream.json"),
    ],
)
def test_files_of_another_kind_are_refused(
    streaming: Any, films: Callable[..., Path], name: str, content: Any, message: str
) -> None:
    streaming.write(name, content)
    with pytest.raises(ConfigError, match=message):
        read(streaming, films("a.mp4"))


def proactive(streaming: Any, folder: Path, protocol: str) -> Item:
    row = {
        "task_type": "Proactive Output", "question": 'When it turns, output "3".',
        "time_stamp": "00:00:20", "ground_truth_time_stamp": "00:00:29",
        "ground_truth_output": "3",
    }  # fmt: skip
    entries = [{"video_path": "a.mp4", "questions": [row]}]
    streaming.write("questions_proactive.json", entries)
    (item,) = read(streaming, folder, protocol=protocol).items
    return item


@pytest.mark.parametrize(("protocol", "start"), [("stream", 0.0), ("official", 20.0)])
def test_proactive_questions_are_polled(
    streaming: Any, films: Callable[..., Path], protocol: str, start: float
) -> None:
    item = proactive(streaming, films("a.mp4"), protocol)
    (poll,) = item.questions
    assert isinstance(poll, Poll)
    assert (poll.at, poll.until, poll.every, poll.accepts) == (21.0, 33.0, 1.0, "yes")
    assert poll.then == 'When it turns, output "3".'
    assert '"3"' in poll.prompt
    assert isinstance(item.source, Film)
    assert item.source.start == start


@pytest.mark.parametrize(
    ("asked", "reply", "time", "answer"),
    [
        (29.0, "It is 3 now", 1, 1),
        (27.0, "3", 1, 1),
        (31.0, "three", 1, 0),
        (32.0, "3", 0, 0),
        (26.0, "3", 0, 0),
        (None, None, 0, 0),
    ],
)
def test_proactive_answers_must_come_within_two_seconds(
    streaming: Any,
    films: Callable[..., Path],
    asked: float | None,
    reply: str | None,
    time: int,
    answer: int,
) -> None:
    item = proactive(streaming, films("a.mp4"), "stream")
    found = Record(item.id, item.clip, "full", (Answer("0", reply, asked),))
    assert {m.metric: m.value for m in BENCH.marks(item, found)} == {"time": time, "answer": answer}


def question(name: str, task: str, expected: str | None = "B") -> Question:
    return Question(
        name, "?", 1.0, expected, task,
        tags={
            "question": "?", "options": '["A. x", "B. y", "C. z", "D. w"]', "stamp": "00:00:01",
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reply", "official", "robust"),
    [
        ("B", 1, 1),
        ("B. y", 1, 1),
        ("Because", 1, 0),
        ("b", 0, 0),
        (" B", 0, 1),
        ("The answer is B.", 0, 1),
        ("(B)", 0, 1),
        ("A", 0, 0),
        ("A or B", 0, 0),
        ("y", 0, 1),
        ("", 0, 0),
        (None, 0, 0),
    ],
)
def test_a_choice_is_marked_by_the_official_and_by_a_robust_rule(
    reply: str | None,
    official: int,
    robust: int,
    item: Callable[..., Item],
    record: Callable[..., Record],
) -> None:
    made = item("a", question("0", "Counting"))
    marks = BENCH.marks(made, record(made, **{"0": reply}))
    assert {m.metric: m.value for m in marks} == {"official": official, "robust": robust}


def test_scores_equal_those_by_hand(
    item: Callable[..., Item], record: Callable[..., Record]
) -> None:
    # Counting 1 of 3, Event 1 of 1, Emotion 0 of 2, Misleading 1 of 1
    replies = {
        "a": [("Counting", "B"), ("Counting", "A"), ("Event Understanding", "B")],
        "b": [("Counting", "C"), ("Emotion Recognition", "D"), ("Misleading Context", "B")],
        "c": [("Emotion Recognition", "")],
    }
    marks = {}
    for clip, given in replies.items():
        made = item(clip, *(question(str(i), task) for i, (task, _) in enumerate(given)))
        said = {str(i): reply for i, (_, reply) in enumerate(given)}
        marks[clip] = BENCH.marks(made, record(made, **said))
    tasks = sorted({mark.task for found in marks.values() for mark in found})
    found = {name: e.value for name, e in estimates(BENCH.scores(tasks), marks, draws=10).items()}
    assert found["Counting"] == pytest.approx(100 / 3)
    assert found["Event Understanding"] == 100
    assert found["Emotion Recognition"] == 0
    assert found["real-time"] == 50  # 2 of 4 questions
    assert found["real-time, mean of tasks"] == pytest.approx((100 / 3 + 100) / 2)
    assert found["omni-source"] == 0
    assert found["contextual"] == 100
    assert found["all"] == pytest.approx(100 * 3 / 7)


def test_unanswerable_questions_have_no_mark(
    item: Callable[..., Item], record: Callable[..., Record]
) -> None:
    made = item("a", question("0", "Counting", None))
    assert BENCH.marks(made, record(made, **{"0": "B"})) == []


def test_predictions_have_the_place_that_the_authors_scorer_reads(
    item: Callable[..., Item], record: Callable[..., Record]
) -> None:
    made = item("a", question("0", "Counting"), path="./videos/a.mp4")
    (text,) = BENCH.predictions([(made, record(made, **{"0": "B. y"}))]).values()
    (entry,) = json.loads(text)
    assert entry["video_path"] == "./videos/a.mp4"
    assert entry["questions"][0]["omnitide"] == "B. y"
    assert entry["questions"][0]["answer"] == "B"


@pytest.mark.parametrize(
    ("asked", "reply", "time", "content"), [(29.0, "3", 29.0, "3"), (None, None, 33.0, "")]
)
def test_predictions_of_polls_end_with_the_last_turn(
    streaming: Any,
    films: Callable[..., Path],
    asked: float | None,
    reply: str | None,
    time: float,
    content: str,
) -> None:
    item = proactive(streaming, films("a.mp4"), "stream")
    found = Record(item.id, item.clip, "full", (Answer("0", reply, asked),))
    (entry,) = json.loads(BENCH.predictions([(item, found)])["streamingbench.json"])
    (question,) = entry["questions"]
    last = question["omnitide"]["dialog_history"][-1]
    assert (last["time"], last["content"]) == (time, content)
    assert question["ground_truth_time_stamp"] == "0:00:29"
