"""Streams through the audio tower: golden data, transformers with a mask, bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from omnitide.backend import Backend
from omnitide.errors import ConfigError, MediaError
from omnitide.models.minicpm_o.audio import AudioTower
from omnitide.models.minicpm_o.mel import MelPiece, MelStream, PlainMelStream
from omnitide.models.minicpm_o.stream_encoder import (
    CARRIED,
    SoundStream,
    StreamEncoder,
    most_stream_tokens,
)

TOLERANCE = 5e-5
"""The manifest's."""

RATE = 16_000
STEP = 10


@pytest.fixture
def encoder(
    make_tower: Callable[..., AudioTower], any_backend: Backend
) -> Callable[..., StreamEncoder]:
    """The golden tower for streams on every backend: `encoder(carried, **AudioConfig's)`."""

    def make(carried: int = 0, **changes: Any) -> StreamEncoder:
        return StreamEncoder(make_tower(any_backend, **changes), carried)

    return make


def _new() -> SoundStream:
    return SoundStream(MelStream(STEP))


def _wave(golden: Any, seconds: str) -> NDArray[np.float32]:
    return golden(f"05_audio_{seconds}s_wave_mel")["wav_i16"].astype(np.float32) / 32768


def _push_all(
    encoder: StreamEncoder, stream: SoundStream, parts: Sequence[NDArray[Any]], ends: bool = False
) -> tuple[list[Any], list[SoundStream]]:
    """Tokens of each push on the host, None for none, and the stream after each."""
    backend = encoder.tower.backend

    def call() -> tuple[list[Any], list[SoundStream]]:
        given, streams, at = [], [], stream
        for index, part in enumerate(parts):
            tokens, at = encoder.push(part, at, last=ends and index == len(parts) - 1)
            given.append(None if tokens is None else backend.to_numpy(tokens))
            streams.append(at)
        return given, streams

    return backend.run(call)


def _pieces(mel: NDArray[np.float32], sizes: Sequence[int]) -> list[MelPiece]:
    """Mel frames cut into pieces with two neighbours, where there are any."""
    pieces, at = [], 0
    for size in sizes:
        first, stop = max(at - 2, 0), min(at + size + 2, len(mel))
        pieces.append(MelPiece(mel[first:stop], at - first, stop - (at + size)))
        at += size
    return pieces


def _push_pieces(
    encoder: StreamEncoder, pieces: Sequence[MelPiece]
) -> tuple[list[NDArray[Any]], list[int]]:
    """Tokens of each piece, and the frames that are remembered after it."""
    backend = encoder.tower.backend

    def call() -> tuple[list[NDArray[Any]], list[int]]:
        given, remembered, stream = [], [], _new()
        for piece in pieces:
            tokens, stream = encoder.push_piece(piece, stream)
            given.append(backend.to_numpy(tokens))
            remembered.append(stream.memory.num_frames)
        return given, remembered

    return backend.run(call)


# -- golden data --------------------------------------------------------------------------------
@pytest.mark.parametrize("seconds", ["1.0", "2.5", "7.0"])
def test_pieces_of_a_clip_equal_the_golden_ones(
    seconds: str, encoder: Callable[..., StreamEncoder], golden: Any
) -> None:
    case = golden(f"06_audio_{seconds}s_stream")
    mel = golden(f"05_audio_{seconds}s_wave_mel")["mel"].T
    pieces = []
    for index, (count, before, after) in enumerate(case["a_pieces"]):
        first = max(100 * index - 2, 0)
        pieces.append(MelPiece(mel[first : first + count], before, after))
    tokens, _ = _push_pieces(encoder(), pieces)
    assert [len(part) for part in tokens] == case["a_tokens_per_piece"].tolist()
    assert_allclose(np.concatenate(tokens), case["a_tokens"], rtol=0, atol=TOLERANCE)
    clip = golden(f"05_audio_{seconds}s_encoder")["tokens"]
    assert_allclose(np.concatenate(tokens), clip, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("seconds", ["1.0", "2.5", "7.0"])
def test_a_duplex_stream_equals_the_golden_one(
    seconds: str, encoder: Callable[..., StreamEncoder], golden: Any
) -> None:
    case, wave = golden(f"06_audio_{seconds}s_stream"), _wave(golden, seconds)
    parts = np.split(wave[: len(wave) // RATE * RATE], len(wave) // RATE)
    tokens, _ = _push_all(encoder(), _new(), parts)
    assert_allclose(np.stack(tokens), case["b_tokens"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("seconds", ["1.0", "2.5"])
def test_remembered_keys_equal_the_golden_ones(
    seconds: str, encoder: Callable[..., StreamEncoder], golden: Any
) -> None:
    case, wave = golden(f"06_audio_{seconds}s_stream"), _wave(golden, seconds)
    made = encoder()
    _, streams = _push_all(
        made, _new(), np.split(wave[: len(wave) // RATE * RATE], len(wave) // RATE)
    )
    backend = made.tower.backend
    keys = backend.run(lambda: backend.to_numpy(streams[-1].memory.keys[0]))
    assert_allclose(keys.transpose(1, 0, 2), case["b_cache_k0"], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("seconds", ["1.0", "2.5", "7.0"])
def test_a_half_duplex_stream_equals_the_golden_one(
    seconds: str, encoder: Callable[..., StreamEncoder], golden: Any
) -> None:
    case, wave = golden(f"06_audio_{seconds}s_stream"), _wave(golden, seconds)
    parts = [wave[at : at + RATE] for at in range(0, len(wave), RATE)]
    tokens, _ = _push_all(encoder(), SoundStream(MelStream(STEP, neighbours=0)), parts, ends=True)
    assert [len(part) for part in tokens] == case["c_tokens_per_message"].tolist()
    assert_allclose(np.concatenate(tokens), case["c_tokens"], rtol=0, atol=TOLERANCE)


def test_a_long_stream_equals_the_golden_one(
    encoder: Callable[..., StreamEncoder], golden: Any, long_wave: NDArray[np.float32]
) -> None:
    """Past the published reset; sums of up to 1,450 frames."""
    case = golden("07_audio_long")
    tokens, streams = _push_all(encoder(0), _new(), np.split(long_wave, 33))
    remembered = [stream.memory.num_frames for stream in streams]
    assert remembered == case["cache_frames_after"].tolist()
    assert_allclose(np.stack(tokens), case["tokens"], rtol=0, atol=TOLERANCE)


def test_the_window_is_the_golden_stream_up_to_the_end_of_the_positions(
    make_tower: Callable[..., AudioTower],
    reference: Backend,
    golden: Any,
    long_wave: NDArray[np.float32],
) -> None:
    case = golden("07_audio_long")
    encoder = StreamEncoder(make_tower(reference))
    tokens, streams = _push_all(encoder, _new(), np.split(long_wave, 33))
    assert_allclose(np.stack(tokens[:29]), case["tokens"][:29], rtol=0, atol=TOLERANCE)
    assert np.abs(tokens[29] - case["tokens"][29]).max() > 0.1
    assert [stream.memory.num_frames for stream in streams[28:]] == [1450, 550, 600, 650, 700]
    assert encoder.carried == CARRIED == 500


def test_plain_seconds_pooled_by_two_equal_the_golden_ones(
    encoder: Callable[..., StreamEncoder], golden: Any
) -> None:
    wave = _wave(golden, "2.5")
    parts = [wave[:RATE], wave[RATE : 2 * RATE]]
    tokens, _ = _push_all(encoder(pool=2), SoundStream(PlainMelStream()), parts)
    want = golden("09_audio_pool2")["stream_tokens"]
    assert_allclose(np.stack(tokens), want, rtol=0, atol=TOLERANCE)


# -- the end of the positions -------------------------------------------------------------------
WINDOWS = {
    "reset": (0, [100] * 12),
    "two pieces": (100, [100] * 12),
    "not a multiple": (149, [100] * 12),
    "all there is room for": (202, [100] * 12),
    "pieces of several lengths": (90, [100, 60, 20, 110, 100, 30, 100, 80, 100, 100, 10, 100, 100]),
}


@pytest.mark.parametrize(("carried", "sizes"), WINDOWS.values(), ids=WINDOWS.keys())
def test_what_is_carried_is_encoded_as_if_the_stream_began_there(
    carried: int,
    sizes: list[int],
    encoder: Callable[..., StreamEncoder],
    whisper_oracle: Any,
    assert_close: Any,
) -> None:
    """302 positions; each piece against transformers on all that it may see, from position 0."""
    mel = np.random.default_rng(4).standard_normal((sum(sizes), 80)).astype(np.float32)
    pieces = _pieces(mel, sizes)
    tokens, remembered = _push_pieces(encoder(carried, max_frames=302), pieces)
    frames = whisper_oracle.convolved(mel)
    halves = [size // 2 for size in sizes]
    stops = np.cumsum(halves)
    first, resets = 0, 0
    for index, (stop, piece) in enumerate(zip(stops, pieces, strict=True)):
        begin = stop - halves[index]
        if begin > first and begin - first + (len(piece.frames) + 1) // 2 >= 302:
            starts = stops[:index] - halves[:index]
            kept = [start for start in starts if begin - start <= carried]
            first, resets = (kept[0] if kept else begin), resets + 1
        chunk = np.searchsorted(stops, np.arange(first, stop), side="right")
        states = whisper_oracle.states(frames[first:stop], chunk[None] <= chunk[:, None])
        assert remembered[index] == stop - first < 302
        assert_close(tokens[index], whisper_oracle.tokens(states[begin - first :], 5))
    assert resets >= 1


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 110), min_size=1, max_size=40),
    carried=st.integers(0, 40),
    neighbours=st.booleans(),
)
def test_memory_is_bounded(sizes: list[int], carried: int, neighbours: bool) -> None:
    """Whatever the pieces; with the published rule that counts neighbours too."""
    tower = _CountingTower()
    encoder, stream = StreamEncoder(tower, carried), _new()  # type: ignore[arg-type]
    for size in sizes:
        around = 2 if neighbours else 0
        piece = MelPiece(np.zeros((size + 2 * around, 80), np.float32), around, around)
        _, stream = encoder.push_piece(piece, stream)
        assert stream.memory.num_frames < 140
        assert sum(len(part) for part in stream.pieces) <= carried
    assert tower.most < 140


class _CountingTower:
    """A tower whose blocks only count: no weights, 140 positions, chunks of 50, pool 5."""

    class config:
        max_frames, chunk_frames, pool = 140, 50, 5

    class backend:
        concat = staticmethod(np.concatenate)

    most = 0

    def convolve(self, mel: NDArray[Any]) -> NDArray[Any]:
        return mel[::2]

    def blocks(self, frames: Any, chunks: Sequence[int], memory: Any) -> Any:
        assert sum(chunks) == len(frames)
        total = memory.num_frames + len(frames)
        self.most = max(self.most, total)
        return frames, type(memory)((np.zeros(total),), (np.zeros(total),))

    def tokens(self, states: Any) -> Any:
        return states


@pytest.mark.parametrize("carried", [-1, 1401])
def test_what_can_not_be_carried_is_refused(
    carried: int, make_tower: Callable[..., AudioTower], reference: Backend
) -> None:
    with pytest.raises(ConfigError, match=f"0 to 1400 frames.*got {carried}"):
        StreamEncoder(make_tower(reference), carried)


# -- pushes -------------------------------------------------------------------------------------
def test_push_changes_nothing(
    encoder: Callable[..., StreamEncoder], long_wave: NDArray[np.float32]
) -> None:
    """A stream may be pushed again after an update that was given up, also over a reset."""
    made = encoder(100, max_frames=260)
    parts = np.split(long_wave[: 6 * RATE], 6)
    tokens, streams = _push_all(made, _new(), parts)
    again = [_push_all(made, streams[at], parts[at + 1 : at + 2])[0][0] for at in range(5)]
    for first, second in zip(tokens[1:], again, strict=True):
        assert_array_equal(first, second)


def test_a_refused_push_leaves_the_stream(
    make_tower: Callable[..., AudioTower], reference: Backend, long_wave: NDArray[np.float32]
) -> None:
    encoder = StreamEncoder(make_tower(reference))
    _, stream = encoder.push(long_wave[:RATE], _new())
    with pytest.raises(MediaError, match="finite"):
        encoder.push(np.full(RATE, np.nan, np.float32), stream)
    with pytest.raises(MediaError, match=r"at most 1500 frames.*got 1550"):
        encoder.push_piece(MelPiece(np.zeros((2900 + 100, 80), np.float32)), stream)
    assert encoder.push(long_wave[RATE : 2 * RATE], stream)[0].shape == (10, 256)


@pytest.mark.parametrize("count", [0, 1, 159, 1399])
def test_sound_too_short_for_a_token_waits(
    count: int, encoder: Callable[..., StreamEncoder], long_wave: NDArray[np.float32]
) -> None:
    """And is heard with what follows: a second has ten tokens, wherever it is cut."""
    made = encoder()
    cut, _ = _push_all(made, _new(), [long_wave[:count], long_wave[count:RATE]])
    (whole,), _ = _push_all(made, _new(), [long_wave[:RATE]])
    assert cut[0] is None
    assert_allclose(cut[1], whole, rtol=0, atol=TOLERANCE)


def test_an_end_too_short_for_a_token_is_not_remembered(
    make_tower: Callable[..., AudioTower], reference: Backend, long_wave: NDArray[np.float32]
) -> None:
    """Eight mel frames and two neighbours: five frames, of which four are its own."""
    encoder = StreamEncoder(make_tower(reference))
    _, stream = encoder.push(long_wave[:RATE], _new())
    tokens, stream = encoder.push(long_wave[RATE : RATE + 800], stream, last=True)
    assert tokens is None
    assert stream.memory.num_frames == 50


@pytest.mark.parametrize("count", [1, 320, 321, 641])
def test_a_plain_second_too_short_for_a_token_gives_nothing(
    count: int, make_tower: Callable[..., AudioTower], reference: Backend
) -> None:
    """Two frames behind the convolutions are needed, so three mel frames."""
    encoder = StreamEncoder(make_tower(reference, pool=2))
    tokens, stream = encoder.push(np.zeros(count, np.float32), SoundStream(PlainMelStream()))
    assert (tokens is None) == (count <= 320)
    assert (stream.memory.num_frames == 0) == (count <= 320)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40_000), min_size=1, max_size=8),
    pool=st.sampled_from([2, 5]),
    neighbours=st.sampled_from([0, 2]),
)
def test_most_tokens_of_a_push(sizes: list[int], pool: int, neighbours: int) -> None:
    stream = MelStream(2 * pool, neighbours)
    for size in sizes:
        pieces, stream = stream.push(np.zeros(size, np.float32))
        frames = sum(len(piece.frames) - piece.before - piece.after for piece in pieces)
        assert frames // (2 * pool) <= most_stream_tokens(size, pool)


@pytest.mark.parametrize(("pool", "tokens"), [(5, 10), (2, 25)])
def test_tokens_of_a_second(pool: int, tokens: int) -> None:
    assert most_stream_tokens(RATE, pool) == tokens
