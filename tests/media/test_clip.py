"""The synthetic film: what it claims to be, always the same, and content that tells time."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from omnitide.errors import ConfigError
from omnitide.media.clip import (
    ClipPicture,
    ClipSound,
    paint_shapes,
    play_tones,
    write_clip,
    write_film,
)
from omnitide.media.reader import open_media


def test_a_clip_is_an_mp4_with_h264_and_aac(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    write_clip(path, 3, width=80, height=48, fps=10, sample_rate=24_000)
    with av.open(str(path)) as container:
        assert "mp4" in container.format.name.split(",")
        (picture,), (sound,) = container.streams.video, container.streams.audio
        assert picture.codec_context.name == "h264"
        assert (picture.width, picture.height, picture.frames) == (80, 48, 30)
        assert picture.codec_context.pix_fmt == "yuv420p"
        assert float(picture.average_rate) == 10
        assert (sound.codec_context.name, sound.rate, sound.channels) == ("aac", 24_000, 1)
        assert container.duration == pytest.approx(3_000_000, abs=50_000)


def test_a_clip_decodes_to_its_content(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    write_clip(path, 4, width=96, height=96, sample_rate=16_000)
    with open_media(path) as reader:
        for chunk in reader:
            for second, frame in zip(chunk.frame_times, chunk.frames, strict=True):
                painted = paint_shapes(second, 96, 96)
                assert np.abs(frame.astype(int) - painted.astype(int)).mean() < 6
            assert chunk.samples is not None
            seconds = chunk.start + np.arange(len(chunk.samples)) / 16_000
            assert_allclose(chunk.samples, play_tones(seconds), atol=0.08)


def test_clips_show_and_play_the_same_every_time(tmp_path: Path) -> None:
    """Content, not bytes: x264's vector code rounds by where its buffers happen to lie."""
    chunks = []
    for name in ("a.mp4", "b.mp4"):
        write_clip(tmp_path / name, 2)
        with open_media(tmp_path / name) as reader:
            chunks.append(next(reader))
    pictures = [np.stack(chunk.frames).astype(int) for chunk in chunks]
    assert pictures[0].shape == (4, 112, 112, 3)
    assert np.abs(pictures[0] - pictures[1]).mean() < 1
    assert chunks[0].samples is not None
    assert chunks[1].samples is not None
    assert_array_equal(chunks[0].samples, chunks[1].samples)


def test_content_depends_on_time_and_size_alone() -> None:
    seen = {paint_shapes(second, 30, 50).tobytes() for second in np.arange(0, 24, 0.25)}
    assert len(seen) == 96
    assert paint_shapes(1.0, 30, 50).shape == (30, 50, 3)
    assert paint_shapes(1e5, 1, 1).shape == (1, 1, 3)
    seconds = np.arange(48_000) / 16_000
    whole = play_tones(seconds)
    assert_array_equal(
        np.concatenate([play_tones(seconds[:777]), play_tones(seconds[777:])]), whole
    )
    assert np.abs(whole).max() <= 0.3


def test_pitch_changes_every_second() -> None:
    pitches = []
    for second in range(10):
        sound = play_tones(second + np.arange(16_000) / 16_000)
        pitches.append(int(np.abs(np.fft.rfft(sound)).argmax()))
    assert len(set(pitches)) == 10
    assert min(pitches) == 220
    assert max(pitches) == 784


def test_a_film_needs_a_track_and_a_length(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got neither"):
        write_film(tmp_path / "a.mp4", 1.0, None, None)
    for seconds in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="above 0 and finite"):
            write_film(tmp_path / "a.mp4", seconds, ClipPicture(), ClipSound())
    assert list(tmp_path.iterdir()) == []
