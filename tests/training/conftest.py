"""Makes the folder `training` importable, which is not part of the installed package."""

from __future__ import annotations

import sys
from collections.abc import Callable
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
    from training import tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.write(tiny_settings, folder, num_scripts=20)
    return folder


@pytest.fixture(scope="session")
def writer(tiny_settings: Any, tokenizer_folder: Path) -> Any:
    """Lays out streams for `tiny_settings`."""
    from training.writer import Writer

    return Writer(tiny_settings, tokenizer_folder)


@pytest.fixture(scope="session")
def tiny_row(tiny_settings: Any, writer: Any) -> Callable[..., Any]:
    """A row of drawn streams: `tiny_row(seed, units, forgetting=None)`, with its scripts."""
    from training.rows import RowBuilder
    from training.scenario import draw_script

    def make(seed: int, units: tuple[int, ...] = (2, 1), forgetting: Any = None) -> Any:
        random = np.random.default_rng(seed)
        builder = RowBuilder(tiny_settings, writer)
        scripts = []
        for number, count in enumerate(units):
            scripts.append(draw_script(random, count, "train", 8))
            assert builder.add(scripts[-1], random, forgetting, number == len(units) - 1)
        return builder.build(), scripts

    return make
