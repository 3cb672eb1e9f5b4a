"""The judge: what is sent, what is read, and what happens when it is down or talks nonsense."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omnitide.errors import ConfigError, JudgeError
from omnitide.evaluation.judge import Judge
from omnitide.evaluation.judgement import JudgeUnit
from omnitide.evaluation.mark import Mark
from omnitide.evaluation.rubrics import SVBENCH_MARKS
from omnitide.evaluation.verdict import read_verdict

MARKS = {"SA": 8, "CC": 7, "LC": 6, "TU": -1, "IC": 5, "OS": 4}
UNIT = JudgeUnit("q", "dialogue", "Mark this.", dict(SVBENCH_MARKS))
PAIR = JudgeUnit("q", "c", "Which?", {"win": (0, 1)}, {"A": 1.0, "B": 0.0, "tie": 0.0})


def values(marks: tuple[Mark, ...] | None) -> dict[str, float] | None:
    return None if marks is None else {m.metric: m.value for m in marks}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(MARKS),
        f"```json\n{json.dumps(MARKS)}\n```",
        'Let me think {"SA": 1}. ' + json.dumps(MARKS) + " That is all.",
        json.dumps({k: f"{v}" for k, v in MARKS.items()}),
        json.dumps({k: float(v) for k, v in MARKS.items()}),
    ],
)
def test_marks_are_read_and_what_does_not_apply_is_dropped(text: str) -> None:
    expected = {"SA": 0.8, "CC": 0.7, "LC": 0.6, "IC": 0.5, "OS": 0.4}
    assert values(read_verdict(UNIT, text)) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8 of 10",
        "{",
        json.dumps({**MARKS, "SA": 11}),
        json.dumps({**MARKS, "SA": -1}),
        json.dumps({**MARKS, "TU": -2}),
        json.dumps({**MARKS, "SA": 7.5}),
        json.dumps({**MARKS, "SA": "high"}),
        json.dumps({**MARKS, "SA": True}),
        json.dumps({k: v for k, v in MARKS.items() if k != "OS"}),
        json.dumps([MARKS["SA"]]),
        '{"SA": ' + "[" * 90_000 + "}",
    ],
)
def test_nonsense_is_no_verdict_and_never_0(text: str) -> None:
    assert read_verdict(UNIT, text) is None


@pytest.mark.parametrize(
    ("text", "win"),
    [
        ('{"winner": "A"}', 1.0),
        ('{"winner": " b "}', 0.0),
        ('{"winner": "Tie"}', 0.0),
        ('{"winner": "C"}', None),
        ('{"better": "A"}', None),
        ("Commentary A", None),
    ],
)
def test_a_winner_is_read(text: str, win: float | None) -> None:
    assert values(read_verdict(PAIR, text)) == (None if win is None else {"win": win})


def make(server: Any, key: str | None = None, waits: list[float] | None = None) -> Judge:
    return Judge(server.url, "judge-1", key, sleep=(waits if waits is not None else []).append)


def test_what_is_sent(judge_server: Any) -> None:
    judge_server.answer = lambda prompt: f"heard: {prompt}"
    reply = make(judge_server, "secret").ask("Mark this.")
    assert (reply.text, reply.model, reply.usage) == (
        "heard: Mark this.", "judge-1", {"total_tokens": 7},
    )  # fmt: skip
    (body,) = judge_server.requests
    assert body["model"] == "judge-1"
    assert body["messages"] == [{"role": "user", "content": "Mark this."}]
    assert body["temperature"] == 0
    assert judge_server.headers["Authorization"] == "Bearer secret"


def test_a_model_that_refuses_old_fields_gets_the_new_ones(judge_server: Any) -> None:
    def answer(prompt: str) -> Any:
        body = judge_server.requests[-1]
        return (400, "unsupported: max_tokens") if "max_tokens" in body else "fine"

    judge_server.answer = answer
    judge = make(judge_server)
    assert judge.ask("a").text == judge.ask("b").text == "fine"
    first, second, third = judge_server.requests
    assert "max_tokens" in first
    for body in (second, third):
        assert "max_completion_tokens" in body
        assert "temperature" not in body


def test_a_busy_server_is_asked_again_later(judge_server: Any) -> None:
    codes = [(503, "busy"), (429, "slow down")]
    judge_server.answer = lambda prompt: codes.pop(0) if codes else "fine"
    waits: list[float] = []
    assert make(judge_server, waits=waits).ask("a").text == "fine"
    assert waits == [1.0, 2.0]


@pytest.mark.parametrize(
    ("said", "message", "requests"),
    [
        ((500, "broken"), "does not answer .HTTP 500: broken", 4),
        ((401, "no key"), "refuses .HTTP 401: no key", 1),
        ((404, "no model"), "refuses .HTTP 404", 1),
        ((400, "bad"), "refuses .HTTP 400", 2),
    ],
)
def test_a_server_that_fails_is_told(
    judge_server: Any, said: tuple[int, str], message: str, requests: int
) -> None:
    judge_server.answer = lambda prompt: said
    with pytest.raises(JudgeError, match=message):
        make(judge_server).ask("a")
    assert len(judge_server.requests) == requests


def test_a_server_that_is_not_there_is_told() -> None:
    judge = Judge("http://127.0.0.1:9/v1", "m", sleep=lambda seconds: None)
    with pytest.raises(JudgeError, match="does not answer"):
        judge.ask("a")


@pytest.mark.parametrize(
    "body", ["words", "{}", '{"choices": []}', "[1]", '{"choices": [{}]}', "[" * 90_000]
)
def test_an_answer_of_another_form_is_nonsense_and_no_error(judge_server: Any, body: str) -> None:
    judge_server.answer = lambda prompt: (200, body)
    assert make(judge_server).ask("a").text == body


@pytest.mark.parametrize(
    ("url", "model", "message"),
    [("localhost:8000", "m", "--judge-url"), ("ftp://x/v1", "m", "--judge-url"),
     ("http://[x/v1", "m", "--judge-url"), ("http://x:a/v1", "m", "--judge-url"),
     ("http://x:99999/v1", "m", "--judge-url"), ("http://:80/v1", "m", "--judge-url"),
     ("http://x/v 1", "m", "--judge-url"), ("http://x/\u00e9", "m", "--judge-url"),
     ("http://x/v1", "", "--judge-model")],
)  # fmt: skip
def test_a_judge_that_is_none_is_refused(url: str, model: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Judge(url, model)


@pytest.mark.parametrize("key", ["two\nlines", "cl\u00e9"])
def test_a_key_that_can_not_be_sent_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError, match="--judge-key-env") as caught:
        Judge("http://x/v1", "m", key)
    assert key not in str(caught.value)


@pytest.fixture
def dialogue(tmp_path: Path, films: Callable[..., Path]) -> tuple[Any, ...]:
    """Arguments of a run of SVBench: two films, a chain each."""
    folder = tmp_path / "data" / "Dialogue" / "Dialogue_EN"
    folder.mkdir(parents=True)
    for name in ("v1", "v2"):
        chain = {"questions": [f"Who is in {name}?"], "answers": ["Nobody at all."]}
        text = json.dumps([{"chain": chain, "qac_timestamps_end": 3.0}])
        (folder / f"{name}.json").write_text(text)
    where = films("v1.mp4", "v2.mp4")
    return (
        "svbench", "--data", tmp_path / "data", "--videos", where, "--out", tmp_path / "out",
        "--max-pixels", 56 * 56, "--backend", "reference", "--policy", "fifo,full",
        "--watermarks", "5000/3500",
    )  # fmt: skip


def asked(server: Any) -> tuple[Any, ...]:
    return ("--judge-url", server.url, "--judge-model", "judge-1")


def test_a_run_is_judged_once_and_equal_replies_alike(
    judge_server: Any, call: Callable[..., Any], dialogue: tuple[Any, ...], tmp_path: Path
) -> None:
    judge_server.answer = lambda prompt: json.dumps({**MARKS, "OS": 9 if "v1" in prompt else 2})
    done = call(*dialogue, *asked(judge_server), "--json")
    assert done.code == 0, done.err
    # watermarks that are never reached: the settings reply alike, so two prompts and not four
    assert len(judge_server.requests) == 2
    for part in done.json()["settings"]:
        scores = part["scores"]
        assert scores["dialogue, OS (judge)"]["value"] == pytest.approx((90 + 20) / 2)
        assert scores["dialogue, SA (judge)"]["value"] == pytest.approx(80)
        assert "dialogue, TU (judge)" not in scores  # -1 everywhere: no mark at all
        assert part["coverage"]["units"] == part["coverage"]["judged"] == 2
    assert done.json()["judges"] == ["judge-1"]
    assert call("judge", tmp_path / "out", *asked(judge_server)).code == 0
    assert len(judge_server.requests) == 2
    (line, *_) = (tmp_path / "out" / "judge.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert found["judge"] == "judge-1"
    assert json.loads(found["raw"])["SA"] == 8
    assert len(found["prompt_hash"]) == 64


def test_without_a_judge_none_is_asked(call: Callable[..., Any], dialogue: tuple[Any, ...]) -> None:
    found = call(*dialogue, "--json").json()
    assert found["judges"] == []
    scores = found["settings"][0]["scores"]
    assert "dialogue, token F1" in scores
    assert not [name for name in scores if "(judge)" in name]


def test_nonsense_is_unreadable_and_can_be_judged_again(
    judge_server: Any, call: Callable[..., Any], dialogue: tuple[Any, ...], tmp_path: Path
) -> None:
    judge_server.answer = lambda prompt: (
        json.dumps({**MARKS, "OS": 6}) if "v1" in prompt else "I think it is rather good."
    )
    done = call(*dialogue, *asked(judge_server), "--json")
    assert done.code == 0
    part = done.json()["settings"][0]
    assert part["scores"]["dialogue, OS (judge)"]["value"] == pytest.approx(60)  # and not 30
    assert (part["coverage"]["judged"], part["coverage"]["unavailable"]) == (1, 1)
    count = len(judge_server.requests)
    assert count == 1 + 2 * 3  # three tries for each setting
    judge_server.answer = lambda prompt: json.dumps({**MARKS, "OS": 2})
    again = call("judge", tmp_path / "out", *asked(judge_server), "--json")
    assert len(judge_server.requests) == count
    assert again.json()["settings"][0]["coverage"]["unavailable"] == 1
    mended = call("judge", tmp_path / "out", *asked(judge_server), "--retry-failed", "--json")
    part = mended.json()["settings"][0]
    assert part["coverage"]["unavailable"] == 0
    assert part["scores"]["dialogue, OS (judge)"]["value"] == pytest.approx((60 + 20) / 2)


def test_a_judge_that_goes_down_leaves_the_results_and_goes_on_later(
    judge_server: Any, call: Callable[..., Any], dialogue: tuple[Any, ...], tmp_path: Path
) -> None:
    judge_server.answer = lambda prompt: (
        json.dumps(MARKS) if len(judge_server.requests) == 1 else (403, "out of credit")
    )
    done = call(*dialogue, *asked(judge_server))
    assert done.code == 2
    assert "out of credit" in done.err
    assert "token F1" in done.out
    assert len((tmp_path / "out" / "judge.jsonl").read_text().splitlines()) == 1
    judge_server.answer = lambda prompt: json.dumps(MARKS)
    assert call("judge", tmp_path / "out", *asked(judge_server)).code == 0
    lines = (tmp_path / "out" / "judge.jsonl").read_text().splitlines()
    assert len(lines) == len({(json.loads(x)["setting"], json.loads(x)["question"]) for x in lines})
    assert len(lines) == 4


def test_judges_are_never_mixed(
    judge_server: Any, call: Callable[..., Any], dialogue: tuple[Any, ...], tmp_path: Path
) -> None:
    judge_server.answer = lambda prompt: json.dumps(MARKS) if "v1" in prompt else "?"
    assert call(*dialogue, *asked(judge_server)).code == 0
    judge_server.model = "judge-2"
    judge_server.answer = lambda prompt: json.dumps(MARKS)
    done = call("judge", tmp_path / "out", *asked(judge_server), "--retry-failed")
    assert done.code == 2
    assert "earlier judgements are by judge-1, this one by judge-2" in done.err


def test_what_needs_no_judge_says_so(
    judge_server: Any, call: Callable[..., Any], small: tuple[Any, ...], tmp_path: Path
) -> None:
    assert call(*small, "--out", tmp_path / "out", "--limit", 1).code == 0
    done = call("judge", tmp_path / "out", *asked(judge_server))
    assert done.code == 2
    assert "streamingbench needs none" in done.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "name a judge"),
        (("--judge-url", "http://x/v1"), "go together"),
        (("--judge-model", "m"), "go together"),
    ],
)
def test_half_a_judge_is_refused(
    call: Callable[..., Any], tmp_path: Path, given: tuple[str, ...], message: str
) -> None:
    done = call("judge", tmp_path, *given)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
