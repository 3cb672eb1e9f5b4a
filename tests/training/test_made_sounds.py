"""Made sounds, against the needle's own and against the utterances of a bank of known samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.errors import ConfigError
from omnitide.evaluation.needle import sound as needle
from training.bank.bank import NUM_COLUMNS, column, load_bank, save_bank
from training.bank.mulaw import decoded, encode
from training.world.script import Sound
from training.world.voices import rows_of

torch = pytest.importorskip("torch", reason="the player needs PyTorch")

Samples = NDArray[np.float32]
TEACHER = rows_of("train", sentences=True)[0]


@pytest.fixture(scope="module")
def player(bank: Any) -> Any:
    from training.render.sounds import Player

    return Player(bank)


def play(player: Any, *sounds: Sound) -> Samples:
    samples: Samples = player.play(sounds).numpy()
    return samples


def said(bank: Any, voice: int, place: int) -> Samples:
    """An utterance of the bank, decoded."""
    start, length = bank.starts[voice, place], bank.lengths[voice, place]
    samples: Samples = decoded()[bank.codes[start : start + length]]
    return samples


def found(samples: Samples, pattern: Samples) -> tuple[int, float]:
    """Where a pattern fits best, and the part of its energy that is there in its shape."""
    size = 1 << 16
    spectrum = np.fft.rfft(samples, size) * np.conj(np.fft.rfft(pattern, size))
    match = np.fft.irfft(spectrum, size)[: len(samples)]
    at = int(np.argmax(match))
    piece = samples[at : at + len(pattern)]
    whole = np.linalg.norm(piece) * np.linalg.norm(pattern[: len(piece)])
    return at, float(piece @ pattern[: len(piece)] / whole)


def test_mulaw_keeps_samples_to_a_few_percent() -> None:
    samples = np.linspace(-1, 1, 4001).astype(np.float32)
    again = decoded()[encode(samples)]
    assert (np.abs(again - samples) <= 0.025 * np.abs(samples) + 1e-4).all()
    assert (np.diff(decoded()) > 0).all()


def test_a_bank_is_read_as_written(bank: Any, tmp_path: Any) -> None:
    save_bank(bank, tmp_path / "bank.npz")
    again = load_bank(tmp_path / "bank.npz")
    for name in bank.__slots__:
        np.testing.assert_array_equal(getattr(again, name), getattr(bank, name))


def test_columns_are_all_different() -> None:
    from omnitide.evaluation.needle.fact import WORDS
    from training.world.vocabulary import SPOKEN

    places = [column("speech", word) for word in SPOKEN]
    places += [column(half, word) for half in ("sentence", "repeat") for word in WORDS]
    assert sorted(places) == list(range(NUM_COLUMNS))


@pytest.mark.parametrize("look", range(12))
@pytest.mark.parametrize("word", ["anchor", "seven"])
def test_a_word_is_heard_whole_and_alone(player: Any, bank: Any, word: str, look: int) -> None:
    (samples,) = play(player, Sound("speech", word, 3, look))
    pattern = said(bank, 3, column("speech", word))
    at, likeness = found(samples, pattern)
    assert at + len(pattern) <= 32000
    assert likeness > 0.97


def test_words_stand_anywhere_in_their_unit(player: Any, bank: Any) -> None:
    sounds = [Sound("speech", "anchor", 3, look) for look in range(60)]
    pattern = said(bank, 3, column("speech", "anchor"))
    places = [
        found(samples, pattern)[0] / (32000 - len(pattern)) for samples in play(player, *sounds)
    ]
    assert np.histogram(places, 4, (0, 1))[0].min() >= 5


def test_the_halves_of_a_sentence_follow_each_other(player: Any, bank: Any) -> None:
    halves = [Sound("sentence", "window", TEACHER, 5), Sound("repeat", "window", TEACHER, 5)]
    samples = np.concatenate(play(player, *halves))
    pattern = np.concatenate([said(bank, TEACHER, column(s.kind or "", "window")) for s in halves])
    assert len(pattern) > 32000
    assert found(samples, pattern)[0] == 0
    assert found(samples, pattern)[1] > 0.97


def test_a_voice_without_sentences_says_so(player: Any) -> None:
    voice = next(row for row in rows_of("train") if row not in rows_of("train", sentences=True))
    with pytest.raises(ValueError, match=rf"voice {voice} must say column 34"):
        player.play([Sound("sentence", "anchor", voice, 0)])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_some_beeps_are_the_needle_s(player: Any, count: int) -> None:
    sounds = [Sound("beeps", str(count), 0, look) for look in range(30)]
    theirs = needle.beeps(count)
    exact = [np.abs(s[: len(theirs)] - theirs).max() < 0.15 for s in play(player, *sounds)]
    assert 5 < sum(exact) < 25


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_there_are_as_many_beeps_as_counted(player: Any, count: int) -> None:
    for samples in play(player, *(Sound("beeps", str(count), 0, look) for look in range(40))):
        # Loudness in windows of a hundredth of a second; noise is far below a beep.
        loud = np.sqrt((samples.reshape(-1, 160) ** 2).mean(1)) > 0.2 * np.abs(samples).max()
        assert np.count_nonzero(np.diff(np.r_[False, loud].astype(int)) == 1) == count


def test_units_without_facts_are_noise_and_tones_that_are_fainter_than_speech(player: Any) -> None:
    quiet = play(player, *(Sound(None, "", 0, look) for look in range(200)))
    power = np.sqrt((quiet**2).mean(1))
    assert power.max() < 0.06
    assert np.isclose(power, needle.NOISE, rtol=0.1).mean() > 0.2
    peaks = np.abs(np.fft.rfft(quiet, axis=1)).max(1) / np.linalg.norm(quiet, axis=1)
    # The spectrum of a pure tone stands in one line: 1 / sqrt(2) of all, by length.
    assert 0.1 < (peaks > 40).mean() < 0.3


def test_a_sound_doesn_t_depend_on_its_batch(player: Any) -> None:
    kinds = [("speech", "anchor"), ("beeps", "3"), (None, ""), ("sentence", "anchor")]
    sounds = [Sound(kind, text, TEACHER, i) for i, (kind, text) in enumerate(kinds * 3)]
    alone = np.concatenate([play(player, one) for one in sounds])
    np.testing.assert_allclose(play(player, *sounds), alone, atol=1e-6)
    assert np.abs(alone).max() <= 1


def test_described_sounds_of_several_calls_can_be_joined(player: Any) -> None:
    from training.render.sounds import describe

    kinds = [("speech", "anchor"), ("beeps", "3"), (None, ""), ("sentence", "anchor")]
    sounds = [Sound(kind, text, TEACHER, i) for i, (kind, text) in enumerate(kinds * 3)]
    parts = [describe(sounds[:5]), describe(sounds[5:])]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    np.testing.assert_array_equal(player.play(joined), player.play(sounds))


def test_no_sounds_are_no_samples(player: Any) -> None:
    assert player.play([]).shape == (0, 32000)


def test_a_gpu_plays_the_same(bank: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    from training.render.sounds import Player
    from training.world.scenario import draw_script

    sounds = draw_script(np.random.default_rng(3), 46, "train", 0).sounds
    ours, theirs = Player(bank, "cpu").play(sounds), Player(bank, "cuda").play(sounds).cpu()
    assert (ours - theirs).abs().max() < 1e-5


def _cut_off(path: Path) -> None:
    np.savez(path, codes=np.zeros(9, np.uint8))
    path.write_bytes(path.read_bytes()[:-30])


def _spoilt(path: Path) -> None:
    np.savez_compressed(path, codes=np.arange(10_000))
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes(200) + whole[400:])


@pytest.mark.parametrize(
    "write",
    [
        lambda path: None,
        lambda path: path.mkdir(),
        lambda path: path.write_bytes(b"# Text"),
        lambda path: path.write_bytes(b""),
        lambda path: np.savez(path, codes=np.zeros(9, np.uint8)),
        _cut_off,
        _spoilt,
    ],
    ids=["missing", "folder", "text", "empty", "other arrays", "cut off", "spoilt"],
)
def test_what_is_no_bank_is_refused(write: Callable[[Path], None], tmp_path: Path) -> None:
    file = tmp_path / "bank.npz"
    write(file)
    with pytest.raises(ConfigError, match=r"--speech must be a bank .* training\.speech"):
        load_bank(file)
