"""Frames as a viewer sees them: turned, with square pixels, RGB, bounded."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from omnitide.config import MediaOptions
from omnitide.media.clip import ClipPicture
from omnitide.media.display import Matrix, Screen, orient, shown_size, within
from omnitide.media.reader import open_media

Film = Callable[..., Path]
Time = Callable[..., ClipPicture]

RED, GREEN, BLUE, GREY = (200, 30, 30), (30, 180, 30), (30, 30, 200), (120, 120, 120)
CORNERS = np.array([[RED, GREEN], [BLUE, GREY]], np.uint8)
MATRICES: list[Matrix] = [
    *((a, 0, 0, d) for a in (1, -1) for d in (1, -1)),
    *((0, b, c, 0) for b in (1, -1) for c in (1, -1)),
]


def paint_corners(second: float, height: int, width: int) -> NDArray[np.uint8]:
    rows, columns = np.arange(height) * 2 // height, np.arange(width) * 2 // width
    return CORNERS[rows][:, columns]


def corners(frame: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Colour in the middle of each quarter, (2, 2, 3)."""
    height, width = frame.shape[:2]
    return frame[[height // 4, -height // 4]][:, [width // 4, -width // 4]].astype(np.int64)


def first_frame(path: Path, **options: float) -> NDArray[np.uint8]:
    with open_media(path, MediaOptions(**options)) as reader:  # type: ignore[arg-type]
        frame = next(reader).frames[0]
        assert (reader.info.height, reader.info.width) == frame.shape[:2] or options
    assert frame.flags.c_contiguous
    assert frame.dtype == np.uint8
    return frame


@pytest.mark.parametrize("matrix", MATRICES)
def test_orient_follows_the_definition(matrix: Matrix) -> None:
    """A stored pixel (x, y) goes to (a x + c y, b x + d y), moved back to begin at 0."""
    a, b, c, d = matrix
    stored = np.random.default_rng(0).integers(0, 256, (3, 5, 3), np.uint8)
    y, x = np.mgrid[0:3, 0:5]
    to_x, to_y = a * x + c * y, b * x + d * y
    to_x, to_y = to_x - to_x.min(), to_y - to_y.min()
    expected = np.zeros((to_y.max() + 1, to_x.max() + 1, 3), np.uint8)
    expected[to_y, to_x] = stored
    assert_array_equal(orient(stored, matrix), expected)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_rotation_of_the_container(film: Film, turns: int, name: str) -> None:
    """`rotation` is counter-clockwise, as `np.rot90` is."""
    picture = ClipPicture(width=96, height=64, rotation=90 * turns, paint=paint_corners)
    frame = first_frame(film(name, 1.0, picture, None))
    assert frame.shape == ((64, 96, 3) if turns % 2 == 0 else (96, 64, 3))
    np.testing.assert_allclose(corners(frame), np.rot90(CORNERS, turns), atol=14)


@pytest.mark.parametrize("flips", [(True, False), (False, True)])
def test_mirrored_picture(tmp_path: Path, flips: tuple[bool, bool]) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=8)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        stream.set_display_rotation(0, hflip=flips[0], vflip=flips[1])
        pixels = paint_corners(0.0, 64, 64)
        output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        output.mux(stream.encode(None))
    expected = CORNERS[:, ::-1] if flips[0] else CORNERS[::-1]
    np.testing.assert_allclose(corners(first_frame(path)), expected, atol=14)


@pytest.mark.parametrize(
    ("codec", "pixel_format"),
    [
        ("libx264", "yuv420p"),
        ("libx264", "yuv420p10le"),
        ("libx264", "yuv422p"),
        ("libx264", "yuv444p"),
        ("libvpx-vp9", "yuv420p"),
        ("ffv1", "gray10le"),
        ("ffv1", "bgra"),
    ],
)
def test_pixel_formats(film: Film, codec: str, pixel_format: str) -> None:
    picture = ClipPicture(
        width=64, height=64, paint=paint_corners, codec=codec, pixel_format=pixel_format, options=()
    )
    frame = first_frame(film("a.mkv", 0.5, picture, None))
    expected = CORNERS.astype(np.float64)
    if pixel_format.startswith("gray"):
        expected = np.repeat(expected @ np.array([0.299, 0.587, 0.114]), 3).reshape(2, 2, 3)
    np.testing.assert_allclose(corners(frame), expected, atol=14)


@pytest.mark.parametrize(
    ("width", "height", "pixel_format"),
    [(65, 67, "yuv444p"), (66, 34, "yuv420p"), (33, 129, "yuv444p"), (16, 16, "yuv420p")],
)
def test_odd_sizes(
    film: Film,
    time_picture: Time,
    read_time: Callable[[NDArray[np.uint8]], int],
    width: int,
    height: int,
    pixel_format: str,
) -> None:
    picture = time_picture(width=width, height=height, pixel_format=pixel_format)
    with open_media(film("a.mp4", 2.0, picture, None)) as reader:
        frames = next(reader).frames
    assert [frame.shape for frame in frames] == [(height, width, 3)] * 4
    assert [read_time(frame) for frame in frames] == [0, 500, 1000, 1500]


def test_large_frames_are_scaled_down_at_once(film: Film) -> None:
    picture = ClipPicture(width=640, height=360, paint=paint_corners)
    path = film("a.mp4", 0.5, picture, None)
    frame = first_frame(path, max_pixels=10_000)
    height, width = frame.shape[:2]
    assert 0.95 * 40_000 < height * width <= 40_000
    assert width / height == pytest.approx(16 / 9, rel=0.01)
    np.testing.assert_allclose(corners(frame), CORNERS, atol=14)
    assert first_frame(path, max_pixels=640 * 90).shape == (360, 640, 3)


@pytest.mark.parametrize(
    ("size", "most", "expected"),
    [((10, 10), 100, (10, 10)), ((20, 20), 100, (10, 10)), ((5000, 1), 100, (707, 1))],
)
def test_within(size: tuple[int, int], most: int, expected: tuple[int, int]) -> None:
    assert within(size, most) == expected


def test_pixels_that_are_not_square() -> None:
    frame = av.VideoFrame.from_ndarray(np.zeros((576, 720, 3), np.uint8), format="rgb24")
    assert shown_size(frame, Fraction(64, 45)) == (1024, 576)
    assert shown_size(frame, Fraction(0)) == (720, 576)
    assert shown_size(frame, None) == (720, 576)
    assert Screen(Fraction(64, 45), 10**7).show(frame).shape == (576, 1024, 3)


def test_frames_of_a_stream_that_changes_its_size_stay_alike() -> None:
    screen = Screen(None, 10**7)
    for height, width in [(40, 60), (80, 120), (20, 60)]:
        pixels = paint_corners(0.0, height, width)
        frame = screen.show(av.VideoFrame.from_ndarray(pixels, format="rgb24"))
        assert frame.shape == (40, 60, 3)
        np.testing.assert_allclose(corners(frame), CORNERS, atol=4)


def test_handed_out_pictures_cannot_be_written(film: Film, time_picture: Time) -> None:
    """Two instants may share one array, so a change would reach both."""
    with open_media(film("a.mp4", 1.0, time_picture(fps=1.0), None)) as reader:
        first, second = next(reader).frames
    assert first is second
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
