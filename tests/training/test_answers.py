"""Every question has the answer and distance that the script alone gives.

The oracle knows no task names and nothing of how questions are drawn: it reads a prompt's words
with patterns of its own and looks at the pictures, sounds and typed texts up to its moment.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from training.world.scenario import draw_script
from training.world.script import Question, Script

Answer = tuple[str, int]
"""An answer and its distance."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something shown or said, from its first to its last unit."""

    kind: str
    text: str
    first: int
    last: int


def events_of(script: Script, kind: str, until: int) -> list[Event]:
    """Events of a kind that have begun by the end of a unit."""
    found: list[Event] = []
    for unit in range(until + 1):
        picture, sound = script.pictures[unit], script.sounds[unit]
        if kind == "heard" and sound.kind in ("speech", "sentence"):
            long = sound.kind == "sentence"
            found.append(Event(kind, sound.text, unit, unit + long))
        elif kind == "beeps" and sound.kind == "beeps":
            found.append(Event(kind, sound.text, unit, unit))
        elif picture.kind == kind:
            before = script.pictures[unit - 1] if unit else None
            if before is not None and (before.kind, before.look) == (kind, picture.look):
                continue
            after = script.pictures[unit + 1] if unit + 1 < len(script.pictures) else None
            long = after is not None and (after.kind, after.look) == (kind, picture.look)
            found.append(Event(kind, picture.text, unit, unit + long))
    return found


def gap(event: Event, now: int) -> int:
    """Units from an event's end to a moment."""
    return max(0, now - event.last)


def only(events: list[Event], text: str | None = None) -> Event:
    """The one event, or the one with a text."""
    (found,) = [event for event in events if text is None or event.text == text]
    return found


def key_of(script: Script, now: int, words: str) -> Event:
    """The picture that a question names, which was there once."""
    words = words.lower()
    number, word = (
        re.fullmatch(r"the number (\d{5})", words),
        re.fullmatch(r"the word (\w+)", words),
    )
    if number:
        return only(events_of(script, "digits", now), number[1])
    if word:
        return only(events_of(script, "word", now), word[1])
    return only(events_of(script, "shape", now), words.removeprefix("the "))


def see(script: Script, now: int) -> Answer:
    picture = script.pictures[now]
    return (picture.text if picture.kind == "shape" else "nothing"), 0


def read(script: Script, now: int) -> Answer:
    picture = script.pictures[now]
    return (picture.text if picture.kind in ("word", "digits") else "nothing"), 0


def hear(script: Script, now: int) -> Answer:
    sound = script.sounds[now]
    return (sound.text if sound.kind in ("speech", "sentence", "repeat") else "nothing"), 0


def count_beeps(script: Script, now: int) -> Answer:
    sound = script.sounds[now]
    return (sound.text if sound.kind == "beeps" else "0"), 0


def count_shapes(script: Script, now: int) -> Answer:
    picture = script.pictures[now]
    return str(picture.count if picture.kind == "shape" else 0), 0


def motion(script: Script, now: int) -> Answer:
    assert script.pictures[now].kind == "shape"
    return script.pictures[now].motion or "still", 0


def caption(script: Script, now: int) -> Answer:
    picture, sound = script.pictures[now], script.sounds[now]
    shown = "Nothing is shown."
    if picture.kind == "shape":
        many = ("A", "Two", "Three", "Four", "Five")[picture.count - 1]
        plural = {"cross": "crosses"}.get(picture.text.split()[1], picture.text.split()[1] + "s")
        if picture.motion:
            shown = f"A {picture.text} moves {picture.motion}."
        elif picture.count == 1:
            shown = f"A {picture.text} is shown."
        else:
            shown = f"{many} {picture.text.split()[0]} {plural} are shown."
    elif picture.kind == "word":
        shown = f"The word {picture.text} is shown."
    elif picture.kind == "digits":
        shown = f"The number {picture.text} is shown."
    said = "Nothing is said."
    if sound.kind == "beeps":
        times = ("once", "twice", "3 times", "4 times", "5 times", "6 times")[int(sound.text) - 1]
        said = f"A tone beeps {times}."
    elif sound.kind is not None:
        said = f"Somebody says {sound.text}."
    return f"{shown} {said}", 0


def last(kind: str) -> Callable[..., Answer]:
    def answer(script: Script, now: int) -> Answer:
        event = events_of(script, kind, now)[-1]
        return event.text, gap(event, now)

    return answer


def lone(kind: str) -> Callable[..., Answer]:
    def answer(script: Script, now: int) -> Answer:
        event = only(events_of(script, kind, now))
        return event.text, gap(event, now)

    return answer


def pass_code(script: Script, now: int) -> Answer:
    (typed,) = [text for text in script.typed if "pass code" in text.text]
    assert typed.after < now
    return re.findall(r"\d{5}", typed.text)[0], now - typed.after


def code(script: Script, now: int, key: str) -> Answer:
    (typed,) = [text for text in script.typed if re.search(rf"\bcode of {key}\b", text.text)]
    assert typed.after < now
    return re.findall(r"\d{3}", typed.text)[0], now - typed.after


def seen_with(kinds: tuple[str, ...]) -> Callable[..., Answer]:
    def answer(script: Script, now: int, key: str) -> Answer:
        event = only(events_of(script, "heard", now), key)
        shown = [script.pictures[unit] for unit in range(event.first, min(event.last, now) + 1)]
        texts = [picture.text for picture in shown if picture.kind is not None]
        assert all(picture.kind in (*kinds, None) for picture in shown)
        assert len(texts) <= 1
        return (texts[0] if texts else "nothing"), gap(event, now)

    return answer


def heard_with(kinds: tuple[str, ...]) -> Callable[..., Answer]:
    def answer(script: Script, now: int, key: str) -> Answer:
        event = key_of(script, now, key)
        said = [script.sounds[unit] for unit in range(event.first, min(event.last, now) + 1)]
        texts = [sound.text for sound in said if sound.kind is not None]
        assert all(sound.kind in (*kinds, None) for sound in said)
        assert len(texts) <= 1
        return (texts[0] if texts else "nothing"), gap(event, now)

    return answer


def first_seen(script: Script, now: int, one: str, other: str) -> Answer:
    event = min(key_of(script, now, one), key_of(script, now, other), key=lambda e: e.first)
    return event.text, gap(event, now)


def first_heard(script: Script, now: int, one: str, other: str) -> Answer:
    events = events_of(script, "heard", now)
    event = min(only(events, one.lower()), only(events, other.lower()), key=lambda e: e.first)
    return event.text, gap(event, now)


def following(kind: str) -> Callable[..., Answer]:
    def answer(script: Script, now: int, key: str) -> Answer:
        events = events_of(script, kind, now)
        event = only(events, key.lower().removeprefix("the "))
        return events[events.index(event) + 1].text, gap(event, now)

    return answer


def count_word(script: Script, now: int, key: str) -> Answer:
    assert all(s.text != key for s in script.sounds[: now + 1] if s.kind == "sentence")
    said = [s for s in script.sounds[: now + 1] if s.kind == "speech" and s.text == key]
    return str(len(said)), -1


def count_shown(script: Script, now: int) -> Answer:
    return str(len(events_of(script, "shape", now))), -1


def was_shown(script: Script, now: int, key: str) -> Answer:
    kind, text = ("shape", key[2:]) if key.startswith("a ") else ("word", key[len("the word ") :])
    return whether([event for event in events_of(script, kind, now) if event.text == text], now)


def was_said(script: Script, now: int, key: str) -> Answer:
    return whether([event for event in events_of(script, "heard", now) if event.text == key], now)


def whether(events: list[Event], now: int) -> Answer:
    return ("yes", gap(events[-1], now)) if events else ("no", -1)


_SEEN = r"the (?:word \w+|number \d{5}|\w+ \w+)"

PATTERNS: list[tuple[str, Callable[..., Answer]]] = [
    (r"Which shape do you see now\?", see),
    (r"What colour and shape is shown right now\?", see),
    (r"Name the shape in the newest picture\.", see),
    (r"What is written in the picture now\?", read),
    (r"Read the large letters or digits that are shown now\.", read),
    (r"Which word or number is shown right now\?", read),
    (r"Which word do you hear now\?", hear),
    (r"What was said just now\?", hear),
    (r"Which word was said in the last two seconds\?", hear),
    (r"How many beeps do you hear now\?", count_beeps),
    (r"How often does the tone beep now\?", count_beeps),
    (r"Count the beeps of the last two seconds\.", count_beeps),
    (r"How many shapes do you see now\?", count_shapes),
    (r"Count the shapes in the newest picture\.", count_shapes),
    (r"How many shapes are shown right now\?", count_shapes),
    (r"Which way does the shape move now\?", motion),
    (r"In which direction is the shape moving right now\?", motion),
    (r"Where does the shape in the newest picture move\?", motion),
    (r"Describe what you see and hear\.", caption),
    (r"What do you see and hear now\?", caption),
    (r"Say in a few words what is shown and said right now\.", caption),
    (r"Which shape was shown last\?", last("shape")),
    (r"What was the last coloured shape\?", last("shape")),
    (r"Name the most recent shape with its colour\.", last("shape")),
    (r"Which word was shown last\?", last("word")),
    (r"What was the last word in large letters\?", last("word")),
    (r"Name the most recent word that was shown\.", last("word")),
    (r"Which number was shown last\?", last("digits")),
    (r"What was the last number in the picture\?", last("digits")),
    (r"Name the most recent number that was shown\.", last("digits")),
    (r"Which word was said last\?", last("heard")),
    (r"What was the last word that somebody said\?", last("heard")),
    (r"Name the most recent spoken word\.", last("heard")),
    (r"How often did the tone beep the last time\?", last("beeps")),
    (r"How many beeps were there the last time that a tone beeped\?", last("beeps")),
    (r"Count the most recent beeps\.", last("beeps")),
    (r"Earlier a word was shown in large letters\. .*", lone("word")),
    (r"A single word was shown in large letters\. Which one\?", lone("word")),
    (r"What was the only word in large letters\?", lone("word")),
    (r"Earlier a coloured shape was shown\. .*", lone("shape")),
    (r"A single coloured shape was shown\. Which one\?", lone("shape")),
    (r"What was the only coloured shape\?", lone("shape")),
    (r"Earlier a number of 5 digits was shown\. .*", lone("digits")),
    (r"A single number was shown\. Which one\?", lone("digits")),
    (r"What was the only number in the picture\?", lone("digits")),
    (r"Earlier a tone beeped a few times\. .*", lone("beeps")),
    (r"A tone beeped at a single moment\. How many beeps were there\?", lone("beeps")),
    (r"How many beeps were there, the only time that a tone beeped\?", lone("beeps")),
    (r"Earlier somebody said a code word\. .*", lone("heard")),
    (r"A single word was said\. Which one\?", lone("heard")),
    (r"What was the only word that somebody said\?", lone("heard")),
    (r"Earlier I typed a pass code\. .*", pass_code),
    (r"What is my pass code\?", pass_code),
    (r"Which pass code did I tell you\?", pass_code),
    (r"What is the code of (\w+)\?", code),
    (r"Which code did I give you for (\w+)\?", code),
    (r"Tell me the code of (\w+)\.", code),
    (r"What was shown when the word (\w+) was said\?", seen_with(("shape", "word"))),
    (r"Somebody said (\w+)\. What was in the picture then\?", seen_with(("shape", "word"))),
    (r"What did you see while you heard the word (\w+)\?", seen_with(("shape", "word"))),
    (r"Which number was shown when the word (\w+) was said\?", seen_with(("digits",))),
    (r"Somebody said (\w+)\. Which number was in the picture then\?", seen_with(("digits",))),
    (r"Which number did you see while you heard the word (\w+)\?", seen_with(("digits",))),
    (rf"Which word was said when ({_SEEN}) was shown\?", heard_with(("speech", "sentence"))),
    (rf"What was said while ({_SEEN}) was in the picture\?", heard_with(("speech", "sentence"))),
    (rf"Which word did you hear when you saw ({_SEEN})\?", heard_with(("speech", "sentence"))),
    (rf"How often did the tone beep when ({_SEEN}) was shown\?", heard_with(("beeps",))),
    (rf"How many beeps were there while ({_SEEN}) was in the picture\?", heard_with(("beeps",))),
    (rf"How many beeps did you hear when you saw ({_SEEN})\?", heard_with(("beeps",))),
    (rf"Which was shown first, ({_SEEN}) or ({_SEEN})\?", first_seen),
    (rf"What did you see earlier, ({_SEEN}) or ({_SEEN})\?", first_seen),
    (rf"({_SEEN}) or ({_SEEN}): which one was in the picture first\?", first_seen),
    (r"Which word was said first, (\w+) or (\w+)\?", first_heard),
    (r"What did you hear earlier, (\w+) or (\w+)\?", first_heard),
    (r"(\w+) or (\w+): which one did somebody say first\?", first_heard),
    (rf"Which shape was shown next after ({_SEEN})\?", following("shape")),
    (rf"What was the first shape that came after ({_SEEN})\?", following("shape")),
    (rf"({_SEEN}) was shown\. Which shape followed\?", following("shape")),
    (r"Which word was said next after (\w+)\?", following("heard")),
    (r"What was the first word that somebody said after (\w+)\?", following("heard")),
    (r"Somebody said (\w+)\. Which word followed\?", following("heard")),
    (r"How often was the word (\w+) said so far\?", count_word),
    (r"How many times did somebody say (\w+)\?", count_word),
    (r"Count how often you have heard the word (\w+)\.", count_word),
    (r"How often was a shape shown so far\?", count_shown),
    (r"How many times has a shape come up\?", count_shown),
    (r"Count how often a shape has been shown\.", count_shown),
    (r"Was (a \w+ \w+|the word \w+) shown\?", was_shown),
    (r"Did you see (a \w+ \w+|the word \w+)\?", was_shown),
    (r"Has (a \w+ \w+|the word \w+) been in the picture\?", was_shown),
    (r"Was the word (\w+) said\?", was_said),
    (r"Did you hear the word (\w+)\?", was_said),
    (r"Has somebody said (\w+)\?", was_said),
]


def answer_of(script: Script, now: int, prompt: str) -> Answer:
    """What the script alone answers to a prompt."""
    lines = prompt.split("\n")
    if len(lines) > 1:
        assert len(lines) == 6
        answer, distance = answer_of(script, now, lines[0])
        (letter,) = [line[0] for line in lines[1:5] if line[1:] == f". {answer}"]
        assert [line[0] for line in lines[1:5]] == list("ABCD")
        assert len({line[3:] for line in lines[1:5]}) == 4
        return letter, distance
    found = [
        (ask, match)
        for pattern, ask in PATTERNS
        if (match := re.fullmatch(pattern, prompt, re.IGNORECASE)) is not None
    ]
    assert len(found) == 1, prompt
    ((ask, match),) = found
    return ask(script, now, *match.groups())


def drawn(seed: int, units: int, split: str, **options: Any) -> tuple[Script, tuple[Question, ...]]:
    """A script with many questions."""
    script = draw_script(np.random.default_rng(seed), units, split, 4 * units + 6, **options)
    return script, script.questions


@pytest.mark.parametrize("split", ["train", "tune", "test"])
@pytest.mark.parametrize("units", [1, 3, 8, 46])
@pytest.mark.parametrize("seed", range(8))
def test_the_script_alone_gives_each_answer_and_distance(seed: int, units: int, split: str) -> None:
    script, questions = drawn(seed, units, split)
    given = [(q.prompt, q.answer, q.distance) for q in questions]
    assert given == [(q.prompt, *answer_of(script, q.after, q.prompt)) for q in questions]
    assert questions


def test_every_task_is_asked_and_every_wording_is_known_to_the_oracle() -> None:
    from training.world.questions.wordings import TASKS, WORDINGS

    tasks: set[str] = set()
    plain: list[str] = []
    for seed in range(60):
        _, questions = drawn(seed, 30, "train")
        tasks |= {question.task for question in questions}
        plain += [question.prompt for question in questions if question.task != "choice"]
    assert tasks == set(TASKS)
    used = {
        pattern for pattern, _ in PATTERNS for p in plain if re.fullmatch(pattern, p, re.IGNORECASE)
    }
    assert used == {pattern for pattern, _ in PATTERNS}
    assert len(PATTERNS) == sum(len(wordings) for wordings in WORDINGS.values())
