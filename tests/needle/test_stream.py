"""Made-up streams: what they show and say, when, and that they are cut as films are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.config import MediaOptions
from omnitide.errors import MediaError
from omnitide.evaluation.needle import sound
from omnitide.evaluation.needle.fact import COLOURS
from omnitide.evaluation.needle.stream import NeedleStream
from omnitide.media.clip import ClipPicture, ClipSound, write_film
from omnitide.media.reader import open_media

STREAM = NeedleStream("shape", "red circle", 2.0, 4.0, 7.0, 56, 5)
OPTIONS = MediaOptions(fps=2.0, chunk_seconds=1.0, max_pixels=56 * 56)
SIZE = 112


def shown(kind: str, answer: str) -> NDArray[np.uint8]:
    return replace(STREAM, kind=kind, answer=answer, size=SIZE).picture(2.5)


def ground() -> NDArray[np.uint8]:
    return replace(STREAM, kind="typed", size=SIZE).picture(2.5)


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("shape", "share", "inside", "outside"),
    [
        # Of a square of half the side: a circle pi/4, a triangle 1/2, a cross 5/9 of it.
        ("circle", np.pi / 16, (0.5, 0.7), (0.3, 0.3)),
        ("square", 1 / 4, (0.3, 0.3), (0.2, 0.5)),
        ("triangle", 1 / 8, (0.7, 0.35), (0.3, 0.35)),
        ("cross", 5 / 36, (0.3, 0.5), (0.3, 0.3)),
    ],
)
def test_a_shape_is_painted_in_its_colour(
    colour: str, shape: str, share: float, inside: Any, outside: Any
) -> None:
    picture = shown("shape", f"{colour} {shape}")
    changed = (picture != ground()).any(axis=2)
    assert changed.mean() == pytest.approx(share, abs=0.01)
    assert (picture[changed] == COLOURS[colour]).all()
    row, column = (int(SIZE * part) for part in inside)
    assert tuple(picture[row, column]) == COLOURS[colour]
    row, column = (int(SIZE * part) for part in outside)
    assert (picture[row, column] == ground()[row, column]).all()


@pytest.mark.parametrize(("kind", "words"), [("text", "anchor"), ("digits", "48213")])
def test_words_are_large_black_on_white_and_in_the_middle(kind: str, words: str) -> None:
    picture = shown(kind, words)
    bar = np.flatnonzero((picture != ground()).any(axis=(1, 2)))
    assert (bar[0] + bar[-1]) / 2 == pytest.approx((SIZE - 1) / 2, abs=1)
    ink = (picture[bar[0] : bar[-1] + 1] < 90).all(axis=2)
    assert (picture[bar[0] : bar[-1] + 1].max(axis=(0, 1)) == 255).all()
    columns = np.flatnonzero(ink.any(axis=0))
    assert columns[-1] - columns[0] > 0.7 * SIZE
    assert (columns[0] + columns[-1]) / 2 == pytest.approx(SIZE / 2, abs=0.03 * SIZE)
    # Every letter stands apart from the next: as many runs of ink as letters, or nearly so.
    runs = np.count_nonzero(np.diff(ink.any(axis=0).astype(int)) == 1)
    assert runs >= len(words) - 1
    assert 0.1 < ink.mean() < 0.5
    other = shown(kind, words[::-1])
    assert (other != picture).any()
    assert (shown(kind, words) == picture).all()


@pytest.mark.parametrize(
    ("second", "there"), [(0, False), (1.99, False), (2, True), (3.9, True), (4, False), (6, False)]
)
def test_a_fact_is_shown_in_its_seconds_and_no_others(second: float, there: bool) -> None:
    picture = STREAM.picture(second)
    plain = replace(STREAM, kind="typed").picture(second)
    assert (picture != plain).any() == there
    assert (plain[:, :, 0] == plain[:, :, 2]).all()  # grey: no colour tells


def test_the_ground_moves_and_differs_from_stream_to_stream() -> None:
    plain = replace(STREAM, kind="typed")
    assert (plain.picture(1.0) == plain.picture(1.0)).all()
    assert (plain.picture(1.0) != plain.picture(1.5)).any()
    assert (replace(plain, seed=6).picture(1.0) != plain.picture(1.0)).any()


@pytest.mark.parametrize("count", [1, 4, 6])
def test_a_tone_beeps_so_often(count: int, tmp_path: Path) -> None:
    samples = replace(STREAM, kind="tone", answer=str(count)).samples(0, 7 * 16_000)
    loud = np.flatnonzero(np.abs(samples) > 0.1)
    onsets = loud[np.diff(loud, prepend=-10_000) > 1600] / 16_000
    assert onsets == pytest.approx([2 + 0.3 * k for k in range(count)], abs=0.01)
    beep = samples[2 * 16_000 : 2 * 16_000 + 2400]
    spectrum = np.abs(np.fft.rfft(beep))
    assert spectrum.argmax() * 16_000 / 2400 == pytest.approx(880, abs=7)


@pytest.mark.parametrize("kind", ["shape", "tone", "typed"])
def test_sound_is_the_same_however_it_is_cut(kind: str) -> None:
    stream = replace(STREAM, kind=kind, answer="red circle" if kind == "shape" else "3")
    whole = stream.samples(0, 60_000)
    cuts = [0, 7, 15_999, 16_000, 16_001, 33_333, 33_333, 60_000]
    pieces = [stream.samples(a, b) for a, b in pairwise(cuts)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    assert whole.dtype == np.float32
    assert 0.002 < whole[:16_000].std() < 0.004


@pytest.mark.parametrize(
    ("fps", "chunk", "seconds"), [(1.0, 1.0, 5.0), (2.0, 2.0, 7.0), (3.0, 0.7, 4.5), (0.4, 1.0, 6)]
)
def test_it_is_cut_as_a_film_is(fps: float, chunk: float, seconds: float, tmp_path: Path) -> None:
    """Against the reader, which reads the same film after it was encoded."""
    options = MediaOptions(fps=fps, chunk_seconds=chunk, max_pixels=56 * 56)
    stream = replace(STREAM, seconds=seconds)
    film = tmp_path / "film.mkv"
    picture = ClipPicture(56, 56, fps=20, paint=lambda second, h, w: stream.picture(second))
    write_film(film, seconds, picture, ClipSound(codec="pcm_s16le"))
    with open_media(film, options) as reader:
        wanted = list(reader)
    with stream.open(options) as clip:
        got = list(clip)
        assert clip.broken is clip.damage is None
    assert len(got) == len(wanted)
    for ours, theirs in zip(got, wanted, strict=True):
        assert (ours.start, ours.stop) == pytest.approx((theirs.start, theirs.stop))
        assert ours.frame_times == theirs.frame_times
        assert ours.samples is not None
        assert theirs.samples is not None
        assert len(ours.samples) == len(theirs.samples)
        for one, other in zip(ours.frames, theirs.frames, strict=True):
            assert one.dtype == np.uint8
            # Lossy, but of the same moment: the red disc shows in both or in none.
            assert abs(int(one[28, 28, 0]) - int(other[28, 28, 0])) < 60


def test_speech_comes_from_the_tool_at_16_khz(speech: Callable[[str | None], None]) -> None:
    speech('cp tone.wav "$4" && echo "$5" > said.txt')
    stream = replace(STREAM, kind="speech", answer="anchor")
    samples = stream.samples(0, 7 * 16_000)
    loud = np.flatnonzero(np.abs(samples) > 0.1) / 16_000
    assert loud[0] == pytest.approx(2.0, abs=0.01)
    assert loud[-1] == pytest.approx(3.0, abs=0.02)
    spectrum = np.abs(np.fft.rfft(samples[2 * 16_000 : 3 * 16_000]))
    assert spectrum.argmax() == pytest.approx(440, abs=1)
    tool = sound.speech_tool()
    assert tool is not None
    assert "anchor" in Path(tool).with_name("said.txt").read_text()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, r"\[needle\] speech needs one of espeak-ng, espeak; install espeak-ng"),
        ("exit 3", r"\[needle\] .*espeak-ng can't say a sentence .*exit status 3"),
        ("exit 0", r"speech\.wav does not exist"),
        ("head -c 44 tone.wav > $4", r"\[needle\] .*said nothing|\[media\]"),
    ],
)
def test_a_speech_tool_that_fails_is_told(
    script: str | None, message: str, speech: Callable[[str | None], None]
) -> None:
    speech(script)
    with pytest.raises(MediaError, match=message):
        replace(STREAM, kind="speech", answer="anchor").open(OPTIONS)


def test_a_real_speech_tool_speaks() -> None:
    if sound.speech_tool() is None:
        pytest.skip("no speech tool is installed; apt-get install espeak-ng")
    sound.say.cache_clear()
    anchor, bridge = sound.say("anchor"), sound.say("bridge")
    for said in (anchor, bridge):
        assert 1.5 < len(said) / 16_000 < 6.0
        assert np.abs(said).max() > 0.1
        assert said.std() > 0.01
    assert len(anchor) != len(bridge) or (anchor != bridge).any()
