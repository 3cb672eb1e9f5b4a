"""Image files: formats, orientation, transparency, damage."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from PIL import Image

from omnitide.errors import MediaError
from omnitide.media import still
from omnitide.media.still import read_image, still_of


@pytest.fixture
def pixels() -> NDArray[np.uint8]:
    """Smooth, so that JPEG stays close; no two corners alike."""
    y, x = np.mgrid[0:40, 0:60]
    return np.stack([y * 6, x * 4, 255 - y * 3 - x], axis=2).astype(np.uint8)


@pytest.mark.parametrize(
    ("name", "close"),
    [("a.png", 0), ("a.bmp", 0), ("a.tiff", 0), ("a.jpg", 3), ("a.webp", 3)],
)
def test_formats(tmp_path: Path, pixels: NDArray[np.uint8], name: str, close: int) -> None:
    Image.fromarray(pixels).save(tmp_path / name)
    chunk = read_image(tmp_path / name)
    assert chunk.still
    assert (chunk.start, chunk.stop, chunk.seconds) == (0.0, 0.0, 0.0)
    assert (chunk.frame_times, chunk.samples) == ((0.0,), None)
    (frame,) = chunk.frames
    assert frame.shape == (40, 60, 3)
    assert frame.dtype == np.uint8
    assert np.abs(frame.astype(int) - pixels.astype(int)).mean() <= close


ORIENTATIONS: dict[int, Callable[[NDArray[np.uint8]], NDArray[np.uint8]]] = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.swapaxes(0, 1),
    6: lambda p: np.rot90(p, -1),
    7: lambda p: np.rot90(p, 2).swapaxes(0, 1),
    8: lambda p: np.rot90(p, 1),
}


@pytest.mark.parametrize("tag", ORIENTATIONS)
def test_exif_orientation(tmp_path: Path, pixels: NDArray[np.uint8], tag: int) -> None:
    """By the EXIF table: 6 is a camera turned left, shown by a quarter turn to the right."""
    exif = Image.Exif()
    exif[0x0112] = tag
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    (frame,) = read_image(tmp_path / "a.png").frames
    assert_array_equal(frame, ORIENTATIONS[tag](pixels))


def test_transparency_lies_on_white(tmp_path: Path, pixels: NDArray[np.uint8]) -> None:
    alpha = np.zeros((40, 60, 1), np.uint8)
    alpha[:20] = 255
    alpha[30:] = 102
    Image.fromarray(np.concatenate([pixels, alpha], axis=2)).save(tmp_path / "a.png")
    (frame,) = read_image(tmp_path / "a.png").frames
    assert_array_equal(frame[:20], pixels[:20])
    assert_array_equal(frame[20:30], 255)
    assert_allclose(frame[30:], pixels[30:] * 0.4 + 255 * 0.6, atol=1)


def test_transparent_colour_of_a_palette(tmp_path: Path) -> None:
    image = Image.new("P", (8, 8), 0)
    image.putpalette([200, 0, 0, 0, 0, 200])
    image.paste(1, (0, 0, 4, 8))
    image.save(tmp_path / "a.png", transparency=0)
    (frame,) = read_image(tmp_path / "a.png").frames
    assert_array_equal(frame[:, :4], np.broadcast_to([0, 0, 200], (8, 4, 3)))
    assert_array_equal(frame[:, 4:], 255)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "CMYK", "YCbCr", "HSV"])
def test_modes(tmp_path: Path, pixels: NDArray[np.uint8], mode: str) -> None:
    image = Image.fromarray(pixels).convert(mode)
    name = "a.png" if mode in ("1", "L", "LA") else "a.tiff"
    if mode == "HSV":
        image, name = image.convert("RGB"), "a.png"
    image.save(tmp_path / name)
    (frame,) = read_image(tmp_path / name).frames
    expected = np.asarray(
        image.convert("L").convert("RGB") if mode == "LA" else image.convert("RGB")
    )
    assert_allclose(frame.astype(int), expected.astype(int), atol=1)


def test_sixteen_bit_grey(tmp_path: Path) -> None:
    deep = np.linspace(0, 65_535, 64 * 64).reshape(64, 64).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "a.png")
    (frame,) = read_image(tmp_path / "a.png").frames
    assert frame.shape == (64, 64, 3)
    assert_array_equal(frame[:, :, 0], deep >> 8)


def test_animation_gives_its_first_frame(tmp_path: Path) -> None:
    images = [Image.new("RGB", (16, 16), colour) for colour in ((250, 0, 0), (0, 250, 0))]
    images[0].save(tmp_path / "a.gif", save_all=True, append_images=images[1:], duration=100)
    (frame,) = read_image(tmp_path / "a.gif").frames
    assert_allclose(frame.astype(int), np.broadcast_to([250, 0, 0], (16, 16, 3)), atol=4)


@pytest.mark.filterwarnings("ignore:Truncated File Read")  # Pillow warns before it raises
@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.gif", "a.webp", "a.tiff"])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.7])
def test_cut_off_images_are_refused(tmp_path: Path, name: str, share: float) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    path = tmp_path / name
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(MediaError, match=r"is damaged|is no image"):
        read_image(path)


def test_a_small_file_that_claims_to_be_huge_is_refused(tmp_path: Path) -> None:
    def part(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    for side in (9000, 12_000, 60_000):
        header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        parts = [part(b"IHDR", header), part(b"IDAT", zlib.compress(b"")), part(b"IEND", b"")]
        (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
        with pytest.raises(MediaError, match="scale it down"):
            read_image(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a directory"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_text("no picture"), "is no image"),
    ],
    ids=["missing", "directory", "empty", "text"],
)
def test_no_image(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    path = tmp_path / "a.png"
    make(path)
    with pytest.raises(MediaError, match=words):
        read_image(path)


def test_an_address_is_no_image_file() -> None:
    with pytest.raises(MediaError, match="download it first"):
        read_image("https://host/a.png")


def test_damaged_avif_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.avif"
    Image.new("RGB", (40, 30)).save(path)
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + b"\0\0\0\0" + data[at + 4 :])
        with contextlib.suppress(MediaError):
            read_image(path)


def test_postscript_is_never_run(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (8, 8)).save(path, "EPS")
    with pytest.raises(MediaError, match="no image of a kind"):
        read_image(path)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "I;16"])
def test_a_picture_that_is_open_gives_what_its_file_gives(
    tmp_path: Path, pixels: NDArray[np.uint8], mode: str
) -> None:
    if mode == "I;16":
        image = Image.fromarray(pixels[:, :, 0].astype(np.uint16) << 8)
    else:
        image = Image.fromarray(pixels).convert(mode)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(pixels[:, :, 1]))
    image.getexif()[0x0112] = 6
    image.save(tmp_path / "a.png", exif=image.getexif())
    wanted = read_image(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as opened:
        got = still_of(opened)
    assert got.still
    assert got.frames[0].shape == (60, 40, 3)
    assert_array_equal(got.frames[0], wanted.frames[0])


def test_an_open_picture_may_be_too_large_or_damaged(
    tmp_path: Path, pixels: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(pixels).save(tmp_path / "a.png")
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    with (
        Image.open(tmp_path / "cut.png") as opened,
        pytest.raises(MediaError, match=r"\[image\] a picture is damaged"),
    ):
        still_of(opened)
    monkeypatch.setattr(still, "MAX_IMAGE_PIXELS", 2399)
    with pytest.raises(MediaError, match="may have 2,399 pixels, a picture has 60 x 40"):
        still_of(Image.fromarray(pixels))
