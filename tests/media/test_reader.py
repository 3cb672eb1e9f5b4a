"""Chunks of really encoded films: the right frame at each instant, the sound at its place."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from omnitide.config import MediaOptions
from omnitide.errors import ConfigError, MediaError
from omnitide.media.chunk import MediaChunk
from omnitide.media.clip import ClipPicture, ClipSound, write_film
from omnitide.media.reader import open_media, probe
from omnitide.media.source import Source

Film = Callable[..., Path]
Time = Callable[..., ClipPicture]
Beep = Callable[..., ClipSound]
ReadTime = Callable[[NDArray[np.uint8]], int]
Onsets = Callable[[NDArray[np.float32]], list[float]]

FEW_MS = 0.004
VP9 = {"codec": "libvpx-vp9", "options": (("deadline", "realtime"), ("cpu-used", "8"))}


def read(source: Source, **options: float) -> list[MediaChunk]:
    with open_media(source, MediaOptions(**options)) as reader:  # type: ignore[arg-type]
        chunks = list(reader)
        assert reader.broken is None
    return chunks


def sound_of(chunks: list[MediaChunk]) -> NDArray[np.float32]:
    samples = [chunk.samples for chunk in chunks]
    assert all(part is not None and part.dtype == np.float32 for part in samples)
    return np.concatenate([part for part in samples if part is not None])


def frames_of(chunks: list[MediaChunk]) -> list[tuple[float, NDArray[np.uint8]]]:
    return [item for chunk in chunks for item in zip(chunk.frame_times, chunk.frames, strict=True)]


def shown_at(second: float, times: list[float]) -> int:
    """Milliseconds of the frame that a player shows at a second."""
    return round(max(time for time in times if time <= second + 1e-6) * 1000)


@pytest.mark.parametrize("fps", [1.0, 2.0, 3.0, 10.0, 30.0])
@pytest.mark.parametrize("source_fps", [5.0, 8.0, 25.0, 30000 / 1001])
def test_constant_rate(
    film: Film, time_picture: Time, read_time: ReadTime, source_fps: float, fps: float
) -> None:
    path = film("a.mp4", 2.5, time_picture(fps=source_fps), None)
    frames = frames_of(read(path, fps=fps, chunk_seconds=1.0))
    times = [index / source_fps for index in range(100)]
    times = [time for time in times if time < 2.5]
    end = times[-1] + 1 / source_fps
    instants = [index / fps for index in range(100) if index / fps < end - 1e-4]
    assert [time for time, _ in frames] == pytest.approx(instants)
    # 15 frames of 29.97 a second are 500.5 ms: either way of rounding is right.
    shown = [read_time(frame) for _, frame in frames]
    assert shown == pytest.approx([shown_at(t, times) for t, _ in frames], abs=1)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_variable_rate(film: Film, time_picture: Time, read_time: ReadTime, name: str) -> None:
    """Bursts, single frames that last for seconds, and instants on and around time stamps."""
    times = [0.0, 0.1, 0.499, 0.55, 0.56, 0.57, 2.0, 4.001, 4.002, 4.003, 4.75]
    path = film(name, 5.0, time_picture(times=tuple(times)), None)
    frames = frames_of(read(path, fps=4.0))
    assert len(frames) == 20
    assert [read_time(frame) for _, frame in frames] == [shown_at(t, times) for t, _ in frames]


@pytest.mark.parametrize("seconds", [0.5, 0.7, 2.0, 3.0])
@pytest.mark.parametrize("fps", [0.3, 2.0, 3.0])
def test_chunks_tile_the_stream(
    film: Film, time_picture: Time, beep_sound: Beep, seconds: float, fps: float
) -> None:
    path = film("a.mp4", 4.375, time_picture(), beep_sound(1.0))
    chunks = read(path, fps=fps, chunk_seconds=seconds)
    assert chunks[0].start == 0
    assert chunks[-1].stop == pytest.approx(4.375, abs=1e-3)
    for index, chunk in enumerate(chunks):
        assert chunk.start == pytest.approx(index * seconds)
        assert all(chunk.start <= time < chunk.stop for time in chunk.frame_times)
        assert not chunk.still
        assert chunk.samples is not None
        expected = round(chunk.stop * 16_000) - round(chunk.start * 16_000)
        assert len(chunk.samples) == expected
    for before, after in itertools.pairwise(chunks):
        assert before.stop == after.start
    times = [time for time, _ in frames_of(chunks)]
    assert times == pytest.approx(np.arange(0, 4.375, 1 / fps))
    assert len(sound_of(chunks)) == round(4.375 * 16_000)


CONTAINERS = {
    "mp4": ("a.mp4", {}, {}),
    "mp4 44.1 kHz stereo": ("a.mp4", {}, {"sample_rate": 44_100, "layout": "stereo"}),
    "mov pcm": ("a.mov", {}, {"codec": "pcm_s16le", "sample_rate": 22_050}),
    "mkv opus 5.1": ("a.mkv", {}, {"codec": "libopus", "sample_rate": 48_000, "layout": "5.1"}),
    "mkv flac 8 kHz": ("a.mkv", {}, {"codec": "flac", "sample_rate": 8000}),
    "webm": ("a.webm", VP9, {"codec": "libopus", "sample_rate": 48_000, "layout": "stereo"}),
    "ts": ("a.ts", {}, {"sample_rate": 48_000, "layout": "5.1", "bit_rate": 256_000}),
}


@pytest.mark.parametrize("case", CONTAINERS.values(), ids=CONTAINERS.keys())
def test_containers_codecs_rates_and_channels(
    film: Film,
    time_picture: Time,
    beep_sound: Beep,
    read_time: ReadTime,
    onsets: Onsets,
    case: tuple[str, dict[str, object], dict[str, object]],
) -> None:
    name, picture, sound = case
    moments = [0.25, 1.0, 1.98, 2.75]
    path = film(name, 3.0, time_picture(fps=20.0, **picture), beep_sound(*moments, **sound))
    chunks = read(path, fps=4.0, chunk_seconds=1.0)
    samples = sound_of(chunks)
    frames = frames_of(chunks)
    # Where a container can't say that the codec's lead-in is to be cut, all begins later by it.
    lead = onsets(samples)[0] - moments[0]
    assert -FEW_MS < lead < 0.07
    assert onsets(samples) == pytest.approx([m + lead for m in moments], abs=FEW_MS)
    shown = np.array([read_time(frame) for _, frame in frames]) / 1000
    instants = np.array([time for time, _ in frames])
    late = instants - lead - shown
    assert ((late[1:] > -FEW_MS) & (late[1:] < 0.05 + FEW_MS)).all()
    assert np.abs(samples).max() == pytest.approx(0.5, abs=0.12)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.wav", {"codec": "pcm_s16le", "sample_rate": 8000}),
        ("a.wav", {"codec": "pcm_f32le", "sample_rate": 96_000, "layout": "7.1"}),
        ("a.mp3", {"codec": "libmp3lame", "sample_rate": 44_100, "layout": "stereo"}),
        ("a.flac", {"codec": "flac", "sample_rate": 48_000, "layout": "stereo"}),
        ("a.m4a", {"codec": "aac", "sample_rate": 32_000}),
        ("a.ogg", {"codec": "libopus", "sample_rate": 48_000}),
    ],
)
def test_recordings(
    film: Film, beep_sound: Beep, onsets: Onsets, name: str, options: dict[str, object]
) -> None:
    moments = [0.5, 1.5, 2.25]
    path = film(name, 2.6, None, beep_sound(*moments, **options))
    chunks = read(path)
    assert [len(chunk.frames) for chunk in chunks] == [0, 0]
    samples = sound_of(chunks)
    assert len(samples) == pytest.approx(2.6 * 16_000, abs=0.03 * 16_000)
    assert onsets(samples) == pytest.approx(moments, abs=FEW_MS)
    assert np.abs(samples).max() == pytest.approx(0.5, abs=0.1)


def test_sound_is_what_was_recorded(film: Film) -> None:
    """PCM at 16 kHz is not resampled; nothing is lost or doubled at the borders of chunks."""
    rng = np.random.default_rng(0)
    noise = rng.integers(-20_000, 20_000, 16_000 * 3).astype(np.float64) / 32_768

    def play(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        return noise[np.round(seconds * 16_000).astype(int)]

    path = film("a.wav", 3.0, None, ClipSound(codec="pcm_s16le", play=play))
    for seconds in (0.3, 2.0):
        samples = sound_of(read(path, chunk_seconds=seconds))
        np.testing.assert_allclose(samples, noise, atol=2 / 32_768)


def test_samples_are_finite_and_within_one(film: Film) -> None:
    def play(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        sound = 3 * np.sin(2 * np.pi * 300 * seconds)
        sound[(seconds > 0.5) & (seconds < 0.6)] = np.nan
        sound[(seconds > 0.7) & (seconds < 0.8)] = np.inf
        return sound

    path = film("a.wav", 1.0, None, ClipSound(codec="pcm_f32le", sample_rate=44_100, play=play))
    samples = sound_of(read(path))
    assert np.isfinite(samples).all()
    assert samples.max() == 1.0
    assert samples.min() == -1.0


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_picture_starts_late(
    film: Film, time_picture: Time, beep_sound: Beep, read_time: ReadTime, onsets: Onsets, name: str
) -> None:
    path = film(name, 4.0, time_picture(fps=20.0, delay=1.4), beep_sound(0.5, 3.0))
    chunks = read(path)
    assert [chunk.frame_times for chunk in chunks] == [(1.5,), (2.0, 2.5, 3.0, 3.5)]
    shown = [read_time(frame) for _, frame in frames_of(chunks)]
    assert shown == [1500, 2000, 2500, 3000, 3500]
    assert onsets(sound_of(chunks)) == pytest.approx([0.5, 3.0], abs=FEW_MS)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_sound_starts_late(
    film: Film, time_picture: Time, beep_sound: Beep, read_time: ReadTime, onsets: Onsets, name: str
) -> None:
    path = film(name, 4.0, time_picture(fps=20.0), beep_sound(1.3, 3.0, delay=1.2))
    chunks = read(path)
    samples = sound_of(chunks)
    assert not samples[: int(1.1 * 16_000)].any()
    assert onsets(samples) == pytest.approx([1.3, 3.0], abs=FEW_MS)
    assert [read_time(frame) for _, frame in frames_of(chunks)] == list(range(0, 4000, 500))


def test_a_picture_a_little_late_is_there_from_the_start(
    film: Film, time_picture: Time, beep_sound: Beep, read_time: ReadTime
) -> None:
    """At 2 fps an instant stands for half a second: 0.2 s late is shown, 0.3 s is not."""
    early = film("early.mp4", 2.0, time_picture(fps=20.0, delay=0.2), beep_sound(1.0))
    late = film("late.mp4", 2.0, time_picture(fps=20.0, delay=0.3), beep_sound(1.0))
    assert [read_time(frame) for frame in read(early)[0].frames] == [200, 500, 1000, 1500]
    assert [read_time(frame) for frame in read(late)[0].frames] == [500, 1000, 1500]


def test_sound_ends_early(film: Film, time_picture: Time, beep_sound: Beep, onsets: Onsets) -> None:
    path = film("a.mp4", 5.0, time_picture(), beep_sound(0.5, stop=1.0))
    chunks = read(path)
    samples = sound_of(chunks)
    assert len(samples) == 5 * 16_000
    assert onsets(samples) == pytest.approx([0.5], abs=FEW_MS)
    assert not samples[int(1.1 * 16_000) :].any()


def test_picture_ends_early(film: Film, time_picture: Time, beep_sound: Beep) -> None:
    path = film("a.mp4", 5.0, time_picture(fps=8.0, stop=2.25), beep_sound(4.0))
    chunks = read(path)
    assert [chunk.frame_times for chunk in chunks] == [(0.0, 0.5, 1.0, 1.5), (2.0,), ()]
    assert len(sound_of(chunks)) == 5 * 16_000


def test_silent_film(film: Film, time_picture: Time) -> None:
    chunks = read(film("a.mp4", 3.0, time_picture(), None))
    assert [chunk.samples for chunk in chunks] == [None, None]
    assert [len(chunk.frames) for chunk in chunks] == [4, 2]
    assert chunks[-1].stop == pytest.approx(3.0)


def test_tracks_left_out(film: Film, time_picture: Time, beep_sound: Beep) -> None:
    """The clock stays that of the film: a late picture stays late without the sound."""
    path = film("a.mp4", 3.0, time_picture(delay=1.4), beep_sound(0.5))
    with open_media(path, audio=False) as reader:
        assert not reader.info.has_sound
        chunks = list(reader)
    assert [chunk.samples for chunk in chunks] == [None, None]
    assert chunks[0].frame_times == (1.5,)
    with open_media(path, video=False) as reader:
        assert not reader.info.has_picture
        chunks = list(reader)
    assert [chunk.frames for chunk in chunks] == [(), ()]
    assert len(sound_of(chunks)) == 3 * 16_000
    with pytest.raises(ConfigError, match="got neither"):
        open_media(path, video=False, audio=False)


def test_sound_from_a_second_file(
    film: Film, time_picture: Time, beep_sound: Beep, read_time: ReadTime, onsets: Onsets
) -> None:
    """The film's own sound is not heard; both files start at 0; the longer one sets the end."""
    picture = film("a.mp4", 2.0, time_picture(fps=20.0), beep_sound(1.0))
    sound = film("b.wav", 3.0, None, beep_sound(0.25, 2.5, codec="pcm_s16le"))
    with open_media(picture, sound=sound) as reader:
        chunks = list(reader)
        assert reader.info.seconds == pytest.approx(3.0)
    assert onsets(sound_of(chunks)) == pytest.approx([0.25, 2.5], abs=FEW_MS)
    assert [read_time(frame) for _, frame in frames_of(chunks)] == [0, 500, 1000, 1500]
    with pytest.raises(MediaError, match=r"b\.wav has no picture to go with"):
        open_media(sound, sound=picture)
    silent = film("c.mp4", 1.0, time_picture(), None)
    with pytest.raises(MediaError, match=r"c\.mp4 has no sound; leave it out"):
        open_media(picture, sound=silent)
    with pytest.raises(ConfigError, match="drop one"):
        open_media(picture, sound=sound, audio=False)


def test_same_film_with_its_sound_beside_it(
    film: Film, time_picture: Time, beep_sound: Beep
) -> None:
    both = film("a.mp4", 3.0, time_picture(), beep_sound(0.5, 2.0))
    with open_media(both, sound=both) as reader:
        beside = list(reader)
    for ours, theirs in zip(beside, read(both), strict=True):
        assert ours.frame_times == theirs.frame_times
        assert_array_equal(np.stack(ours.frames), np.stack(theirs.frames))
        assert ours.samples is not None
        assert theirs.samples is not None
        assert_array_equal(ours.samples, theirs.samples)


def test_probe(film: Film, time_picture: Time, beep_sound: Beep) -> None:
    path = film(
        "a.mp4",
        3.0,
        time_picture(width=96, height=64, fps=12.5, rotation=90),
        beep_sound(1.0, sample_rate=44_100, layout="stereo"),
    )
    info = probe(path)
    assert (info.has_picture, info.has_sound) == (True, True)
    assert (info.width, info.height) == (64, 96)
    assert info.fps == pytest.approx(12.5)
    assert info.seconds == pytest.approx(3.0, abs=0.05)
    assert (info.sample_rate, info.channels) == (44_100, 2)
    recording = probe(film("a.wav", 1.0, None, beep_sound(codec="pcm_s16le")))
    assert (recording.has_picture, recording.width, recording.fps) == (False, None, None)


def test_time_stamps_far_from_zero(
    film: Film, time_picture: Time, beep_sound: Beep, onsets: Onsets, tmp_path: Path
) -> None:
    """A live stream is joined days after its clock started."""
    path = tmp_path / "late.ts"
    options = {"output_ts_offset": "80000"}
    write_film(path, 3.0, time_picture(), beep_sound(1.0, 2.0), container_options=options)
    chunks = read(path)
    first, second = onsets(sound_of(chunks))
    assert 1.0 <= first < 1.07
    assert second - first == pytest.approx(1.0, abs=FEW_MS)
    assert len(frames_of(chunks)) == 6 or len(frames_of(chunks)) == 7


def test_a_leap_of_hours_ends_the_stream(film: Film, time_picture: Time) -> None:
    """Not hours of chunks made of nothing."""
    path = film("a.mkv", 8000.0, time_picture(times=(0.0, 0.5, 1.0, 7500.0)), None)
    with open_media(path) as reader:
        chunks = list(reader)
        assert reader.broken is not None
        assert "time leaps by +7499.0 s" in reader.broken
    assert len(chunks) == 1
