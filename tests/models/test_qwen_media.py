"""Media units of the model: what they hold, how long they are, what is too short to be heard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnitide.backend import Backend
from omnitide.config import MediaOptions
from omnitide.media.chunk import MediaChunk
from omnitide.models.qwen2_5_omni.image import prepare_frames
from omnitide.models.qwen2_5_omni.mel import MelStream
from omnitide.models.qwen2_5_omni.sizes import media_tokens
from omnitide.positions import lay_out
from omnitide.units import Modality, UnitKind, spans_of


@pytest.fixture(scope="module")
def model(tiny_checkpoint: Callable[..., Path], load: Any, reference: Backend) -> Any:
    return load(tiny_checkpoint(), reference, MediaOptions(max_pixels=112 * 112))


def _chunk(frames: int, height: int, width: int, samples: int, still: bool = False) -> MediaChunk:
    random = np.random.default_rng(frames + height + width + samples)
    pictures = tuple(random.integers(0, 256, (frames, height, width, 3), dtype=np.uint8))
    sound = (0.1 * random.standard_normal(samples)).astype(np.float32) if samples else None
    return MediaChunk(4.0, 6.0, pictures, tuple(np.arange(frames) / 2 + 4), sound, still)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    frames=st.integers(0, 4),
    height=st.integers(20, 300),
    width=st.integers(20, 300),
    samples=st.integers(0, 33_000) | st.integers(0, 700),
)
def test_media_tokens_counts_what_is_encoded(
    model: Any, frames: int, height: int, width: int, samples: int
) -> None:
    encoded, _ = model.encode_media(_chunk(frames, height, width, samples), model.new_stream())
    assert len(encoded.unit) == model.media_tokens(frames, height, width, samples)
    assert encoded.embeddings.shape == (len(encoded.unit), 256)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(before=st.integers(1, 1_000), samples=st.integers(0, 2_000))
def test_media_tokens_is_never_too_small(model: Any, before: int, samples: int) -> None:
    # A stream that is not on the grid of mel frames may give one frame fewer, never one more.
    _, stream = model.encode_media(_chunk(0, 0, 0, before), model.new_stream())
    encoded, _ = model.encode_media(_chunk(0, 0, 0, samples), stream)
    assert len(encoded.unit) <= model.media_tokens(0, 0, 0, samples)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    max_pixels=st.integers(28 * 28, 448 * 448),
    chunk_seconds=st.sampled_from([0.5, 1.0, 2.0, 3.0]),
    fps=st.sampled_from([1.0, 2.0, 5.0]),
    short=st.integers(1, 500),
    aspect=st.floats(1, 200),
)
def test_no_unit_exceeds_the_largest(
    model: Any, max_pixels: int, chunk_seconds: float, fps: float, short: int, aspect: float
) -> None:
    options = MediaOptions(fps=fps, chunk_seconds=chunk_seconds, max_pixels=max_pixels)
    frames, samples = int(np.ceil(fps * chunk_seconds)), int(16_000 * chunk_seconds)
    largest = model.largest_media_unit(options)
    for height, width in ((short, int(short * aspect)), (int(short * aspect), short)):
        counted = media_tokens(
            model.layout,
            frames,
            height,
            width,
            samples,
            min_pixels=model.defaults.min_pixels,
            max_pixels=max_pixels,
        )
        assert counted <= largest


def test_a_chunk_of_picture_and_sound(model: Any) -> None:
    chunk = _chunk(4, 112, 112, 32_000)
    encoded, stream = model.encode_media(chunk, model.new_stream())
    unit = encoded.unit
    assert (unit.kind, unit.time, unit.seconds) == (UnitKind.MEDIA, 4.0, 2.0)
    assert (len(unit), lay_out(unit.cells)[1]) == (4 + 2 * 16 + 50, 52)
    assert stream.position == 32_000
    # Each row of the unit is the one that the towers and the embedding give for that cell.
    patches, grid = prepare_frames(chunk.frames, min_pixels=56 * 56, max_pixels=112 * 112)
    mel, _ = MelStream().push(chunk.samples)
    modality = unit.cells["modality"]
    for kind, want in (
        (Modality.IMAGE, model.vision.encode(patches, grid)),
        (Modality.AUDIO, model.audio.encode(mel)),
        (Modality.TEXT, model.embed([262, 260, 261, 263])),
    ):
        np.testing.assert_array_equal(encoded.embeddings[modality == kind], want)


@pytest.mark.parametrize("samples", [0, 1, 320])
@pytest.mark.parametrize(("frames", "num_tokens"), [(1, 18), (2, 18), (3, 34)])
def test_sound_too_short_to_be_heard_is_none(
    model: Any, frames: int, num_tokens: int, samples: int
) -> None:
    unit = model.encode_media(_chunk(frames, 112, 112, samples), model.new_stream())[0].unit
    assert [s.modality for s in spans_of(unit.cells)] == [
        Modality.TEXT, Modality.IMAGE, Modality.TEXT
    ]  # fmt: skip
    assert len(unit) == num_tokens


def test_sound_alone(model: Any) -> None:
    unit = model.encode_media(_chunk(0, 0, 0, 16_000), model.new_stream())[0].unit
    assert unit.cells["token"].tolist() == [260, *[259] * 25, 261]
    np.testing.assert_array_equal(lay_out(unit.cells)[0][:, 0], np.arange(27))


def test_a_still_picture_stands_outside_of_time(model: Any) -> None:
    unit = model.encode_media(_chunk(1, 112, 56, 0, still=True), model.new_stream())[0].unit
    assert unit.cells["token"].tolist() == [262, *[264] * 8, 263]
    assert lay_out(unit.cells)[1] == 1 + 4 + 1


def test_a_still_picture_with_sound_is_two_spans(model: Any) -> None:
    unit = model.encode_media(_chunk(1, 112, 56, 16_000, still=True), model.new_stream())[0].unit
    assert unit.cells["token"].tolist() == [262, *[264] * 8, 263, 260, *[259] * 25, 261]
    assert len(unit) == model.media_tokens(1, 112, 56, 16_000)


def test_nothing_seen_and_heard_is_an_empty_unit(model: Any) -> None:
    encoded, _ = model.encode_media(MediaChunk(0, 1), model.new_stream())
    assert len(encoded.unit) == 0
    assert encoded.embeddings.shape == (0, 256)


def test_sound_goes_on_from_chunk_to_chunk(model: Any, reference: Backend) -> None:
    sound = _chunk(0, 0, 0, 64_000).samples
    assert sound is not None
    stream, mel_stream = model.new_stream(), MelStream()
    for at in (0, 32_000):
        part = sound[at : at + 32_000]
        encoded, stream = model.encode_media(MediaChunk(0, 2, samples=part), stream)
        mel, mel_stream = mel_stream.push(part)
        np.testing.assert_array_equal(encoded.embeddings[1:-1], model.audio.encode(mel))


@pytest.mark.parametrize(("fps", "seconds_per_step"), [(2.0, 1.0), (4.0, 0.5), (1.0, 2.0)])
def test_time_of_pictures_follows_the_frame_rate(
    fps: float, seconds_per_step: float, tiny_checkpoint: Any, load: Any, reference: Backend
) -> None:
    model = load(tiny_checkpoint(), reference, MediaOptions(fps=fps))
    unit = model.encode_media(_chunk(6, 56, 56, 0), model.new_stream())[0].unit
    times = lay_out(unit.cells)[0][1:-1:4, 0] - 1
    assert times.tolist() == [int(step * seconds_per_step * 25) for step in range(3)]


def test_defaults_and_spec(model: Any) -> None:
    spec = model.spec
    assert (spec.family, spec.trained, spec.vocab_size) == ("qwen2_5_omni", False, 288)
    assert spec.kv_bytes_per_token(4) == 2 * 3 * 1 * 128 * 4
    assert model.eos_tokens == {256, 258}
    told = model.encode_system("Be brief.").unit
    assert len(model.encode_system(None).unit) > len(told) > len(model.encode_system("").unit)
    assert "helpful assistant" in model.decode_text(model.encode_system(None).unit.cells["token"])
