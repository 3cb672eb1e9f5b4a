"""Tokens that are counted without weights are those that are laid out, and never too few."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnitide.backend import Backend
from omnitide.config import MediaOptions
from omnitide.errors import MediaError
from omnitide.media.chunk import MediaChunk

RATE = 16_000


@pytest.fixture(params=["4.5", "2.6"])
def open_model(
    request: pytest.FixtureRequest,
    minicpm_checkpoint: Callable[..., Path],
    load: Callable[..., Any],
    reference: Backend,
) -> Callable[..., Any]:
    """A small model of either release: `open_model(**options of MediaOptions)`."""

    def open_(**options: Any) -> Any:
        media = MediaOptions(**({"fps": 1.0, "chunk_seconds": 1.0} | options))
        return load(minicpm_checkpoint(version=request.param), reference, media)

    return open_


def make_chunk(frames: int, height: int, width: int, samples: int) -> MediaChunk:
    pictures = (np.zeros((height, width, 3), np.uint8),) * frames
    sound = np.zeros(samples, np.float32) if samples else None
    return MediaChunk(0.0, 1.0, pictures, (0.0,) * frames, sound)


@pytest.mark.parametrize(
    ("frames", "height", "width", "samples", "slices"),
    [
        (1, 360, 640, RATE, 1),
        (1, 360, 640, RATE, 2),
        (2, 300, 700, RATE, 3),
        (1, 1, 1, 0, 9),
        (1, 20, 400, 0, 9),
        (0, 0, 0, RATE, 1),
        (0, 0, 0, 2 * RATE, 1),
        (0, 0, 0, 0, 1),
    ],
)
def test_counted_tokens_are_those_of_the_unit(
    open_model: Any, frames: int, height: int, width: int, samples: int, slices: int
) -> None:
    model = open_model(max_pixels=slices * 448 * 448)
    chunk = make_chunk(frames, height, width, samples)
    unit = model.encode_media(chunk, model.new_stream())[0].unit
    assert model.media_tokens(frames, height, width, samples) == len(unit)


@pytest.mark.parametrize("slices", [1, 2, 9])
@pytest.mark.parametrize("fps", [0.5, 1.0, 3.0])
def test_no_unit_is_larger_than_the_largest(open_model: Any, fps: float, slices: int) -> None:
    options = MediaOptions(fps, 1.0, slices * 448 * 448)
    model = open_model(fps=fps, max_pixels=options.max_pixels)
    most = model.largest_media_unit(options)
    frames = int(np.ceil(fps))
    random = np.random.default_rng(slices)
    for _ in range(200):
        height, width = random.integers(100, 4000, 2)
        assert model.media_tokens(frames, int(height), int(width), RATE) <= most
    large = 1 if slices == 1 else slices + 1
    assert most >= 66 * large * frames + RATE // 1600


def test_a_still_picture_fits_the_largest_unit(open_model: Any) -> None:
    """It is cut into as many slices as the model takes, whatever a live one may have."""
    model = open_model()
    still = MediaChunk(0.0, 0.0, (np.zeros((1300, 1300, 3), np.uint8),), (0.0,), still=True)
    encoded, stream = model.encode_media(still, model.new_stream())
    assert len(encoded.unit) <= model.largest_media_unit(model.media)
    assert len(encoded.unit) > 66 * 9
    assert stream.stills == 1


def test_pictures_of_a_prompt_are_numbered(open_model: Any) -> None:
    model, numbers = open_model(), []
    stream = model.new_stream()
    for _ in range(2):
        still = MediaChunk(0.0, 0.0, (np.zeros((20, 30, 3), np.uint8),), (0.0,), still=True)
        encoded, stream = model.encode_media(still, stream)
        tokens = encoded.unit.cells["token"]
        markers = model.encoder.layout.markers
        assert tokens[0] == markers.image_id
        numbers.append(model.decode_text(tokens[1 : tokens.tolist().index(markers.image_id_end)]))
    assert numbers == ["0", "1"]


def test_a_picture_that_is_too_long_is_refused(open_model: Any) -> None:
    model = open_model()
    with pytest.raises(MediaError, match="at most 200 times"):
        model.encode_media(make_chunk(1, 1, 201, 0), model.new_stream())
    with pytest.raises(MediaError, match="at most 200 times"):
        model.media_tokens(1, 1, 201, 0)


def test_a_reply_to_sound_opens_as_speech_does(open_model: Any) -> None:
    model = open_model()
    silent = model.new_stream()
    _, heard = model.encode_media(make_chunk(0, 0, 0, RATE), silent)
    speech = model.encoder.layout.markers.speech
    opened = [
        model.encode_prompt("Why?", stream=s).unit.cells["token"][-1] for s in (silent, heard)
    ]
    assert opened[0] != speech
    assert bool(opened[1] == speech) is (model.config.version == "4.5")
