"""A script as a film for people and for `omnitide generate`, with its questions and answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.media.chunk import SAMPLE_RATE, Frame
from omnitide.media.clip import ClipPicture, ClipSound, write_film
from training.render.stream import MadeStream, chunks_of
from training.world.scenario import draw_script
from training.world.script import Script
from training.world.unit import FRAMES, SECONDS, SIZE

UNITS = 50
"""Of two seconds."""

QUESTIONS = 40

FPS = FRAMES / SECONDS

PICTURE_OPTIONS = (("preset", "veryslow"), ("crf", "24"))
"""Of the encoder of the picture."""

BIT_RATE = 48_000
"""Of the sound, bits a second."""


def draw_clip(seed: int, units: int = UNITS) -> Script:
    """The script of a clip: of the split "test", without typed text, which a film can't hold."""
    script = draw_script(np.random.default_rng(seed), units, "test", QUESTIONS)
    typed = ("typed_fact", "needle_typed")
    questions = tuple(question for question in script.questions if question.task not in typed)
    return Script(script.pictures, script.sounds, (), questions)


def write_script_film(path: Path, script: Script, bank: str) -> None:
    """Encode a script as MP4 with H.264 and AAC.

    Args:
        path: File to write, .mp4.
        script: What is shown and said.
        bank: Path of the bank of speech, photographs and letters.
    """
    chunks = chunks_of(MadeStream(script, bank))
    frames = [frame for chunk in chunks for frame in chunk.frames]
    samples = np.concatenate([chunk.samples for chunk in chunks if chunk.samples is not None])

    def paint(second: float, height: int, width: int) -> Frame:
        return frames[min(round(second * FPS), len(frames) - 1)]

    def play(seconds: NDArray[np.float64]) -> NDArray[np.floating]:
        return samples[np.rint(seconds * SAMPLE_RATE).astype(np.int64)]

    picture = ClipPicture(SIZE, SIZE, FPS, paint=paint, options=PICTURE_OPTIONS)
    write_film(path, float(len(chunks) * SECONDS), picture, ClipSound(play=play, bit_rate=BIT_RATE))


def known_answers(script: Script) -> list[dict[str, Any]]:
    """The questions of a clip in the order in which they may be asked, ready for JSON.

    "ask_at" is the second at which `omnitide generate --ask-at` asks it.
    """
    return [
        {
            "ask_at": (question.after + 1) * SECONDS,
            "task": question.task,
            "prompt": question.prompt,
            "answer": question.answer,
            "units_ago": question.distance,
        }
        for question in script.questions
    ]
