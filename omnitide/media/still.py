"""Pictures that stand outside of time: image files, through Pillow."""

from __future__ import annotations

import struct

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from omnitide.errors import MediaError
from omnitide.media.chunk import Frame, MediaChunk
from omnitide.media.source import Source, checked_path, name_of, scheme_of

MAX_IMAGE_PIXELS = 80_000_000
"""Pixels of the largest image that is decoded; a small file can claim far more."""

FORMATS = (
    "PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM", "TGA", "ICO",
)  # fmt: skip
"""Formats of Pillow that are read. Not EPS: Pillow hands it to Ghostscript, an interpreter."""

_BROKEN = (OSError, SyntaxError, ValueError, EOFError, RuntimeError, struct.error)
"""What Pillow's decoders raise on damaged files."""


def read_image(path: Source) -> MediaChunk:
    """Read an image file: upright by its EXIF tag, transparency on white, first frame if animated.

    Returns:
        A chunk with `still` set, one frame at its full size, and start and stop 0.

    Raises:
        MediaError: No readable file, no image, a damaged one, or more than `MAX_IMAGE_PIXELS`.
    """
    if scheme_of(path) is not None:
        raise MediaError(f"[image] a local file is needed, got {name_of(path)}; download it first")
    file = checked_path(path)
    try:
        with Image.open(file, formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_IMAGE_PIXELS:
                raise _too_large(file.name, f"{width} x {height}")
            image.seek(0)
            frame = _to_rgb(ImageOps.exif_transpose(image))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(file.name, "more") from error
    except UnidentifiedImageError as error:
        raise MediaError(f"[image] {file} is no image of a kind that Pillow reads") from error
    except _BROKEN as error:
        raise MediaError(f"[image] {file} is damaged ({error}); fetch it again") from error
    return _still(frame)


def still_of(image: Image.Image) -> MediaChunk:
    """The chunk of a picture that is open already; see `read_image`.

    Raises:
        MediaError: A damaged one, or more than `MAX_IMAGE_PIXELS`.
    """
    width, height = image.size
    if width * height > MAX_IMAGE_PIXELS:
        raise _too_large("a picture", f"{width} x {height}")
    try:
        return _still(_to_rgb(ImageOps.exif_transpose(image)))
    except _BROKEN as error:
        raise MediaError(f"[image] a picture is damaged ({error}); fetch it again") from error


def _still(frame: Frame) -> MediaChunk:
    return MediaChunk(0.0, 0.0, frames=(frame,), frame_times=(0.0,), still=True)


def _too_large(name: str, size: str) -> MediaError:
    return MediaError(
        f"[image] an image may have {MAX_IMAGE_PIXELS:,} pixels, {name} has {size}; scale it down"
    )


def _to_rgb(image: Image.Image) -> Frame:
    if image.mode.startswith("I"):
        # 16 bits a pixel: Pillow would clip to 255 where the upper byte is meant.
        deep = np.asarray(image).astype(np.int64)
        if deep.max(initial=0) > 255:
            deep >>= 8
        grey = np.clip(deep, 0, 255).astype(np.uint8)
        return np.ascontiguousarray(np.repeat(grey[:, :, None], 3, axis=2))
    if image.has_transparency_data:
        with_alpha = image.convert("RGBA")
        white = Image.new("RGBA", with_alpha.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, with_alpha)
    return np.asarray(image.convert("RGB")).copy()
