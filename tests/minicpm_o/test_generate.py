"""The command line with the golden checkpoint on really encoded media."""

from __future__ import annotations

import json
import wave
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from omnitide.cli import main
from omnitide.media.clip import ClipPicture, ClipSound, write_film

RATE = 16_000
FILLER = -9
FIRST_ADDED = 215
"""Least id of an added token."""

FILM_SECONDS = 4

Run = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def _private_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def media(golden: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two films, two odd pictures, and of the golden sound clip.wav, voice.wav and hop.wav."""
    folder = tmp_path_factory.mktemp("media")
    write_film(folder / "film.mp4", FILM_SECONDS, ClipPicture(), ClipSound())
    write_film(folder / "silent.mp4", FILM_SECONDS, ClipPicture(), None)
    random = np.random.default_rng(0)
    for name, size in (("panorama", (70, 1400)), ("pixel", (1, 1))):
        pixels = random.integers(0, 256, (*size, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{name}.png")
    write_wave(folder / "clip.wav", golden("05_audio_7.0s_wave_mel")["wav_i16"][: 5 * RATE])
    write_wave(folder / "voice.wav", golden("11_llm_duplex")["ref_wav_i16"])
    write_wave(folder / "hop.wav", golden("11_llm_duplex")["ref_wav_i16"][:100])
    return folder


def write_wave(path: Path, samples: NDArray[np.int16]) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.astype("<i2").tobytes())


@pytest.fixture
def generate(golden_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """`generate(*arguments, code=0)`: the JSON object that the golden model gives."""

    def run(*arguments: object, code: int = 0) -> dict[str, Any]:
        line = ["generate", "--model", golden_checkpoint, "--backend", "reference", "--json"]
        assert main([str(argument) for argument in (*line, *arguments)]) == code
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        found: dict[str, Any] = json.loads(out) if out else {"error": err}
        return found

    return run


def spoken(golden_checkpoint: Path, ids: NDArray[np.int32]) -> str:
    """What is said with these tokens, as the tokenizer of the golden checkpoint spells them."""
    vocab = json.loads((golden_checkpoint / "tokenizer.json").read_text())["model"]["vocab"]
    text = {i: text for text, i in vocab.items() if i < FIRST_ADDED}
    return "".join(text.get(i, "") for i in ids.ravel().tolist())


def test_what_the_published_code_says_is_said(
    generate: Run, media: Path, golden: Any, golden_checkpoint: Path
) -> None:
    """Greedy, with a voice, recalling words of dropped units: file 17, from a WAV."""
    want = golden("17_window_context")
    found = generate(
        *("--duplex", "--audio", media / "clip.wav", "--voice", media / "voice.wav"),
        *("--force-listen", 0, "--unit-tokens", 6, "--recall", 5),
        *("--policy", "fifo", "--high-watermark", 76, "--low-watermark", 70),
    )
    said = spoken(golden_checkpoint, want["fed_after_audio"])
    assert "".join(turn["text"] for turn in found["turns"]) == said
    assert found["text"] == []
    # Every unit speaks; each but the last closing token was decided on.
    fed = int((want["fed_after_audio"] != FILLER).sum())
    assert sum(turn["tokens"] for turn in found["turns"]) == fed - len(want["fed_after_audio"])
    assert {turn["speaker"] for turn in found["turns"]} == {"model"}
    assert found["tokens_kept"] == want["steps"][-1][1]
    assert found["units"] == 1 + 5
    assert found["broken"] is None


def test_who_spoke_when_covers_the_stream(generate: Run, media: Path) -> None:
    voice = ("--voice", media / "voice.wav")
    found = generate("--duplex", "--audio", media / "clip.wav", *voice, "--force-listen", 2)
    turns = found["turns"]
    assert turns[0] == {
        "speaker": "stream",
        "start": 0.0,
        "stop": 2.0,
        "text": "",
        "tokens": 2,
        "finished": False,
    }
    assert [turn["start"] for turn in turns[1:]] == [turn["stop"] for turn in turns[:-1]]
    assert turns[-1]["stop"] == 5.0
    assert {turn["speaker"] for turn in turns} == {"stream", "model"}
    for before, after in pairwise(turns):
        assert before["speaker"] != after["speaker"] or before["finished"]
    # The prefix with its voice, and of each second its markers, sound and decisions.
    decided = sum(turn["tokens"] for turn in turns)
    assert found["tokens_seen"] == 23 + 5 * (1 + 10 + 1) + decided


def test_a_film_is_seen_and_heard_a_second_at_a_time(generate: Run, media: Path) -> None:
    found = generate("--duplex", "--video", media / "film.mp4", "--force-listen", 100)
    assert found["units"] == 1 + FILM_SECONDS
    prefix = 8 + 2  # without a voice
    assert found["tokens_seen"] == prefix + FILM_SECONDS * (66 + 10 + 3)


@pytest.mark.parametrize("film", ["silent.mp4", "clip.wav"])
def test_films_without_sound_and_sound_without_film(generate: Run, media: Path, film: str) -> None:
    option = "--audio" if film.endswith("wav") else "--video"
    found = generate("--duplex", option, media / film)
    assert found["units"] > FILM_SECONDS
    assert found["turns"][0]["speaker"] == "stream"


def test_a_question_about_a_film(generate: Run, media: Path) -> None:
    """The ordinary way: the model is asked, at the end and on the way."""
    found = generate("--video", media / "film.mp4", "--ask-at", 2, "-m", 4)
    assert [reply["time"] for reply in found["text"]] == [2.0]
    assert found["text"][0]["tokens"] == 4
    # A second is a picture and ten tokens of sound, each between its markers.
    asked = 1 + FILM_SECONDS + 2
    assert found["units"] == asked
    assert "turns" not in found


@pytest.mark.parametrize(
    ("image", "pictures"),
    [
        ("pixel", 1),  # enlarged, not cut
        ("panorama", 1),  # 20:1, and not larger than one slice
    ],
)
def test_odd_still_pictures(generate: Run, media: Path, image: str, pictures: int) -> None:
    found = generate("--image", media / f"{image}.png", "-m", 1)
    plain = generate("--image", media / f"{image}.png", "-m", 1, "-p", "Describe")
    assert found["units"] == plain["units"] == 4
    # System prefix, number and line break of the picture, question with its opening, the reply.
    more = found["tokens_seen"] - plain["tokens_seen"]
    assert more == 6  # " what you see and hear." in pieces
    assert plain["tokens_seen"] > 66 * pictures


def test_a_recording_shorter_than_a_hop(generate: Run, media: Path) -> None:
    found = generate("--duplex", "--audio", media / "hop.wav")
    assert found["broken"] is None
    assert found["units"] in (1, 2)


def test_a_trace_of_a_duplex_stream_can_be_simulated(
    generate: Run, media: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    found = generate("--duplex", "--video", media / "film.mp4", "--trace", trace)
    assert main(["simulate", "--trace", str(trace), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["units"] == FILM_SECONDS + 1
    assert row["tokens_seen"] == found["tokens_seen"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--duplex", "--audio", "clip.wav", "--voice", "film.png"), "does not exist"),
        (("--duplex", "--audio", "clip.wav", "--voice", "silent.mp4"), "sound"),
        (("--duplex", "--audio", "clip.wav", "--max-pixels", 10 * 448 * 448), "at most 9 slices"),
        (
            ("--duplex", "--audio", "clip.wav", "--sound-memory", 29),
            "--sound-memory must be at most 28 s",
        ),
        (("--duplex", "--audio", "clip.wav", "-p", "Why?"), "takes no questions"),
    ],
)
def test_refusals(
    generate: Run,
    media: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[object, ...],
    message: str,
) -> None:
    monkeypatch.chdir(media)
    assert message in generate(*arguments, code=2)["error"]


def test_words_are_written_turn_by_turn(
    golden_checkpoint: Path, media: Path, golden: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["generate", "--model", golden_checkpoint, "--backend", "reference", "--duplex"]
    line += ["--audio", media / "clip.wav", "--voice", media / "voice.wav", "--force-listen", 0]
    line += ["--unit-tokens", 6, "--recall", 5, "--policy", "fifo"]
    line += ["--high-watermark", 76, "--low-watermark", 70]
    assert main([str(argument) for argument in line]) == 0
    said = spoken(golden_checkpoint, golden("17_window_context")["fed_after_audio"])
    assert capsys.readouterr().out.split() == said.split()
