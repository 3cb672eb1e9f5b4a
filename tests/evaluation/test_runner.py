"""The runner: what happens when, against a session that is led by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide import MediaOptions, Session
from omnitide.backends import load_backend
from omnitide.errors import ConfigError
from omnitide.evaluation.film import Film
from omnitide.evaluation.item import Item, Note, Poll, Question
from omnitide.evaluation.item_run import moments
from omnitide.evaluation.record import Record
from omnitide.evaluation.runner import Runner, RunOptions
from omnitide.evaluation.setting import Setting, parse_policies, parse_watermarks, sweep
from omnitide.media.reader import open_media
from omnitide.models import load_model

MEDIA = MediaOptions(fps=1.0, chunk_seconds=1.0, max_pixels=56 * 56)
TIGHT = Setting("omnipick", 200, 150)
FULL = Setting("full")


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[..., Path]) -> Any:
    """A random Qwen2.5-Omni on the NumPy backend in float32."""
    backend = load_backend("reference", "float32")
    return backend.run(load_model, tiny_checkpoint(), backend, media=MEDIA)


@pytest.fixture
def runner(model: Any) -> Runner:
    """A runner of the model, one frame a second."""
    return Runner(model, RunOptions(MEDIA))


def by_hand(model: Any, film: Path, setting: Setting, steps: list[Any]) -> list[str]:
    """Replies of a session led step by step: a number follows so many chunks, a text is asked."""
    session = Session(
        model, policy=setting.policy, retention=setting.retention(model.defaults), max_tokens=5
    )
    replies = []
    with open_media(str(film), MEDIA) as reader:
        for step in steps:
            if isinstance(step, str):
                replies.append("".join(r.text for r in session.ask(step)))
            elif isinstance(step, Note):
                session.append_text(step.text)
            else:
                for _ in range(step):
                    session.append_media(next(reader))
    return replies


@pytest.mark.parametrize("setting", [TIGHT, FULL])
def test_history_persists_over_media_texts_and_replies(
    runner: Runner, model: Any, film: Path, setting: Setting
) -> None:
    note = Note("Remember 17.", 5.0)
    events = (
        Question("late", "And now?", None, max_tokens=5),
        Question("b", "Second?", 6.4, max_tokens=5),
        note,
        Question("a", "First?", 3.0, max_tokens=5),
        Question("a2", "Again?", 3.0, max_tokens=5),
    )
    record = runner.run(Item("x", "x", Film(str(film)), events), setting)
    assert record.error is None
    expected = by_hand(
        model, film, setting, [3, "First?", "Again?", 2, note, 1, "Second?", 2, "And now?"]
    )
    assert [a.question for a in record.answers] == ["a", "a2", "b", "late"]
    assert [a.text for a in record.answers] == expected
    assert [a.asked for a in record.answers] == [3.0, 3.0, 6.0, 8.0]
    assert not any(a.past_end for a in record.answers)
    assert record.clip_seconds == 8.0


@pytest.mark.parametrize("setting", [TIGHT, FULL])
def test_a_question_aside_is_not_seen_by_later_ones(
    runner: Runner, film: Path, setting: Setting
) -> None:
    aside = Question("a", "Second?", 4.0, max_tokens=5, aside=True)
    last = Question("z", "And now?", None, max_tokens=5)
    clip = Film(str(film))
    both, alone, stays = (
        runner.run(Item("x", "x", clip, events), setting).answers
        for events in ((aside, last), (last,), (replace(aside, aside=False), last))
    )
    assert [a.question for a in both] == ["a", "z"]
    assert both[0].text == stays[0].text
    assert both[1].text == alone[0].text
    assert both[1].tokens_seen == alone[0].tokens_seen < stays[1].tokens_seen


def test_no_question_sees_beyond_its_moment(runner: Runner, film: Path) -> None:
    source = Film(str(film), 2.0, 5.5, sound=False)
    asked = Question("q", "What?", 4.9, max_tokens=2)
    cut = runner.run(Item("x", "x", Film(str(film), 2.0, 4.0, sound=False), (asked,)), FULL)
    whole = runner.run(Item("x", "x", source, (asked,)), FULL)
    assert whole.answers[0].asked == cut.answers[0].asked == 4.0
    assert whole.answers[0].text == cut.answers[0].text
    assert whole.answers[0].tokens_seen == cut.answers[0].tokens_seen
    assert whole.clip_seconds == 3.5


def test_a_question_behind_the_end_is_asked_there_and_told(runner: Runner, film: Path) -> None:
    events = (Question("q", "What?", 8.5, max_tokens=1), Question("r", "What?", 60.0, max_tokens=1))
    record = runner.run(Item("x", "x", Film(str(film)), events), TIGHT)
    assert [(a.question, a.asked, a.past_end) for a in record.answers] == [
        ("q", 8.0, False), ("r", 8.0, True),
    ]  # fmt: skip


class Scripted(Session):
    """A session that says what it is told to, by prompt."""

    script: dict[str, list[str]]
    asked: list[tuple[float, str]]

    def ask(self, prompt: str, **options: Any) -> Any:
        from dataclasses import replace

        self.asked.append((self.time, prompt))
        said = self.script[prompt].pop(0)
        for piece in super().ask(prompt, max_tokens=1):
            yield replace(piece, text=said)


@pytest.mark.parametrize(
    ("says", "polls", "asked"),
    [
        (["no", "Well, YES.", "no"], 2, 3.0),
        (["yes"], 1, 2.0),
        (["no", "no", "no"], 3, None),
    ],
)
def test_a_poll_goes_on_until_the_model_agrees(
    model: Any,
    film: Path,
    monkeypatch: pytest.MonkeyPatch,
    says: list[str],
    polls: int,
    asked: float | None,
) -> None:
    log: list[tuple[float, str]] = []

    def open_session(self: Runner, item: Item, setting: Setting) -> Session:
        session = Scripted(model, max_tokens=4)
        session.script, session.asked = {"Now?": list(says), "Say it": ["3"]}, log
        return session

    monkeypatch.setattr(Runner, "open_session", open_session)
    poll = Poll("p", "Now?", at=2.0, until=4.0, then="Say it")
    record = Runner(model, RunOptions(MEDIA)).run(Item("x", "x", Film(str(film)), (poll,)), FULL)
    (answer,) = record.answers
    assert (answer.question, answer.polls, answer.asked) == ("p", polls, asked)
    assert answer.reply == (None if asked is None else "3")
    expected = [(2.0 + i, "Now?") for i in range(polls)]
    assert log == expected + ([] if asked is None else [(asked, "Say it")])


def test_polls_end_with_the_clip(runner: Runner, film: Path) -> None:
    poll = Poll("p", "Now?", at=6.0, until=40.0, then="?", accepts="no such word", max_tokens=1)
    record = runner.run(Item("x", "x", Film(str(film)), (poll,)), FULL)
    assert record.answers[0].polls == 4  # at 6, 7, 8, and 9, which is within a second of the end


def test_watched_ranges_tell_what_is_kept(runner: Runner, film: Path) -> None:
    watched = ((0.0, 1.0), (7.0, 8.0), (3.0, 5.0), (20.0, 30.0))
    question = Question("q", "What?", None, max_tokens=1, watched=watched)
    item = Item("x", "x", Film(str(film)), (question,))
    full, cut = runner.run(item, FULL).answers[0], runner.run(item, TIGHT).answers[0]
    assert full.kept[0][0] == full.kept[0][1] > 0
    assert full.kept[2][1] == full.kept[0][1] + full.kept[1][1]
    assert full.kept[3] == (0, 0)
    assert [there for _, there in cut.kept] == [there for _, there in full.kept]
    assert cut.kept[0][0] < full.kept[0][0]  # the oldest second was cut
    assert cut.kept[1] == full.kept[1]  # the newest is whole
    assert cut.tokens_kept < cut.tokens_seen == full.tokens_seen == full.tokens_kept


def test_warming_up_leaves_nothing_behind(runner: Runner, film: Path) -> None:
    item = Item("x", "x", Film(str(film)), (Question("q", "What?", 5.0, max_tokens=4),))
    before = runner.run(item, TIGHT)
    runner.warm_up(item, TIGHT)
    runner.warm_up(Item("y", "y", Film("nowhere.mp4"), item.events), TIGHT)
    assert runner.run(item, TIGHT).answers[0].text == before.answers[0].text


def test_a_long_prompt_fits_whatever_the_units_are(runner: Runner, film: Path) -> None:
    events = (Question("q", "word " * 400, None, max_tokens=1), Note("text " * 300, 2.0))
    record = runner.run(Item("x", "x", Film(str(film)), events), TIGHT)
    assert record.error is None
    assert len(record.answers) == 1


def test_a_clip_that_breaks_off_fails_its_item(runner: Runner, film: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.mkv"
    from omnitide.media.clip import ClipPicture, ClipSound, write_film

    write_film(torn, 8, ClipPicture(width=56, height=56, fps=2.0), ClipSound())
    data = torn.read_bytes()
    torn.write_bytes(data[: len(data) // 2])
    question = Question("q", "What?", None, max_tokens=1)
    record = runner.run(Item("x", "x", Film(str(torn)), (question,)), FULL)
    assert "broke off" in (record.error or "")
    assert record.answers == ()
    short = runner.run(Item("x", "x", Film(str(torn), 0.0, 2.0), (question,)), FULL)
    assert short.error is None  # what was needed of it is whole


@pytest.mark.parametrize("content", [None, b"", b"no film at all"])
def test_a_film_that_is_none_fails_its_item(
    runner: Runner, tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "x.mp4"
    if content is not None:
        path.write_bytes(content)
    record = runner.run(Item("x", "x", Film(str(path)), (Question("q", "?", None),)), FULL)
    assert (record.error or "").startswith("[media]")


def test_seeds_make_replies_the_same_in_any_order(model: Any, film: Path) -> None:
    from omnitide import SamplingConfig

    options = RunOptions(MEDIA, SamplingConfig(temperature=1.5, seed=3))
    questions = tuple(Question(f"q{i}", "What?", 2.0, max_tokens=5) for i in range(2))
    items = [Item(name, "c", Film(str(film)), questions) for name in ("x", "y")]
    runner = Runner(model, options)
    first = [runner.run(item, FULL) for item in items]
    second = [Runner(model, options).run(item, FULL) for item in reversed(items)][::-1]
    said = [[a.text for a in record.answers] for record in first]
    assert said == [[a.text for a in record.answers] for record in second]
    assert said[0] != said[1]


@pytest.mark.parametrize(("start", "stop"), [(0.0, None), (2.0, 5.0), (1.3, 6.6), (7.96, None)])
def test_a_stretch_of_a_film_holds_what_lies_in_it(
    film: Path, start: float, stop: float | None
) -> None:
    options = MediaOptions(fps=4.0, chunk_seconds=1.0, max_pixels=56 * 56)
    with open_media(str(film), options) as reader:
        whole = list(reader)
    sound = np.concatenate([c.samples for c in whole if c.samples is not None])
    end = whole[-1].stop if stop is None else stop
    with Film(str(film), start, stop).open(options) as clip:
        found = list(clip)
        assert clip.broken is None
    times = [t for c in found for t in c.frame_times]
    assert times == [t for c in whole for t in c.frame_times if start <= t < end]
    heard = [c.samples for c in found if c.samples is not None]
    if start < 7.9:
        assert (found[0].start, found[-1].stop) == (start, end)
        expected = sound[round(start * 16_000) : round(end * 16_000)]
        np.testing.assert_array_equal(np.concatenate(heard), expected)
    else:
        assert found == []  # a rest of 40 ms is no chunk


def test_moments_are_sorted_and_polls_repeated() -> None:
    poll = Poll("p", "?", at=1.0, until=2.0, then="!", every=0.5)
    question, note = Question("q", "?", None), Note("n", 1.5)
    found = moments((question, poll, note))
    assert found == [
        (1.0, poll), (1.5, poll), (1.5, note), (2.0, poll), (float("inf"), question),
    ]  # fmt: skip


def test_records_survive_json(runner: Runner, film: Path) -> None:
    import json

    question = Question("q", "What?", None, max_tokens=1, watched=((0.0, 1.0),))
    record = runner.run(Item("x", "x", Film(str(film)), (question,)), TIGHT)
    assert Record.from_dict(json.loads(json.dumps(record.as_dict()))) == record


def test_a_sweep_is_every_policy_under_every_pair() -> None:
    policies = parse_policies("omnipick, fifo,full")
    marks = parse_watermarks("2500/1800, 5000/3500")
    found = sweep(policies, marks, kept={"image_sink": 4})
    assert [s.name for s in found] == [
        "omnipick 2500/1800 image_sink=4", "omnipick 5000/3500 image_sink=4",
        "fifo 2500/1800 image_sink=4", "fifo 5000/3500 image_sink=4", "full",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("policies", "marks", "message"),
    [
        ("omnipick,best", "2500/1800", "best"),
        ("omnipick", "2500", "pairs high/low"),
        ("omnipick", "2500/", "pairs high/low"),
        ("omnipick", "-5/3", "pairs high/low"),
        ("omnipick", "1800/2500", "above the high watermark"),
        ("omnipick", "0/0", "at least 1"),
    ],
)
def test_sweeps_that_make_no_sense_are_refused(policies: str, marks: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sweep(parse_policies(policies), parse_watermarks(marks))


def test_items_and_films_that_make_no_sense_are_refused() -> None:
    twice = (Question("q", "?", 1.0), Question("q", "?", 2.0))
    with pytest.raises(ConfigError, match="two questions named 'q'"):
        Item("x", "x", Film("x"), twice)
    with pytest.raises(ConfigError, match="stop must lie behind start"):
        Film("x", 3.0, 3.0)
    with pytest.raises(ConfigError, match="start must be at least 0"):
        Film("x", -1.0)
    with pytest.raises(ConfigError, match="every must be above 0"):
        Poll("p", "?", 1.0, 2.0, "!", every=0.0)
