"""Slicing, resizing and normalising against the published processor's own numbers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from omnitide.errors import ConfigError, MediaError
from omnitide.models.minicpm_o.image import (
    PATCH,
    Patches,
    patchify,
    plan_slices,
    prepare_picture,
)

Golden = Callable[[str], Mapping[str, NDArray[Any]]]

SCALE = 448
PICTURES = ("hd", "large", "square", "tall", "tiny", "wide")


def pixels_of(patches: Patches) -> NDArray[np.float32]:
    """In the published layout: (3, 14, 14 * patches), the patches laid side by side."""
    vectors = patches.vectors.reshape(-1, 3, PATCH, PATCH)
    return np.ascontiguousarray(vectors.transpose(1, 2, 0, 3).reshape(3, PATCH, -1))


def bytes_of(patches: Patches) -> NDArray[np.uint8]:
    """The picture (height, width, 3) again."""
    squares = patches.vectors.reshape(patches.rows, patches.columns, 3, PATCH, PATCH)
    picture = squares.transpose(0, 3, 1, 4, 2).reshape(
        patches.rows * PATCH, patches.columns * PATCH, 3
    )
    return np.rint((picture * 0.5 + 0.5) * 255).astype(np.uint8)


@pytest.mark.parametrize("limit", [1, 2, 4, 6, 9, 12])
def test_sizes_are_the_published_ones(golden: Golden, limit: int) -> None:
    table = golden("01_image_grid_table")["table"]
    rows = table[table[:, 2] == limit].tolist()
    assert len(rows) == 81
    plans = [plan_slices(width, height, limit, SCALE) for width, height, *_ in rows]
    got = [[plan.columns, plan.rows, *plan.source, *plan.whole] for plan in plans]
    assert got == [row[3:] for row in rows]


@pytest.mark.parametrize("limit", [9, 1])
@pytest.mark.parametrize("name", PICTURES)
def test_pixels_are_the_published_ones(golden: Golden, name: str, limit: int) -> None:
    case = golden(f"02_image_{name}")
    pictures, plan = prepare_picture(case["rgb"], limit, SCALE)
    assert [plan.columns, plan.rows] == case[f"m{limit}_grid"].tolist()
    assert [[p.rows, p.columns] for p in pictures] == case[f"m{limit}_tgt_sizes"].tolist()
    assert len(pictures) == 1 + plan.num_slices
    for index, patches in enumerate(pictures):
        row = case.get(f"m{limit}_p{index}_row")
        if row is not None:
            np.testing.assert_allclose(pixels_of(patches)[1, 7], row, atol=1e-6)
        lines = case.get(f"m{limit}_p{index}_u8_rows")
        if lines is not None:
            at = case[f"m{limit}_u8_row_index"]
            np.testing.assert_array_equal(bytes_of(patches)[at], lines)
    if f"m{limit}_p0_u8" in case:
        np.testing.assert_array_equal(bytes_of(pictures[0]), case[f"m{limit}_p0_u8"])
    sums = [zlib.crc32(pixels_of(patches).tobytes()) for patches in pictures]
    assert sums == case[f"m{limit}_crc32"].tolist()


def test_a_patch_vector_is_channel_row_column() -> None:
    picture = np.random.default_rng(1).integers(0, 256, (2 * PATCH, 3 * PATCH, 3), np.uint8)
    patches = patchify(picture)
    assert patches.vectors.shape == (6, 588)
    assert patches.vectors.dtype == np.float32
    square = picture[PATCH:, PATCH : 2 * PATCH].astype(np.float64)
    want = (square / 255 - 0.5) / 0.5
    got = patches.vectors[4].reshape(3, PATCH, PATCH)
    np.testing.assert_allclose(got, want.transpose(2, 0, 1), atol=1e-6)


@given(
    width=st.integers(1, 9_000),
    height=st.integers(1, 9_000),
    limit=st.integers(1, 20),
)
@settings(max_examples=300, deadline=None)
def test_no_picture_has_more_slices_than_the_limit(width: int, height: int, limit: int) -> None:
    if max(width, height) > 200 * min(width, height):
        return
    plan = plan_slices(width, height, limit, SCALE)
    assert plan.num_slices <= limit
    assert plan.num_slices != 1
    assert all(side % PATCH == 0 and side >= PATCH for side in plan.source)
    if plan.num_slices:
        slice_width, slice_height = plan.whole[0] / plan.columns, plan.whole[1] / plan.rows
        assert slice_width % PATCH == slice_height % PATCH == 0
        # Rounding adds at most half a patch to a side.
        assert (slice_width - PATCH / 2) * (slice_height - PATCH / 2) <= SCALE**2
    else:
        assert width * height <= SCALE**2 or limit == 1


def test_a_picture_far_larger_than_the_limit_is_shrunk_to_it() -> None:
    """By hand: of 8 and 9 slices, 4 x 2 come nearest to 5 : 3; a slice is 5 : 6."""
    plan = plan_slices(100_000, 60_000, 9, SCALE)
    assert (plan.columns, plan.rows) == (4, 2)
    assert plan.source == (574, 350)  # 578 x 347, rounded to patches
    assert plan.whole == (4 * 406, 2 * 490)  # 408 x 490, rounded to patches


@pytest.mark.parametrize("limit", [1, 9])
def test_one_pixel_becomes_a_picture_of_its_colour(limit: int) -> None:
    frame = np.array([[[255, 0, 51]]], np.uint8)
    pictures, plan = prepare_picture(frame, limit, SCALE)
    assert plan.num_slices == 0
    assert [(p.rows, p.columns) for p in pictures] == [(32, 32)]
    channels = pictures[0].vectors.reshape(-1, 3, PATCH * PATCH)
    np.testing.assert_allclose(channels[:, 0], 1)
    np.testing.assert_allclose(channels[:, 1], -1)
    np.testing.assert_allclose(channels[:, 2], -0.6, atol=1e-6)


@pytest.mark.parametrize(("width", "height"), [(4_000, 200), (200, 4_000)])
def test_a_panorama_is_cut_along_its_long_side(width: int, height: int) -> None:
    frame = np.random.default_rng(2).integers(0, 256, (height, width, 3), np.uint8)
    pictures, plan = prepare_picture(frame, 9, SCALE)
    assert plan.num_slices == max(plan.columns, plan.rows) > 1
    assert (plan.columns > 1) == (width > height)
    assert len(pictures) == 1 + plan.num_slices
    # More patches on a side than the table of positions has.
    assert max(pictures[0].rows, pictures[0].columns) > 70
    assert len({(p.rows, p.columns) for p in pictures[1:]}) == 1


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((0, 4, 3), r"a picture must have pixels, got 4 x 0"),
        ((1, 201, 3), r"at most 200 times the shorter one, got 201 x 1; crop the picture"),
        ((8, 8), r"must be uint8 of shape \(height, width, 3\), got uint8 \(8, 8\)"),
        ((8, 8, 4), r"must be uint8 of shape \(height, width, 3\), got uint8 \(8, 8, 4\)"),
    ],
)
def test_a_frame_of_a_wrong_shape_is_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(MediaError, match=message):
        prepare_picture(np.zeros(shape, np.uint8), 9, SCALE)


def test_a_frame_of_floats_is_refused() -> None:
    with pytest.raises(MediaError, match="got float32"):
        prepare_picture(np.zeros((8, 8, 3), np.float32), 9, SCALE)  # type: ignore[arg-type]


@pytest.mark.parametrize(("limit", "scale"), [(0, SCALE), (-1, SCALE), (9, 13)])
def test_a_limit_below_one_is_refused(limit: int, scale: int) -> None:
    with pytest.raises(ConfigError, match=f"got {limit} and {scale}"):
        plan_slices(640, 480, limit, scale)
