"""The clip of the package: a film that shows and says what its script has, when it has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide.config import MediaOptions
from omnitide.media.reader import open_media

UNITS = 6


@pytest.fixture
def made(made_media: Any, tmp_path: Path) -> Path:
    """The folder that the command wrote for seed 3."""
    from training.clip import main

    given = ["--speech", tmp_path / "bank.npz", "--out", tmp_path, "--seed", 3, "--units", UNITS]
    assert main(list(map(str, given))) == 0
    return tmp_path


def test_the_film_is_the_script(made: Path, made_media: Any) -> None:
    from training.measure.film import draw_clip

    script = draw_clip(3, UNITS)
    frames, samples = made_media(script.pictures), made_media(script.sounds)
    with open_media(str(made / "clip.mp4"), MediaOptions(2.0, 2.0)) as reader:
        chunks = list(reader)
    assert [(c.start, c.stop) for c in chunks] == [(2.0 * u, 2.0 * u + 2) for u in range(UNITS)]
    for unit, chunk in enumerate(chunks):
        assert len(chunk.frames) == 4
        shown = np.stack(chunk.frames).astype(np.int64)
        assert shown.shape[1:3] == (112, 112)
        assert np.abs(shown - frames[unit]).max() <= 6  # of steps of 24
        assert chunk.samples is not None
        # The middle, where the sounds of two units do not mix. AAC keeps a hum's loudness.
        middle = slice(4_000, 28_000)
        heard, played = chunk.samples[middle], np.asarray(samples[unit])[middle]
        assert np.std(heard) == pytest.approx(np.std(played), rel=0.1)
        assert np.argmax(np.abs(np.fft.rfft(heard))) == np.argmax(np.abs(np.fft.rfft(played)))


def test_questions_come_with_their_answers(made: Path) -> None:
    from training.measure.film import draw_clip

    told = json.loads((made / "clip.json").read_text())
    script = draw_clip(3, UNITS)
    assert [(q["prompt"], q["answer"]) for q in told["questions"]] == [
        (q.prompt, q.answer) for q in script.questions
    ]
    assert [q["ask_at"] for q in told["questions"]] == [2 * q.after + 2 for q in script.questions]
    assert len(told["script"]["pictures"]) == UNITS
    assert script.typed == ()


@pytest.mark.parametrize("seed", range(8))
def test_nothing_asks_for_what_was_typed(seed: int) -> None:
    from training.measure.film import draw_clip
    from training.world.vocabulary import SPLITS
    from training.world.voices import rows_of

    script = draw_clip(seed, 12)
    assert not {"typed_fact", "needle_typed"} & {q.task for q in script.questions}
    heard = {s.voice for s in script.sounds if s.kind in ("speech", "sentence", "repeat")}
    assert heard <= set(rows_of("test")) | set(rows_of("test", sentences=True))
    assert not heard & {row for split in SPLITS if split != "test" for row in rows_of(split)}


def test_a_clip_that_is_too_large_is_told(
    made_media: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from training import clip

    monkeypatch.setattr(clip, "MOST_BYTES", 1000)
    given = ["--speech", tmp_path / "bank.npz", "--out", tmp_path, "--units", 2]
    assert clip.main(list(map(str, given))) == 1
    assert "at most 1,000 bytes" in capsys.readouterr().out


def test_a_clip_without_a_bank_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from training.clip import main

    given = ["--speech", tmp_path / "none.npz", "--out", tmp_path / "clip", "--units", 2]
    assert main(list(map(str, given))) == 2
    assert "--speech must be a bank" in capsys.readouterr().err
