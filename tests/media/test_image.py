"""Frames to patch vectors, against transformers' Qwen2-VL processor and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    smart_resize as their_smart_resize,
)

from omnitide.errors import ConfigError, MediaError
from omnitide.models.qwen2_5_omni.image import grid_of, prepare_frames, smart_resize

LEAST, MOST = 56 * 56, 448 * 448


def _noise(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def _theirs(
    frame: NDArray[np.uint8], least: int = LEAST, most: int = MOST
) -> tuple[NDArray[np.float32], tuple[int, ...]]:
    processor = Qwen2VLImageProcessorPil(size={"shortest_edge": least, "longest_edge": most})
    out = processor(images=[frame], input_data_format="channels_last", return_tensors="np")
    return out["pixel_values"], tuple(out["image_grid_thw"][0].tolist())


@pytest.mark.parametrize(
    ("height", "width"),
    [
        (1, 1),
        (2, 3),
        (13, 15),
        (27, 29),
        (28, 28),
        (30, 30),
        (41, 43),
        (42, 70),
        (97, 113),
        (100, 3000),
        (3000, 100),
        (1, 190),
        (190, 1),
        (10, 2000),
        (448, 448),
        (449, 447),
        (480, 640),
        (1080, 1920),
    ],
)
def test_patches_equal_transformers(height: int, width: int) -> None:
    frame = _noise(height, width)
    patches, grid = prepare_frames([frame], min_pixels=LEAST, max_pixels=MOST)
    expected, expected_grid = _theirs(frame)
    assert grid == expected_grid
    assert patches.dtype == np.float32
    assert_array_equal(patches, expected)


@pytest.mark.parametrize(("least", "most"), [(3136, 12_845_056), (784, 784), (100_000, 200_000)])
def test_bounds_of_the_area_equal_transformers(least: int, most: int) -> None:
    frame = _noise(211, 307)
    patches, grid = prepare_frames([frame], min_pixels=least, max_pixels=most)
    expected, expected_grid = _theirs(frame, least, most)
    assert grid == expected_grid
    assert_array_equal(patches, expected)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_frames_are_paired(count: int) -> None:
    """Each half of a patch vector's time axis is one frame, as if it were a still picture."""
    frames = [_noise(70, 84, seed) for seed in range(count)]
    patches, (steps, rows, columns) = prepare_frames(frames, min_pixels=LEAST, max_pixels=MOST)
    assert steps == (count + 1) // 2
    vectors = patches.reshape(steps, rows * columns, 3, 2, 14 * 14)
    for step in range(steps):
        for half in range(2):
            still, _ = _theirs(frames[min(2 * step + half, count - 1)])
            expected = still.reshape(rows * columns, 3, 2, 14 * 14)[:, :, 0]
            assert_array_equal(vectors[step, :, :, half], expected)


@pytest.mark.parametrize("seed", range(4))
def test_smart_resize_equals_transformers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tried = 0
    for _ in range(2000):
        height, width = (int(side) for side in rng.integers(1, 3000, 2))
        if max(height, width) > 200 * min(height, width):
            continue
        least = int(rng.integers(1, 100)) * 784
        most = least + int(rng.integers(0, 200)) * 784
        expected = their_smart_resize(height, width, 28, least, most)
        if min(expected) == 0:
            # Theirs gives no pixels where both sides round to 0 or one does above the least area.
            expected = (max(expected[0], 28), max(expected[1], 28))
        assert smart_resize(height, width, min_pixels=least, max_pixels=most) == expected
        tried += 1
    assert tried > 1500


@pytest.mark.parametrize(
    ("size", "grid"),
    [((480, 640), (1, 34, 46)), ((448, 448), (1, 32, 32)), ((1080, 1920), (1, 78, 138))],
)
def test_published_grids(size: tuple[int, int], grid: tuple[int, int, int]) -> None:
    assert grid_of(1, *size, min_pixels=3136, max_pixels=12_845_056) == grid


def test_grid_of_agrees_with_the_pixels() -> None:
    frames = [_noise(50, 90)] * 5
    _, grid = prepare_frames(frames, min_pixels=LEAST, max_pixels=MOST)
    assert grid_of(5, 50, 90, min_pixels=LEAST, max_pixels=MOST) == grid == (3, 4, 6)


def test_a_side_is_never_below_one_block() -> None:
    assert smart_resize(10, 1900, min_pixels=0, max_pixels=MOST) == (28, 1904)


@pytest.mark.parametrize("size", [(1, 201), (2010, 10)])
def test_long_pictures_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(MediaError, match="at most 200 times"):
        smart_resize(*size, min_pixels=LEAST, max_pixels=MOST)


def test_aspect_of_exactly_200_is_taken() -> None:
    assert smart_resize(10, 2000, min_pixels=LEAST, max_pixels=MOST)[1] > 0


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([], "at least one frame"),
        ([np.zeros((0, 5, 3), np.uint8)], "must have pixels"),
        ([np.zeros((9, 9, 3), np.float32)], "must be uint8"),
        ([np.zeros((9, 9), np.uint8)], "must be uint8"),
        ([np.zeros((9, 9, 4), np.uint8)], "must be uint8"),
        ([np.zeros((9, 9, 3), np.uint8), np.zeros((9, 8, 3), np.uint8)], "one size"),
    ],
)
def test_bad_frames_are_refused(frames: list[NDArray[np.uint8]], words: str) -> None:
    with pytest.raises(MediaError, match=words):
        prepare_frames(frames, min_pixels=LEAST, max_pixels=MOST)


def test_bounds_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(ConfigError, match="raise --max-pixels"):
        smart_resize(100, 100, min_pixels=1000, max_pixels=999)


def test_frames_are_not_changed() -> None:
    frame = _noise(60, 60)
    before = frame.copy()
    patches, _ = prepare_frames([frame], min_pixels=LEAST, max_pixels=MOST)
    patches[:] = 0
    again, _ = prepare_frames([frame], min_pixels=LEAST, max_pixels=MOST)
    assert_array_equal(frame, before)
    assert again.any()
