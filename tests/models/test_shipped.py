"""The model and the clip that ship: loaded as any other, and asked what they must know.

The oracle is the script that the clip was made from, which never went through a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from omnitide import Session
from omnitide import load as load_default
from omnitide.embedded import default_checkpoint, default_clip
from omnitide.evaluation.needle.benchmark import Needle
from omnitide.evaluation.needle.options import NeedleOptions
from omnitide.evaluation.needle.sound import speech_tool
from omnitide.evaluation.runner import Runner, RunOptions
from omnitide.evaluation.setting import Setting
from omnitide.media.stream import MediaStream

SOLVED = (
    "see", "read", "hear", "count_beeps", "count_shapes", "last_shape", "last_text", "last_speech",
    "last_beeps", "needle_text", "needle_tone", "needle_speech", "was_seen", "was_heard",
    "bind_seen_heard", "bind_seen_beeps", "count_shape",
)  # fmt: skip
"""Tasks whose questions about the clip are all answered."""

LEAST_SHARE = 0.6
"""Of all questions about the clip, those of tasks that no model of this size has solved too."""

MOST_BYTES = {"model.safetensors": 24_000_000, "clip.mp4": 1_200_000}

ANSWERED = ("Which shape was shown last?", "How many beeps do you hear now?")


@pytest.fixture(scope="module")
def folder() -> Path:
    """What ships."""
    return Path(str(files("omnitide.assets") / "default"))


@pytest.fixture(scope="module")
def told(folder: Path) -> Any:
    """The clip's script, and questions with their answers."""
    return json.loads((folder / "clip.json").read_text(encoding="utf-8"))


def follow_clip(session: Session, until: float, hook: Callable[[float], None]) -> None:
    """Take the clip in up to a second; `hook(time)` after each chunk."""
    with MediaStream(video=default_clip(), options=session.model.media) as stream:
        for chunk in stream:
            hook(session.append_media(chunk).time)
            if session.time >= until:
                return


def say(session: Session, prompt: str) -> str:
    """A reply in lower case, without a full stop."""
    return "".join(r.text for r in session.ask(prompt)).strip().lower().rstrip(".")


def test_the_default_is_what_ships_and_is_small(folder: Path) -> None:
    assert default_checkpoint() == folder
    assert default_clip() == folder / "clip.mp4"
    for name, most in MOST_BYTES.items():
        assert (folder / name).stat().st_size <= most


@pytest.mark.parametrize("backend", ["mlx", "reference"])
def test_every_backend_gives_the_replies_that_the_script_tells(backend: str, told: Any) -> None:
    if backend == "mlx":
        pytest.importorskip("mlx.core", reason="MLX is not installed")
    model = load_default(backend=backend, dtype="float32")
    assert model.spec.trained
    session = Session(model)
    follow_clip(session, 4.0, lambda time: None)
    seen, heard = told["script"]["pictures"][1], told["script"]["sounds"][1]
    assert (seen["kind"], heard["kind"]) == ("shape", None)
    caption = f"a {seen['text']} is shown. nothing is said"
    assert say(session, "Describe what you see and hear.") == caption
    assert [say(session, prompt) for prompt in ANSWERED] == [seen["text"], "0"]


@pytest.fixture(scope="module")
def replies(told: Any) -> list[tuple[str, str, str]]:
    """Task, answer and reply of each question, asked in one session at its moment."""
    session = Session(load_default(backend="reference", dtype="float32"))
    waiting, found = list(told["questions"]), []

    def ask(time: float) -> None:
        while waiting and waiting[0]["ask_at"] <= time:
            question = waiting.pop(0)
            found.append((question["task"], question["answer"], say(session, question["prompt"])))

    follow_clip(session, float("inf"), ask)
    assert not waiting
    assert session.stats().evictions >= 2
    return found


def test_the_clips_questions_of_solved_tasks_are_all_answered(
    replies: list[tuple[str, str, str]],
) -> None:
    asked = [(task, answer, reply) for task, answer, reply in replies if task in SOLVED]
    assert {task for task, _, _ in asked} == set(SOLVED)
    assert [reply for _, _, reply in asked] == [answer.lower() for _, answer, _ in asked]


def test_most_of_all_questions_about_the_clip_are_answered(
    replies: list[tuple[str, str, str]],
) -> None:
    right = sum(reply == answer.lower() for _, answer, reply in replies)
    assert right >= LEAST_SHARE * len(replies)


@pytest.mark.parametrize("kind", ["text", "shape", "digits", "tone", "typed", "speech"])
def test_needles_are_recalled_from_the_full_history(kind: str) -> None:
    if kind == "speech" and speech_tool() is None:
        pytest.skip("nothing here says sentences: espeak-ng is not installed")
    needle = Needle(NeedleOptions((kind,), (4.0,), samples=2, lead=2.0, size=112))
    model = load_default(backend="reference", dtype="float32")
    options = RunOptions(media=model.media)
    runner = Runner(model, options)
    for item in needle.read().items:
        record = runner.run(item, Setting("full"))
        assert record.error is None
        assert needle.marks(item, record)[0].value == 1.0, record.answers[0].text
