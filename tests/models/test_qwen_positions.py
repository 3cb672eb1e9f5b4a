"""Positions of the offline layout against transformers' own function, and of the live layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide.models.qwen2_5_omni.audio import num_audio_tokens
from omnitide.models.qwen2_5_omni.config import parse_config
from omnitide.models.qwen2_5_omni.layout import Layout
from omnitide.models.qwen2_5_omni.tiny import tiny_config
from omnitide.positions import lay_out
from omnitide.units import Modality, Unit, UnitBuilder, UnitKind, spans_of

LAYOUT = Layout.of(parse_config(tiny_config()))
SEEDS = range(420)

Piece = tuple[Any, ...]


def _random_pieces(seed: int) -> tuple[list[Piece], bool]:
    """A conversation of text, pictures, sound and films, and whether films have sound."""
    random = np.random.default_rng(seed)
    with_sound = bool(random.integers(2))
    pieces: list[Piece] = []
    for _ in range(random.integers(1, 7)):
        kind = random.choice(["text", "still", "sound", "film"])
        rows, columns = (2 * random.integers(1, 14, 2)).tolist()
        mel = int(random.integers(3, random.choice([40, 700])))
        if kind == "text":
            pieces.append(("text", int(random.integers(1, 9))))
        elif kind == "still":
            pieces.append(("still", (1, rows, columns)))
        elif kind == "sound":
            pieces.append(("sound", mel))
        else:
            # Up to 4 s a step: cuts that leave a whole chunk without a picture.
            seconds = float(random.choice([0.5, 1.0, 1.1, 2 / 3, 2.0, 4.0]))
            grid = (int(random.integers(1, 7)), rows, columns)
            pieces.append(("film", grid, seconds, mel if with_sound else None))
    return pieces, with_sound


def _build(pieces: list[Piece], live: bool = False) -> Unit:
    builder = UnitBuilder()
    for kind, size, *rest in pieces:
        if kind == "text":
            builder.text(np.arange(size))
        elif kind == "still":
            LAYOUT.still(builder, size)
        elif kind == "sound":
            LAYOUT.sound(builder, num_audio_tokens(size))
        elif rest[1] is None:
            LAYOUT.film(builder, size, rest[0])
        else:
            LAYOUT.film_with_sound(builder, size, rest[0], num_audio_tokens(rest[1]), live)
    return builder.build(UnitKind.MEDIA)


def _oracle(thinker: Any, unit: Unit, pieces: list[Piece], with_sound: bool) -> tuple[Any, int]:
    """Positions (num_tokens, 3) and the next position, of transformers."""
    import torch

    ids = torch.tensor(unit.cells["token"].astype(np.int64))[None]
    stills = [p[1] for p in pieces if p[0] == "still"]
    films = [p for p in pieces if p[0] == "film"]
    mels = [p[1] for p in pieces if p[0] == "sound"]
    if with_sound:
        mels = [p[1] if p[0] == "sound" else p[3] for p in pieces if p[0] in ("sound", "film")]
    positions, delta = thinker.get_rope_index(
        ids,
        torch.tensor(stills) if stills else None,
        torch.tensor([f[1] for f in films]) if films else None,
        torch.ones_like(ids),
        with_sound,
        torch.tensor(mels) if mels else None,
        torch.tensor([f[2] for f in films]) if films else None,
    )
    return positions[:, 0].T.numpy(), int(delta) + ids.shape[1]


@pytest.fixture(scope="module")
def thinker(tiny_checkpoint: Callable[..., Path], transformers_thinker: Any) -> Any:
    return transformers_thinker(tiny_checkpoint())


@pytest.mark.parametrize("seed", SEEDS)
def test_offline_positions_are_those_of_transformers(seed: int, thinker: Any) -> None:
    pieces, with_sound = _random_pieces(seed)
    unit = _build(pieces)
    want, _ = _oracle(thinker, unit, pieces, with_sound)
    got, _ = lay_out(unit.cells)
    np.testing.assert_array_equal(got, want)


def test_the_random_layouts_have_what_is_hard() -> None:
    layouts = [_random_pieces(seed)[0] for seed in SEEDS]
    films = [piece for pieces in layouts for piece in pieces if piece[0] == "film"]
    assert len(films) > 300
    assert sum(film[3] is not None and film[3] > 200 for film in films) > 50
    assert sum(_steps_back(_build(pieces)) for pieces in layouts) > 20


def _steps_back(unit: Unit) -> bool:
    """Whether a marker lies below the greatest position before it."""
    positions = lay_out(unit.cells)[0].max(axis=1)
    return bool((positions < np.maximum.accumulate(positions))[unit.cells["role"] == 0].any())


@pytest.mark.parametrize(
    ("pieces", "num_tokens", "num_positions"),
    [
        pytest.param([("still", (1, 8, 12))], 26, 8, id="8x12 picture"),
        pytest.param([("film", (4, 4, 8), 1.0, None)], 34, 78, id="4 s silent film"),
        pytest.param([("film", (4, 4, 8), 1.0, 370)], 128, 94, id="3.7 s film with sound"),
        pytest.param([("film", (2, 32, 32), 1.0, 200)], 566, 52, id="2 s at 448 x 448 with sound"),
        pytest.param([("film", (2, 32, 32), 1.0, None)], 514, 28, id="2 s at 448 x 448 without"),
        pytest.param([("still", (1, 34, 46))], 393, 25, id="640 x 480 picture"),
    ],
)
@pytest.mark.parametrize("live", [False, True])
def test_worked_values(
    pieces: list[Piece], num_tokens: int, num_positions: int, live: bool
) -> None:
    unit = _build(pieces, live)
    _, counter = lay_out(unit.cells)
    assert (len(unit), counter) == (num_tokens, num_positions)


def test_live_span_takes_as_much_as_the_larger_of_picture_and_sound() -> None:
    # 20 merged rows against 6 audio tokens: the sound comes last and is the shorter one.
    grid, mel = (1, 40, 4), 24
    live = _build([("film", grid, 1.0, mel)], live=True)
    offline = _build([("film", grid, 1.0, mel)])
    assert lay_out(live.cells)[1] == 1 + 20 + 1
    assert lay_out(offline.cells)[1] == 1 + 6 + 1


def test_live_chunk_is_one_span_of_picture_and_one_of_sound() -> None:
    unit = _build([("film", (2, 4, 4), 1.0, 200)], live=True)
    ids = LAYOUT.tokens
    spans = spans_of(unit.cells)
    assert [span.modality for span in spans] == [
        Modality.TEXT, Modality.IMAGE, Modality.AUDIO, Modality.TEXT
    ]  # fmt: skip
    assert unit.cells["token"].tolist() == [
        ids.vision_bos, ids.audio_bos, *[ids.video] * 8, *[ids.audio] * 50, ids.audio_eos,
        ids.vision_eos,
    ]  # fmt: skip
    positions = lay_out(unit.cells, 7)[0]
    # The two markers share position 7, picture and sound share base 8; row and column count from
    # there at every time.
    np.testing.assert_array_equal(positions[:2], [[7] * 3] * 2)
    np.testing.assert_array_equal(
        positions[2:10],
        [[8 + t, 8 + r, 8 + c] for t in (0, 25) for r in (0, 1) for c in (0, 1)],
    )
    np.testing.assert_array_equal(positions[10:60], [[8 + i] * 3 for i in range(50)])
    np.testing.assert_array_equal(positions[60:], [[58] * 3] * 2)


def test_a_longer_live_chunk_is_cut_every_two_seconds() -> None:
    unit = _build([("film", (4, 2, 2), 1.0, 400)], live=True)
    spans = [(s.modality, s.stop - s.start) for s in spans_of(unit.cells)[1:-1]]
    assert spans == [
        (Modality.IMAGE, 2), (Modality.AUDIO, 50), (Modality.IMAGE, 2), (Modality.AUDIO, 50)
    ]  # fmt: skip


@pytest.mark.parametrize("frames", range(12))
def test_audio_token_count(frames: int, thinker: Any) -> None:
    import torch

    _, want = thinker.model.audio_tower._get_feat_extract_output_lengths(torch.tensor(frames))
    assert num_audio_tokens(frames) == int(want)
