"""Makes the folder `training` importable, which is not part of the installed package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]

if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))


@pytest.fixture(scope="session")
def tiny_settings() -> Any:
    """The smallest model with all its parts."""
    from training.settings import tiny

    return tiny()


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory, tiny_settings: Any) -> Path:
    """A folder with the tokenizer of `tiny_settings`, learned from few streams."""
    from training.rows import tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.write(tiny_settings, folder, num_scripts=20)
    return folder


@pytest.fixture(scope="session")
def writer(tiny_settings: Any, tokenizer_folder: Path) -> Any:
    """Lays out streams for `tiny_settings`."""
    from training.rows.writer import Writer

    return Writer(tiny_settings, tokenizer_folder)


@pytest.fixture(scope="session")
def tiny_row(tiny_settings: Any, writer: Any) -> Callable[..., Any]:
    """A row of drawn streams: `tiny_row(seed, units, forgetting=None)`, with its scripts."""
    from training.rows.builder import RowBuilder
    from training.world.scenario import draw_script

    def make(seed: int, units: tuple[int, ...] = (2, 1), forgetting: Any = None) -> Any:
        random = np.random.default_rng(seed)
        builder = RowBuilder(tiny_settings, writer)
        scripts = []
        for number, count in enumerate(units):
            scripts.append(draw_script(random, count, "train", 8))
            assert builder.add(scripts[-1], random, forgetting, number == len(units) - 1)
        return builder.build(), scripts

    return make


@pytest.fixture
def made_media(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Plain frames and hums in place of painter and player; no bank and no PyTorch are needed.

    `made_media(pictures)` gives uint8 (n, 4, 112, 112, 3), `made_media(sounds)` float32 (n, 32000).
    They depend on each unit's place and `look`, and are such that a film keeps them well.
    """
    from training.render import stream as made_stream
    from training.world.script import Picture

    class Made(np.ndarray):
        def cpu(self) -> Made:
            return self

        def numpy(self) -> np.ndarray:
            return np.asarray(self)

    def make(given: Any) -> Any:
        looks = np.array([one.look for one in given])
        if isinstance(given[0], Picture):
            shades = 40 + 24 * ((looks[:, None] + np.arange(4)) % 8)
            ones = np.ones((1, 1, 112, 112, 3), np.uint8)
            return (shades[:, :, None, None, None].astype(np.uint8) * ones).view(Made)
        time = np.arange(32_000) / 16_000
        waves = np.sin(np.outer(200.0 + 100 * (looks % 5), 2 * np.pi * time))
        loud = 0.1 + 0.1 * (looks % 4)
        return (loud[:, None] * waves).astype(np.float32).view(Made)

    class Maker:
        paint = play = staticmethod(make)

    made_stream.chunks_of.cache_clear()
    monkeypatch.setattr(made_stream, "_makers", lambda bank: (Maker, Maker))
    yield make
    made_stream.chunks_of.cache_clear()


@pytest.fixture(scope="session")
def bank() -> Any:
    """A bank without a speech tool, photographs or fonts of the system: noise for speech and
    photographs, and two styles of letters."""
    from training.bank.bank import FIRST_REPEAT, FIRST_SENTENCE, NUM_COLUMNS, Bank
    from training.bank.letters import STYLES, draw_letters
    from training.bank.mulaw import encode
    from training.world.grounds import PHOTOGRAPHS
    from training.world.voices import VOICES

    random = np.random.default_rng(0)
    lengths = random.integers(5000, 12000, (len(VOICES), NUM_COLUMNS))
    lengths[:, FIRST_SENTENCE:FIRST_REPEAT] = 32000
    for row, voice in enumerate(VOICES):
        if not voice.sentences:
            lengths[row, FIRST_SENTENCE:] = 0
    starts = np.cumsum(lengths).reshape(lengths.shape) - lengths
    # One noise over and over: utterances begin at other places of it.
    noise = random.uniform(-0.9, 0.9, 1_000_003).astype(np.float32)
    photographs = random.integers(0, 256, (len(PHOTOGRAPHS), 64, 64, 3), dtype=np.uint8)
    letters = draw_letters([style for style in STYLES if style.font is None])
    return Bank(
        np.resize(encode(noise), int(lengths.sum())),
        starts,
        lengths,
        photographs,
        letters.words,
        letters.digits,
        letters.word_bars,
        letters.digit_bars,
    )
