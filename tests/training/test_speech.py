"""What espeak-ng says for the bank, and letters and photographs in it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from omnitide.evaluation.needle.sound import SENTENCE
from omnitide.evaluation.needle.sound import say as needle_say
from training.bank.bank import FIRST_REPEAT, FIRST_SENTENCE, NUM_COLUMNS, load_bank
from training.bank.letters import STYLES
from training.bank.mulaw import decoded
from training.world.grounds import PHOTOGRAPHS
from training.world.voices import VOICES, Voice, rows_of

signal = pytest.importorskip("scipy.signal", reason="speech is resampled with SciPy")

needs_tool = pytest.mark.skipif(
    shutil.which("espeak-ng") is None, reason="espeak-ng is not installed"
)


@needs_tool
def test_a_word_is_said_at_the_bank_s_peak_without_silence_around_it() -> None:
    from training.bank.espeak import PEAK, QUIET, say

    samples = say(VOICES[0], "anchor")
    assert 0.3 * 16000 < len(samples) < 16000
    assert np.abs(samples).max() == pytest.approx(PEAK)
    assert np.abs(samples[[0, -1]]).min() > QUIET * PEAK


@needs_tool
def test_the_needle_s_voice_says_its_sentence() -> None:
    from training.bank.espeak import say

    # The first voice speaks as the needle's tool does by itself; its words come at the same times.
    ours, theirs = say(VOICES[0], SENTENCE.format(word="anchor")), needle_say("anchor")
    match = signal.correlate(theirs, ours, mode="valid", method="fft")
    at = int(np.argmax(match))
    piece = theirs[at : at + len(ours)]
    likeness = piece @ ours / (np.linalg.norm(piece) * np.linalg.norm(ours))
    assert likeness > 0.98


@needs_tool
def test_speed_and_voice_change_what_is_heard() -> None:
    from training.bank.espeak import say

    slow, fast = (say(replace(VOICES[0], speed=speed), "anchor") for speed in (120, 200))
    assert len(slow) > 1.2 * len(fast)


@needs_tool
def test_a_voice_says_all_its_columns_and_the_two_halves_make_the_sentence() -> None:
    from training.bank.espeak import PEAK, say, say_all

    teller = VOICES[rows_of("test", sentences=True)[0]]
    said = say_all(teller)
    assert sorted(said) == list(range(NUM_COLUMNS))
    whole = np.concatenate([said[FIRST_SENTENCE], said[FIRST_REPEAT]])
    assert len(said[FIRST_SENTENCE]) == 32000
    expected = say(teller, SENTENCE.format(word="anchor"))
    assert np.abs(decoded()[whole] - expected).max() < 0.03 * PEAK
    assert sorted(say_all(replace(teller, sentences=False))) == list(range(FIRST_SENTENCE))


@needs_tool
def test_a_voice_that_is_too_slow_is_refused() -> None:
    from training.bank.espeak import say_all

    with pytest.raises(ValueError, match="take another speed"):
        say_all(Voice("en", 80, "train", sentences=True))


@needs_tool
def test_a_voice_that_the_tool_doesn_t_know_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from training import speech

    monkeypatch.setattr(
        speech, "VOICES", (Voice("en", 150, "train"), Voice("en+none", 150, "test"))
    )
    assert speech.main(["--out", str(tmp_path / "bank.npz")]) == 1
    assert "en+none sounds like another voice" in capsys.readouterr().err
    assert not (tmp_path / "bank.npz").exists()


@needs_tool
def test_the_command_writes_a_bank(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("skimage", reason="photographs come with scikit-image")
    from training import speech

    try:
        from training.bank.letters import draw_letters

        draw_letters()
    except OSError:
        pytest.skip("the DejaVu fonts are not installed")
    monkeypatch.setattr(speech, "VOICES", (Voice("en", 150, "train"), Voice("en+f2", 150, "test")))
    assert speech.main(["--out", str(tmp_path / "bank.npz")]) == 0
    assert "2 voices" in capsys.readouterr().out
    bank = load_bank(tmp_path / "bank.npz")
    assert bank.starts.shape == (2, NUM_COLUMNS)
    assert (bank.lengths[:, :FIRST_SENTENCE] > 0).all()
    assert (bank.lengths[:, FIRST_SENTENCE:] == 0).all()
    assert (bank.starts + bank.lengths).max() == len(bank.codes)
    assert bank.photographs.shape == (len(PHOTOGRAPHS), 256, 256, 3)
    # A photograph has lights and darks; an empty square has neither.
    assert (bank.photographs.std((1, 2, 3)) > 8).all()
    assert bank.words.shape == (len(STYLES), 24, 32, 112)
    assert (bank.words.max((2, 3)) > 200).all()
    assert len({word.tobytes() for style in bank.words for word in style}) == len(STYLES) * 24
    assert (bank.digits.max((3, 4)) > 200).all()


def test_splits_share_no_voice_and_every_one_has_sentences() -> None:
    names = {
        split: {VOICES[row].name for row in rows_of(split)} for split in ("train", "tune", "test")
    }
    assert not names["train"] & (names["tune"] | names["test"])
    assert not names["tune"] & names["test"]
    assert sum(len(rows_of(split)) for split in names) == len(VOICES)
    assert all(rows_of(split, sentences=True) for split in names)
