"""What harnesses hand over and what becomes of it, against sessions that are driven by hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from omnitide import Session
from omnitide.config import SamplingConfig
from omnitide.errors import ConfigError, MediaError, OmnitideError
from omnitide.following import DEFAULT_PROMPT
from omnitide.harness.part import Part, chunks_of
from omnitide.harness.talker import Generation, Talker, read_generation, split_question
from omnitide.media.reader import open_media

FEW = Generation(max_tokens=6)


def words(*texts: str) -> list[Part]:
    return [Part("text", text) for text in texts]


VIDEO, IMAGE = Part("video", "a.mp4"), Part("image", "a.png")


@pytest.mark.parametrize(
    ("parts", "before", "asked"),
    [
        ([VIDEO, *words("What?")], [VIDEO], "What?"),
        ([VIDEO, *words("Look.", " What? ")], [VIDEO], "Look.\nWhat?"),
        ([*words("What?"), VIDEO], [VIDEO], "What?"),
        ([*words("See", "this"), VIDEO, IMAGE], [*words("See"), VIDEO, IMAGE], "this"),
        ([*words("One:"), VIDEO, *words("two:"), IMAGE, *words("Which?", "")],
         [*words("One:"), VIDEO, *words("two:"), IMAGE], "Which?"),
        ([VIDEO, *words("  ", "\n")], [VIDEO], DEFAULT_PROMPT),
        ([VIDEO], [VIDEO], DEFAULT_PROMPT),
        (words("What?"), [], "What?"),
    ],
)  # fmt: skip
def test_what_is_asked_is_what_stands_behind_the_media(
    parts: list[Part], before: list[Part], asked: str
) -> None:
    assert split_question(parts) == (before, asked)


def test_a_reply_is_that_of_a_session_driven_by_hand(talker: Talker, film: str) -> None:
    picture = Image.new("RGB", (56, 56), (200, 30, 30))
    parts = [Part("text", "First a film."), Part("video", film), Part("image", picture)]
    reply = talker.reply([*parts, *words("What?")], FEW)

    session = Session(talker.model, policy="full", media=talker.media, max_tokens=6)
    session.append_text("First a film.")
    with open_media(film, talker.media) as reader:
        for chunk in reader:
            session.append_media(chunk)
    (still,) = chunks_of(Part("image", picture), talker.media)
    assert still.still
    assert (still.frames[0] == (200, 30, 30)).all()
    session.append_media(still)
    seen = session.cache.history.tokens_seen
    pieces = list(session.ask("What?"))
    assert reply.text == "".join(piece.text for piece in pieces)
    assert reply.tokens == len(pieces)
    assert reply.tokens_seen == reply.tokens_kept == seen
    # Nothing of it is left for the next question.
    assert talker.reply([*parts, *words("What?")], FEW) == reply


def test_policy_and_watermarks_hold(checkpoint: str, film: str) -> None:
    tight = Talker(
        checkpoint,
        policy="fifo",
        high_watermark=130,
        low_watermark=100,
        fps=1.0,
        chunk_seconds=1.0,
        max_pixels=56 * 56,
        system_prompt="Watch.",
        backend="reference",
    )
    reply = tight.reply([Part("video", film), *words("What?")], FEW)
    assert reply.tokens_kept <= 130
    assert reply.tokens_seen > 6 * 30
    assert (tight.media.fps, tight.media.chunk_seconds) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("start", "stop", "spans"),
    [
        (None, None, [(0, 2), (2, 4), (4, 6)]),
        (1.0, 3.5, [(1, 2), (2, 3.5)]),
        (None, 4.0, [(0, 2), (2, 4)]),
        (4.5, None, [(4.5, 6)]),
    ],
)
@pytest.mark.parametrize("kind", ["video", "audio"])
def test_a_stretch_of_a_file(
    kind: str, start: float | None, stop: float | None, spans: Any, talker: Talker, film: str
) -> None:
    got = list(chunks_of(Part(kind, f"file://{film}", start, stop), talker.media))
    assert [(chunk.start, chunk.stop) for chunk in got] == [pytest.approx(span) for span in spans]
    for chunk in got:
        assert bool(chunk.frames) == (kind == "video")
        assert chunk.samples is not None
        assert len(chunk.samples) == pytest.approx(16_000 * chunk.seconds, abs=1)


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100])
def test_samples_are_resampled(rate: int, talker: Talker) -> None:
    time = np.arange(3 * rate) / rate
    sound = {"array": 0.5 * np.sin(2 * np.pi * 440 * time), "sampling_rate": rate}
    got = list(chunks_of(Part("audio", sound), talker.media))
    samples = np.concatenate([chunk.samples for chunk in got if chunk.samples is not None])
    assert len(samples) == pytest.approx(48_000, abs=50)
    assert np.abs(np.fft.rfft(samples[:16_000])).argmax() == pytest.approx(440, abs=1)
    assert np.abs(samples).max() == pytest.approx(0.5, abs=0.02)
    stereo = {"array": np.stack([sound["array"], sound["array"]]), "sampling_rate": rate}
    both = list(chunks_of(Part("audio", stereo), talker.media))
    np.testing.assert_allclose(both[0].samples, got[0].samples, atol=1e-3)


def test_a_stop_string_ends_a_reply_and_is_left_out(talker: Talker) -> None:
    whole = talker.reply(words("What?"), Generation(max_tokens=12))
    assert len(whole.text) > 6
    stop = whole.text[4:6]
    cut = talker.reply(words("What?"), Generation(max_tokens=12, stops=("<no>", stop)))
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.tokens < whole.tokens


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Generation(100, SamplingConfig(seed=0))),
        ({"max_new_tokens": 7, "until": "\n"}, Generation(7, SamplingConfig(seed=0), ("\n",))),
        ({"until": ["a", "", "b"]}, Generation(100, SamplingConfig(seed=0), ("a", "b"))),
        (
            {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "do_sample": True, "num_beams": 1},
            Generation(100, SamplingConfig(0.5, 0.9, 5, seed=0)),
        ),
        ({"temperature": 0.5, "do_sample": False}, Generation(100, SamplingConfig(seed=0))),
        ({"temperature": None, "top_p": None}, Generation(100, SamplingConfig(seed=0))),
    ],
)
def test_generation_options_as_harnesses_name_them(given: Any, expected: Generation) -> None:
    assert read_generation(given, 100) == expected


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Part("video", "no-such.mp4"), "no-such.mp4 does not exist"),
        (Part("video", [np.zeros((2, 2, 3))]), r"\[harness\] video must be a path, got list"),
        (Part("image", 3), r"\[harness\] image must be a path, got int"),
        (Part("audio", {"array": [0.1]}), r"samples with array and sampling_rate"),
        (Part("audio", {"array": [], "sampling_rate": 8000}), r"finite samples of one dimension"),
        (Part("audio", {"array": [np.nan], "sampling_rate": 9}), r"finite samples of one dim"),
    ],
)
def test_media_that_can_not_be_read_are_refused(part: Part, message: str, talker: Talker) -> None:
    with pytest.raises(MediaError, match=message):
        talker.reply([part, *words("What?")], FEW)


def test_bad_options_are_refused(checkpoint: str, talker: Talker) -> None:
    with pytest.raises(ConfigError, match="'smell'"):
        Part("smell", "roses")
    with pytest.raises(ConfigError, match="max_tokens must be at least 1: 0"):
        talker.reply(words("What?"), Generation(max_tokens=0))
    with pytest.raises(ConfigError, match="'best'"):
        Talker(checkpoint, policy="best")
    with pytest.raises(OmnitideError, match="no-such-folder"):
        Talker(str(Path("no-such-folder") / os.fspath("x")))


def test_a_long_text_finds_room(talker: Talker) -> None:
    reply = talker.reply([*words("word " * 900), IMAGE_OF_NOTHING, *words("What?")], FEW)
    assert reply.tokens_seen > 4 * 900


IMAGE_OF_NOTHING = Part("image", Image.new("L", (56, 56)))
