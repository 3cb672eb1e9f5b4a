"""Painted pictures, against the needle's own painter and against what can be counted in them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from omnitide.evaluation.needle.fact import COLOURS, SHAPES, WORDS
from omnitide.evaluation.needle.painting import GRAIN, paint_ground, paint_shape, paint_words
from training.world.grounds import FIRST_PLAIN, NUM_GROUNDS, wave_ground
from training.world.script import Picture

torch = pytest.importorskip("torch", reason="the painter needs PyTorch")
ndimage = pytest.importorskip("scipy.ndimage", reason="shapes are counted with SciPy")

Frames = NDArray[np.uint8]
PLAIN = FIRST_PLAIN + 3


def picture(look: int, **changes: Any) -> Picture:
    """A plain ground with what is changed."""
    return dataclasses.replace(Picture(PLAIN, None, "", None, 1, look), **changes)


@pytest.fixture(scope="module")
def painter(bank: Any) -> Any:
    from training.render.pictures import Painter

    return Painter(bank)


@pytest.fixture(scope="module")
def looks() -> dict[str, int]:
    """Seeds of looks: the needle's, and those whose fact shows in some frames."""
    from training.render.looks import read_looks

    read = read_looks([picture(look, kind="shape", text="red circle") for look in range(200)])
    shown = [tuple(row) for row in read.shown.tolist()]
    plain = [i for i in range(200) if not read.needle[i]]
    return {
        "needle": int(np.flatnonzero(read.needle)[0]),
        "other": next(i for i in plain if all(shown[i])),
        "early": next(i for i in plain if shown[i] == (True, True, False, False)),
        "late": next(i for i in plain if shown[i] == (False, False, True, True)),
    }


def paint(painter: Any, *pictures: Picture) -> Frames:
    frames: Frames = painter.paint(pictures).numpy()
    return frames


def changed(painter: Any, shown: Picture) -> NDArray[np.bool_]:
    """Where a picture differs from its ground by more than rounding; (FRAMES, 112, 112)."""
    ground = dataclasses.replace(shown, kind=None, text="")
    with_it, without = paint(painter, shown, ground).astype(int)
    differs: NDArray[np.bool_] = np.abs(with_it - without).max(-1) > 6
    return differs


def test_frames_have_the_size_of_a_unit(painter: Any) -> None:
    frames = painter.paint([picture(0), picture(1)])
    assert frames.shape == (2, 4, 112, 112, 3)
    assert frames.dtype == torch.uint8


@pytest.mark.parametrize("seed", [0, 5, 96])
def test_waves_are_the_needle_s_but_for_grain(painter: Any, seed: int) -> None:
    # The needle's turn at second 0 is seed / 97 of a circle: 30 phases for each seed.
    (frames,) = paint(painter, picture(3, ground=wave_ground(30 * seed)))
    for frame, second in zip(frames, (0.0, 0.5, 1.0, 1.5), strict=True):
        theirs = paint_ground(second, 112, seed).astype(int)
        difference = frame.astype(int) - theirs
        assert np.abs(difference).max() <= 2 * GRAIN + 1
        # The needle cuts fractions off, the painter rounds.
        assert difference.mean() == pytest.approx(0.5, abs=0.3)
        assert difference.std() == pytest.approx(np.sqrt(2) * GRAIN / np.sqrt(3), rel=0.1)


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("colour", list(COLOURS))
def test_the_needle_s_look_is_its_shape(
    painter: Any, looks: dict[str, int], colour: str, shape: str
) -> None:
    name = f"{colour} {shape}"
    (frames,) = paint(painter, picture(looks["needle"], kind="shape", text=name))
    theirs = paint_shape(np.full((112, 112, 3), 128, np.uint8), name)
    there = (theirs != 128).any(-1)
    for frame in frames:
        assert ((frame == COLOURS[colour]).all(-1) == there).all()


@pytest.mark.parametrize("word", WORDS)
def test_the_needle_s_look_is_its_word(painter: Any, looks: dict[str, int], word: str) -> None:
    (frames,) = paint(painter, picture(looks["needle"], kind="word", text=word))
    theirs = paint_words(np.full((112, 112, 3), 77, np.uint8), word.upper())
    bar = (theirs != 77).any((1, 2))
    for frame in frames:
        assert np.abs(frame[bar].astype(int) - theirs[bar]).max() <= 1
        assert (frame[~bar] != 255).all()


@pytest.mark.parametrize("number", ["48213", "11111", "90077", "65432"])
def test_the_needle_s_look_is_its_number(painter: Any, looks: dict[str, int], number: str) -> None:
    (frames,) = paint(painter, picture(looks["needle"], kind="digits", text=number))
    theirs = paint_words(np.full((112, 112, 3), 77, np.uint8), number)
    bar = np.flatnonzero((theirs != 77).any((1, 2)))[2:-2]
    # The needle centres the ink; digits stand in columns here, so at most a few pixels aside.
    moved = [
        np.abs(np.roll(theirs, shift, 1)[bar].astype(int) - frames[0][bar]).mean()
        for shift in range(-4, 5)
    ]
    assert min(moved) < 4
    assert len(np.unique(frames[0][bar])) > 2


@pytest.mark.parametrize("motion", ["left", "right", "up", "down"])
def test_a_shape_moves_where_it_is_said_to(painter: Any, motion: str) -> None:
    axis, sign = {"left": (1, -1), "right": (1, 1), "up": (0, -1), "down": (0, 1)}[motion]
    for look in range(12):
        there = changed(painter, picture(look, kind="shape", text="blue square", motion=motion))
        centres = np.array([np.argwhere(frame).mean(0) for frame in there])
        steps = np.diff(centres, axis=0)
        assert (sign * steps[:, axis] > 5).all()
        assert (np.abs(steps[:, 1 - axis]) < 1.5).all()


def test_a_resting_shape_rests(painter: Any, looks: dict[str, int]) -> None:
    there = changed(painter, picture(looks["other"], kind="shape", text="blue square"))
    assert (there == there[0]).mean() > 0.999


@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_as_many_copies_as_counted(painter: Any, shape: str, count: int) -> None:
    for look in range(10):
        shown = picture(look, kind="shape", text=f"red {shape}", count=count)
        there = changed(painter, shown)
        frame = there[0] if there[0].any() else there[-1]
        _, found = ndimage.label(ndimage.binary_opening(frame, np.ones((3, 3))))
        assert found == count


@pytest.mark.parametrize("kind", [("shape", "red cross"), ("word", "anchor"), ("digits", "12345")])
@pytest.mark.parametrize(("name", "frames"), [("early", (0, 1)), ("late", (2, 3))])
def test_some_facts_show_in_half_of_the_frames(
    painter: Any, looks: dict[str, int], name: str, frames: tuple[int, ...], kind: tuple[str, str]
) -> None:
    there = changed(painter, picture(looks[name], kind=kind[0], text=kind[1]))
    assert tuple(np.flatnonzero(there.any((1, 2)))) == frames


def test_facts_stay_within_the_picture(painter: Any) -> None:
    shown = [picture(look, kind="shape", text="black circle") for look in range(40)]
    for one in shown:
        there = changed(painter, one)
        _, found = ndimage.label(there[0] if there[0].any() else there[-1])
        area = there.sum((1, 2)).max()
        width = there.any((0, 1)).sum()
        assert found == 1
        # A disc that isn't cut off fills pi / 4 of its box.
        assert area / width**2 == pytest.approx(np.pi / 4, rel=0.08)


def test_words_differ_and_looks_differ(painter: Any) -> None:
    shown = [picture(11, kind="word", text=word) for word in WORDS]
    frames = paint(
        painter, *shown, *(picture(look, kind="word", text="anchor") for look in range(9))
    )
    assert len({frame.tobytes() for frame in frames}) >= len(WORDS) + 8


def test_a_picture_doesn_t_depend_on_its_batch(painter: Any) -> None:
    kinds = [("shape", "red cross"), ("word", "anchor"), ("digits", "12345"), (None, "")]
    shown = [
        picture(i, kind=kind, text=text, ground=ground)
        for i, (kind, text) in enumerate(kinds * 2)
        for ground in (-5, 0, NUM_GROUNDS - 1)
    ]
    together = paint(painter, *shown)
    alone = np.concatenate([paint(painter, one) for one in shown])
    assert np.abs(together.astype(int) - alone).max() <= 1


def test_described_pictures_of_several_calls_can_be_joined(painter: Any) -> None:
    from training.render.pictures import describe

    kinds = [("shape", "red cross"), ("word", "anchor"), ("digits", "12345"), (None, "")]
    shown = [picture(i, kind=kind, text=text) for i, (kind, text) in enumerate(kinds * 2)]
    # The second part has neither shapes nor letters.
    parts = [describe(shown), describe([picture(3)])]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    assert {len(array) for array in joined.values()} == {9}
    assert torch.equal(painter.paint(joined), painter.paint([*shown, picture(3)]))


def test_no_pictures_are_no_frames(painter: Any) -> None:
    assert painter.paint([]).shape == (0, 4, 112, 112, 3)


def test_grounds_leave_room_for_white_and_black(painter: Any) -> None:
    frames = paint(painter, *(picture(i, ground=i) for i in range(0, NUM_GROUNDS, 5)))
    ends = np.quantile(frames.reshape(len(frames), -1), [0.02, 0.98], axis=1)
    assert (ends[0] > 20).all()
    assert (ends[1] < 235).all()


def test_a_gpu_paints_the_same(bank: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    from training.render.pictures import Painter
    from training.world.scenario import draw_script

    shown = draw_script(np.random.default_rng(3), 46, "train", 0).pictures
    ours = Painter(bank, "cpu").paint(shown).int()
    theirs = Painter(bank, "cuda").paint(shown).cpu().int()
    assert ((ours - theirs).abs() > 1).float().mean() < 1e-3
