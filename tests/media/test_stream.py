"""Sources that are read in one go, and what a reader holds and lets go."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from omnitide.config import MediaOptions
from omnitide.errors import MediaError
from omnitide.media.clip import ClipPicture, ClipSound, write_clip
from omnitide.media.demuxer import Demuxer
from omnitide.media.reader import open_media
from omnitide.media.source import open_container

Film = Callable[..., Path]
Time = Callable[..., ClipPicture]
Beep = Callable[..., ClipSound]
ReadTime = Callable[[NDArray[np.uint8]], int]
Onsets = Callable[[NDArray[np.float32]], list[float]]
Serve = Callable[..., str]

FILES = Path("/proc/self/fd")


def test_a_url_gives_the_chunks_of_the_file(
    film: Film, time_picture: Time, beep_sound: Beep, serve: Serve
) -> None:
    """One container shared by both tracks equals one container for each."""
    path = film(
        "a.mkv",
        5.0,
        time_picture(fps=20.0, delay=0.7),
        beep_sound(1.0, 4.0, codec="libopus", sample_rate=48_000),
    )
    with open_media(path) as reader:
        expected = list(reader)
    with open_media(serve(path.read_bytes())) as reader:
        chunks = list(reader)
        assert reader.broken is None
    assert len(chunks) == len(expected) == 3
    for ours, theirs in zip(chunks, expected, strict=True):
        assert (ours.start, ours.stop) == (theirs.start, theirs.stop)
        assert ours.frame_times == theirs.frame_times
        assert_array_equal(np.stack(ours.frames), np.stack(theirs.frames))
        assert ours.samples is not None
        assert theirs.samples is not None
        assert_array_equal(ours.samples, theirs.samples)


def test_a_line_that_is_cut(film: Film, serve: Serve) -> None:
    path = film("a.mkv", 8.0, ClipPicture(), ClipSound())
    data = path.read_bytes()
    with open_media(serve(data, len(data) // 2)) as reader:
        chunks = list(reader)
        assert reader.broken is not None
        assert "broke off at" in reader.broken
    assert 2.0 < chunks[-1].stop < 6.0
    with pytest.raises(MediaError):
        open_media(serve(data, 100))


@pytest.mark.parametrize("chunk_seconds", [2.0, 30.0])
def test_shared_container_with_a_track_that_is_silent_for_long(
    film: Film,
    time_picture: Time,
    beep_sound: Beep,
    read_time: ReadTime,
    onsets: Onsets,
    serve: Serve,
    chunk_seconds: float,
) -> None:
    """Sound that starts after 25 s, beyond the patience: silence, then each beep at its place."""
    path = film(
        "a.mkv",
        40.0,
        time_picture(fps=4.0),
        beep_sound(26.0, 39.0, delay=25.0, codec="flac"),
    )
    options = MediaOptions(fps=1.0, chunk_seconds=chunk_seconds)
    with open_media(serve(path.read_bytes()), options) as reader:
        chunks = list(reader)
    samples = np.concatenate([chunk.samples for chunk in chunks if chunk.samples is not None])
    assert len(samples) == 40 * 16_000
    assert onsets(samples) == pytest.approx([26.0, 39.0], abs=0.004)
    frames = [frame for chunk in chunks for frame in chunk.frames]
    assert [read_time(frame) for frame in frames] == list(range(0, 40_000, 1000))


def test_waiting_packets_are_bounded(film: Film, time_picture: Time, beep_sound: Beep) -> None:
    """Asking for sound that ended at 1 s reads 10 s of picture ahead, not the whole film."""
    path = film("a.mkv", 60.0, time_picture(fps=4.0), beep_sound(0.5, stop=1.0))
    with open_container(path) as container:
        picture, sound = container.streams.video[0], container.streams.audio[0]
        demuxer = Demuxer(container, [picture, sound])
        while demuxer.read(sound) is not None:
            pass
        assert not demuxer.ended
        waiting = 0
        last = 0.0
        while (packet := demuxer.read(picture)) is not None and last < 11.0:
            waiting += 1
            last = float((packet.dts or 0) * packet.time_base)
        assert 40 <= waiting <= 50
        assert demuxer.read(sound) is None
        while demuxer.read(picture) is not None:
            pass
        assert demuxer.ended


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_read_while_it_is_written(
    film: Film, time_picture: Time, beep_sound: Beep, onsets: Onsets, tmp_path: Path
) -> None:
    """An endless source in small: no size, no seeking, one pass."""
    data = film("a.ts", 12.0, time_picture(), beep_sound(1.0, 11.0)).read_bytes()
    pipe = tmp_path / "pipe.ts"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    with open_media(pipe) as reader:
        chunks = list(reader)
    writer.join()
    assert chunks[-1].stop == pytest.approx(12.0, abs=0.1)
    first, second = onsets(
        np.concatenate([chunk.samples for chunk in chunks if chunk.samples is not None])
    )
    assert second - first == pytest.approx(10.0, abs=0.004)


def test_chunks_are_let_go(film: Film, time_picture: Time, beep_sound: Beep) -> None:
    path = film("a.mp4", 12.0, time_picture(), beep_sound(1.0))
    seen: list[weakref.ref[NDArray[np.uint8]]] = []
    heard: list[weakref.ref[NDArray[np.float32]]] = []
    with open_media(path) as reader:
        for chunk in reader:
            # The picture shown last may still be shown at the next instant.
            assert sum(ref() is not None for ref in seen) <= 1
            assert sum(ref() is not None for ref in heard) == 0
            seen = [weakref.ref(frame) for frame in chunk.frames]
            assert chunk.samples is not None
            heard = [weakref.ref(chunk.samples)]
            assert len({id(frame) for frame in chunk.frames}) == 4
            del chunk


def test_memory_does_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    write_clip(path, 60, width=96, height=96, fps=4.0)
    sizes = []
    tracemalloc.start()
    with open_media(path, MediaOptions(chunk_seconds=1.0)) as reader:
        for index, _ in enumerate(reader):
            if index in (10, 30, 50):
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(sizes) == 3
    chunk = 2 * 96 * 96 * 3 + 16_000 * 4
    assert max(sizes) - min(sizes) < chunk
    assert peak < 10 * chunk


@pytest.mark.skipif(not FILES.is_dir(), reason="open files are counted in /proc")
@pytest.mark.parametrize("leave", ["end", "with", "drop", "error", "close"])
def test_files_are_closed(film: Film, time_picture: Time, beep_sound: Beep, leave: str) -> None:
    path = film("a.mp4", 6.0, time_picture(), beep_sound(1.0))

    def count() -> int:
        held = [str(entry.readlink()) for entry in FILES.iterdir() if entry.is_symlink()]
        return held.count(str(path))

    assert count() == 0
    if leave == "error":
        with pytest.raises(MediaError, match="has no sound"):
            open_media(path, sound=film("b.mp4", 1.0, time_picture(), None))
    elif leave == "with":
        with open_media(path) as reader:
            next(reader)
            assert count() == 2
        assert list(reader) == []
    else:
        reader = open_media(path)
        next(reader)
        assert count() == 2
        if leave == "end":
            assert len(list(reader)) == 2
        elif leave == "close":
            reader.close()
            reader.close()
            assert reader.broken is None
            assert list(reader) == []
        else:
            del reader
            gc.collect()
    assert count() == 0
