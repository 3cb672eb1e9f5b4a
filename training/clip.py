"""`python -m training.clip`: the clip of the package, with questions whose answers are known.

Its voices, photographs and pairs are those of the split "test", which training never sees. Beside
the film lies a file of JSON with its questions and answers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.media.chunk import SAMPLE_RATE, Frame
from omnitide.media.clip import ClipPicture, ClipSound, write_film
from training.made_stream import MadeStream, chunks_of
from training.scenario import draw_script
from training.script import Script
from training.size import FRAMES, SECONDS, SIZE

UNITS = 50
"""Of two seconds."""

QUESTIONS = 40

FPS = FRAMES / SECONDS

PICTURE_OPTIONS = (("preset", "veryslow"), ("crf", "24"))
"""Of the encoder of the picture."""

BIT_RATE = 48_000
"""Of the sound, bits a second."""

MOST_BYTES = 1_200_000


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.clip", description=__doc__)
    parser.add_argument("--speech", type=Path, required=True, help="bank of training.speech")
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--seed", type=int, default=0, help="of the script (default: 0)")
    parser.add_argument("--units", type=int, default=UNITS, help=f"of 2 s (default: {UNITS})")
    options = parser.parse_args(arguments)
    script = draw_clip(options.seed, options.units)
    options.out.mkdir(parents=True, exist_ok=True)
    film = options.out / "clip.mp4"
    write_script_film(film, script, str(options.speech))
    told = {"questions": known_answers(script), "script": asdict(script)}
    (options.out / "clip.json").write_text(json.dumps(told, indent=1) + "\n")
    size = film.stat().st_size
    print(f"{film}: {size:,} bytes, {len(script.questions)} questions")
    if size > MOST_BYTES:
        print(f"error: a clip has at most {MOST_BYTES:,} bytes; take another --seed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
