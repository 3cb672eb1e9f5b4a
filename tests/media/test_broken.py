"""Sources that are damaged, cut off, empty or no media at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from omnitide.config import MediaOptions
from omnitide.errors import MediaError
from omnitide.media import source as source_module
from omnitide.media.chunk import MediaChunk
from omnitide.media.clip import ClipPicture, ClipSound, write_film
from omnitide.media.reader import open_media, probe
from omnitide.media.source import PROTOCOLS, name_of, open_container, scheme_of

Film = Callable[..., Path]
Time = Callable[..., ClipPicture]
Beep = Callable[..., ClipSound]


@pytest.fixture(scope="module")
def whole_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "whole.mp4"
    picture = ClipPicture(width=64, height=64, options=(("preset", "ultrafast"), ("g", "4")))
    write_film(path, 8.0, picture, ClipSound(), container_options={"movflags": "+faststart"})
    return path.read_bytes()


@pytest.fixture
def whole(tmp_path: Path, whole_bytes: bytes) -> Path:
    """A film of 8 s with its index at the front, key frames twice a second, bytes spread evenly."""
    path = tmp_path / "whole.mp4"
    path.write_bytes(whole_bytes)
    return path


def media_start(data: bytes) -> int:
    """Where the index ends and the packets begin."""
    return data.index(b"mdat") + 4


def read(path: Path) -> tuple[list[MediaChunk], str | None]:
    with open_media(path) as reader:
        chunks = list(reader)
        return chunks, reader.broken


@pytest.mark.parametrize("share", [0.2, 0.35, 0.5, 0.75, 0.95])
def test_cut_off_film_gives_what_is_there_and_says_where_it_broke(
    whole: Path, share: float
) -> None:
    expected, _ = read(whole)
    data = whole.read_bytes()
    cut = whole.with_name("cut.mp4")
    start = media_start(data)
    cut.write_bytes(data[: start + int((len(data) - start) * share)])
    chunks, broken = read(cut)
    assert broken is not None
    assert "broke off at" in broken
    stop = chunks[-1].stop
    assert 0 < stop < 8.0
    assert f"{stop:.1f} s" in broken
    # All but the last chunk, in which one track ends before the other, are those of the film.
    for ours, theirs in zip(chunks[:-1], expected, strict=False):
        assert (ours.start, ours.stop) == (theirs.start, theirs.stop)
        assert ours.frame_times == theirs.frame_times
        assert_array_equal(np.stack(ours.frames), np.stack(theirs.frames))
    assert len(chunks) == -(-stop // 2)


def test_a_late_track_that_breaks_off_is_told(film: Film) -> None:
    """What a header announces counts from the start of the track, not of the film."""
    picture = ClipPicture(width=64, height=64, delay=4.0, options=(("g", "4"),))
    path = film("a.mp4", 8.0, picture, ClipSound(), movflags="+faststart")
    data = path.read_bytes()
    start = media_start(data)
    path.write_bytes(data[: start + (len(data) - start) * 8 // 10])
    chunks, broken = read(path)
    assert broken is not None
    assert "picture broke off" in broken
    assert "sound broke off" in broken
    assert 5.0 < chunks[-1].stop < 7.5


@pytest.mark.parametrize(
    ("name", "muxer", "opens"),
    [
        ("a.mp4", {"movflags": "frag_keyframe+empty_moov"}, True),
        ("a.mkv", {}, True),
        ("a.ts", {}, True),
        ("a.mp4", {}, False),
    ],
)
def test_cut_off_containers(
    film: Film,
    name: str,
    muxer: dict[str, str],
    opens: bool,
) -> None:
    """A plain MP4 has its index at the end: cut off, nothing of it can be read."""
    picture = ClipPicture(width=64, height=64, options=(("preset", "ultrafast"), ("g", "4")))
    path = film(name, 8.0, picture, ClipSound(), **muxer)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    if opens:
        chunks, _ = read(path)
        assert 2.0 < chunks[-1].stop < 7.5
        assert len(chunks[0].frames) == 4
    else:
        with pytest.raises(MediaError, match="its index is missing"):
            open_media(path)


@pytest.mark.parametrize("kept", [1, 100, 1000, None])
def test_film_cut_off_before_its_first_frame_is_refused(whole: Path, kept: int | None) -> None:
    data = whole.read_bytes()
    whole.write_bytes(data[: media_start(data) if kept is None else kept])
    with pytest.raises(MediaError):
        open_media(whole)


def test_every_length_gives_a_clear_end(whole: Path) -> None:
    """No length of the file leads to anything but chunks or a MediaError."""
    data = whole.read_bytes()
    outcomes = set()
    for size in np.linspace(1, len(data), 40).astype(int):
        whole.write_bytes(data[:size])
        try:
            chunks, broken = read(whole)
        except MediaError:
            outcomes.add("refused")
        else:
            assert chunks
            outcomes.add("broken" if broken else "whole")
    assert outcomes == {"refused", "broken", "whole"}


def test_damage_in_the_middle_is_passed_over_and_told(whole: Path) -> None:
    expected, _ = read(whole)
    data = bytearray(whole.read_bytes())
    start = media_start(data)
    fifth = (len(data) - start) // 5
    noise = np.random.default_rng(0).integers(0, 256, fifth, np.uint8)
    data[start + 2 * fifth : start + 3 * fifth] = noise.tobytes()
    whole.write_bytes(data)
    with open_media(whole) as reader:
        chunks = list(reader)
        assert reader.broken is None
        assert reader.damage is not None
        assert "damaged, the first at" in reader.damage
    assert [(c.start, c.stop) for c in chunks] == [(c.start, c.stop) for c in expected]
    assert [len(chunk.frames) for chunk in chunks] == [4, 4, 4, 4]
    for place in (0, 3):
        assert_array_equal(np.stack(chunks[place].frames), np.stack(expected[place].frames))


def test_nothing_that_can_be_decoded_is_refused(whole: Path) -> None:
    data = bytearray(whole.read_bytes())
    start = media_start(data)
    data[start:] = bytes(len(data) - start)
    whole.write_bytes(data)
    with pytest.raises(MediaError, match=r"nothing of .* can be decoded"):
        open_media(whole)


def test_one_track_that_cannot_be_decoded_is_told_and_the_other_read(
    film: Film, beep_sound: Beep, time_picture: Time
) -> None:
    path = film("a.mkv", 2.0, time_picture(), beep_sound(1.0, codec="pcm_s16le"))
    with av.open(str(path)) as container:
        sizes = [p.size for p in container.demux(video=0) if p.size]
        container.seek(0)
        packets = [bytes(p) for p in container.demux(video=0) if p.size]
    assert sizes
    data = path.read_bytes()
    for packet in packets:
        data = data.replace(packet, bytes(len(packet)))
    path.write_bytes(data)
    with open_media(path) as reader:
        assert not reader.info.has_picture
        chunks = list(reader)
        assert reader.damage is not None
        assert "picture damaged" in reader.damage
    assert [chunk.frames for chunk in chunks] == [()]
    assert chunks[0].samples is not None
    assert chunks[0].samples.any()


def test_codec_without_a_decoder(whole: Path) -> None:
    whole.write_bytes(whole.read_bytes().replace(b"avc1", b"zzzz"))
    with pytest.raises(MediaError, match=r"the picture of .* can't decode; convert it"):
        open_media(whole)
    with open_media(whole, video=False) as reader:
        assert reader.info.has_sound


@pytest.mark.parametrize("name", ["a.wav", "a.mp4"])
def test_length_of_zero(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with av.open(str(path), "w") as output:
        output.add_stream("aac" if name == "a.mp4" else "pcm_s16le", rate=16_000, layout="mono")
        output.start_encoding()
    with pytest.raises(MediaError, match=r"length of 0|neither picture nor sound"):
        open_media(path)


def test_missing_track(film: Film, time_picture: Time, beep_sound: Beep) -> None:
    silent = film("a.mp4", 1.0, time_picture(), None)
    with pytest.raises(MediaError, match="has no sound; give a film"):
        open_media(silent, video=False)
    blind = film("a.wav", 1.0, None, beep_sound(codec="pcm_s16le"))
    with pytest.raises(MediaError, match="has no picture; give a film"):
        open_media(blind, audio=False)


def test_cover_of_a_recording_is_no_picture(tmp_path: Path) -> None:
    path = tmp_path / "a.mp3"
    with av.open(str(path), "w") as output:
        sound = output.add_stream("libmp3lame", rate=44_100, layout="stereo")
        cover = output.add_stream("png", rate=1)
        cover.width = cover.height = 64
        cover.pix_fmt = "rgb24"
        cover.disposition = av.stream.Disposition.attached_pic
        pixels = np.full((64, 64, 3), 99, np.uint8)
        output.mux(cover.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        frame = av.AudioFrame.from_ndarray(
            np.zeros((2, 44_100), np.float32), format="fltp", layout="stereo"
        )
        frame.sample_rate, frame.pts = 44_100, 0
        output.mux(sound.encode(frame))
        output.mux(sound.encode(None))
    assert not probe(path).has_picture


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a directory; name a file in it"),
        (lambda path: path.write_bytes(b""), r"is empty \(0 bytes\)"),
        (lambda path: path.write_bytes(os.urandom(50_000)), "is no film or sound"),
        (
            lambda path: path.write_text("Once upon a time\n" * 500),
            "is no film or sound|format that",
        ),
    ],
    ids=["missing", "directory", "empty", "garbage", "text"],
)
def test_no_media(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    path = tmp_path / "film.mp4"
    make(path)
    for source in (path, str(path)):
        with pytest.raises(MediaError, match=words):
            open_media(source)


def test_file_without_permission(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for `os.access`: root, as whom tests may run, may read every file."""
    monkeypatch.setattr(source_module.os, "access", lambda *_: False)
    with pytest.raises(MediaError, match="may not be read by you"):
        open_media(whole)


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:8\n#EXTINF:8,\n{whole}\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile {name}\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 RTP/AVP 96\n",
    ],
    ids=["hls", "concat", "sdp"],
)
@pytest.mark.parametrize("name", ["film.mp4", "film.m3u8", "film.txt"])
def test_playlists_on_disk_reach_nothing(whole: Path, text: str, name: str) -> None:
    path = whole.with_name(name)
    path.write_text(text.format(whole=whole, name=whole.name))
    with pytest.raises(MediaError):
        open_media(path)


def test_a_playlist_from_the_net_reaches_no_file(whole: Path, serve: Callable[..., str]) -> None:
    lines = ["#EXTM3U", "#EXT-X-TARGETDURATION:8", "#EXTINF:8,", f"file://{whole}", ""]
    with pytest.raises(MediaError):
        open_media(serve("\n".join([*lines, "#EXT-X-ENDLIST", ""]).encode()))


@pytest.mark.parametrize(
    "url", ["file:///etc/hostname", "ftp://host/a.mp4", "concat://a", "gopher://x/y"]
)
def test_schemes_that_are_not_allowed(url: str) -> None:
    with pytest.raises(MediaError, match="must start with one of http"):
        open_media(url)


@pytest.mark.parametrize("path", ["concat:whole.mp4", "data:video/mp4;base64,AAAA", "pipe:0"])
def test_protocols_of_ffmpeg_are_file_names(path: str) -> None:
    with pytest.raises(MediaError, match="does not exist"):
        open_media(path)


def test_colon_in_a_file_name(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole.rename(whole.with_name("http:film 50%.mp4"))
    monkeypatch.chdir(whole.parent)
    assert probe("http:film 50%.mp4").has_picture


def test_every_source_is_opened_within_the_allow_lists(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[dict[str, str]] = []
    really_open = av.open

    def note(address: str, *args: object, **options: Any) -> object:
        opened.append(options["container_options"])
        return really_open(str(whole))

    monkeypatch.setattr(source_module.av, "open", note)
    sources = [str(whole), *(f"{scheme}://host/a" for scheme in PROTOCOLS)]
    for source in sources:
        open_container(source).close()
    assert len(opened) == len(PROTOCOLS) + 1
    assert opened[0]["protocol_whitelist"] == "file"
    local = {"file", "pipe", "fd", "concat", "concatf", "subfile", "unix", "data"}
    for options in opened[1:]:
        assert not local & set(options["protocol_whitelist"].split(","))
    for options in opened:
        assert not {"concat", "tty", "image2", "lavfi"} & set(
            options["format_whitelist"].split(",")
        )


def test_address_that_does_not_answer() -> None:
    with pytest.raises(MediaError, match=r"http://127\.0\.0\.1:9/a\.mp4 can't be opened"):
        open_media("http://127.0.0.1:9/a.mp4")


def test_messages_keep_secrets() -> None:
    url = "https://user:secret@host:8080/live/a.m3u8?token=secret"
    assert name_of(url) == "https://host:8080/live/a.m3u8"
    assert scheme_of(url) == "https"
    assert scheme_of("C:/films/a.mp4") is None


@pytest.mark.parametrize("channels", [9, 18, 64])
def test_channels_that_ffmpeg_does_not_mix_are_heard(tmp_path: Path, channels: int) -> None:
    import wave

    path = tmp_path / "many.wav"
    tone = (8000 * np.sin(np.arange(32_000) / 10)).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(np.repeat(tone[:, None], channels, axis=1).tobytes())
    (chunk,), broken = read(path)
    assert broken is None
    assert chunk.samples is not None
    assert np.abs(chunk.samples - tone / 32768).max() < 1e-3


@pytest.mark.parametrize("seconds", [0.01, 0.04])
def test_short_chunks_reach_the_end(film: Film, seconds: float) -> None:
    path = film("a.wav", 1.0, None, ClipSound(codec="pcm_s16le"))
    with open_media(path, MediaOptions(chunk_seconds=seconds)) as reader:
        chunks = list(reader)
    assert sum(len(c.samples) for c in chunks if c.samples is not None) >= 16_000 * 0.95


def test_picture_whose_time_falls_back_at_the_end(film: Film, time_picture: Time) -> None:
    path = film("back.mkv", 6.0, time_picture(fps=4), ClipSound(stop=3.0), cluster_time_limit="100")
    data = bytearray(path.read_bytes())
    # The last cluster (id, size, time code) goes back to the third second of the film.
    at = data.rindex(b"\x1f\x43\xb6\x75")
    code = data.index(b"\xe7", at)
    size = data[code + 1] & 0x7F
    data[code + 2 : code + 2 + size] = (3000).to_bytes(size, "big")
    path.write_bytes(data)
    chunks, _ = read(path)
    assert chunks[-1].stop >= chunks[-1].start


def test_absurd_pixel_aspect_is_not_believed(film: Film, time_picture: Time) -> None:
    path = film("a.mp4", 2.0, time_picture(), None)
    data = bytearray(path.read_bytes())
    at = data.index(b"btrt")
    data[at : at + 12] = b"pasp" + (2_000_000_000).to_bytes(4, "big") + (1).to_bytes(4, "big")
    path.write_bytes(data)
    chunks, _ = read(path)
    assert chunks[0].frames[0].shape == (64, 64, 3)
