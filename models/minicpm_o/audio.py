"""The audio tower: log-mel frames to tokens, for clips and for streams.

Two convolutions halve the frames to 50 a second, learned positions are added, blocks of Whisper's
encoder follow, then a projection, then the mean over `pool` frames. A frame sees its own chunk and
all earlier ones, so a stream can be encoded chunk by chunk with keys and values kept; and it gives
what the clip would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from omnitide.backend import Array, Backend
from omnitide.errors import ConfigError, MediaError
from omnitide.media.chunk import SAMPLE_RATE
from omnitide.models.layers import LayerNorm, Linear, Weights
from omnitide.models.mel import HOP, Mel, Samples
from omnitide.models.minicpm_o.config import AudioConfig
from omnitide.models.minicpm_o.mel import MelPiece, MelStream, PlainMelStream, clip_mels
from omnitide.models.whisper import NORM_EPS, Convolutions, WhisperLayer

CARRIED = 500
"""Frames, 10 s, that a stream encodes anew where the table of positions ends, unless told else."""

STRIDE = 2
"""Mel frames of a frame behind the convolutions."""


def num_audio_tokens(num_frames: int, pool: int) -> int:
    """Tokens of so many mel frames that are encoded as a clip: whole means of `pool` alone."""
    return (num_frames + STRIDE - 1) // STRIDE // pool


def most_stream_tokens(num_samples: int, pool: int) -> int:
    """Tokens that a push of so many samples gives at most; exact for whole seconds in a row."""
    return -(-num_samples // (STRIDE * pool * HOP))


@dataclass(frozen=True, slots=True, eq=False)
class EncoderState:
    """What the encoder remembers of a stream; nothing it holds is ever written to.

    Attributes:
        keys, values: Of each layer, (num_frames, num_heads, head_dim); none before the first piece.
        pieces: The last pieces as the convolutions gave them, positions not added, `CARRIED` frames
            or fewer in all, oldest first.
    """

    keys: tuple[Array, ...] = ()
    values: tuple[Array, ...] = ()
    pieces: tuple[Array, ...] = ()

    @property
    def num_frames(self) -> int:
        """Frames that a new one sees beside its own piece."""
        return int(self.keys[0].shape[0]) if self.keys else 0


@dataclass(frozen=True, slots=True, eq=False)
class SoundStream:
    """A stream's sound so far: what waits for the transform, and what the encoder remembers."""

    mel: MelStream | PlainMelStream
    encoder: EncoderState = field(default_factory=EncoderState)


class AudioTower:
    """Encodes sound to tokens of the decoder's width.

    A stream's positions run on from piece to piece. Before they would leave the table of learned
    ones (29 s of whole seconds), keys and values are forgotten, which is the published rule, and
    positions begin again at 0. With `carried` above 0, the last so many frames are then encoded
    anew from position 0, and what follows sees them: no moment is heard without what was before it,
    and the memory has the same bound.
    """

    def __init__(
        self, config: AudioConfig, backend: Backend, weights: Weights, carried: int = CARRIED
    ) -> None:
        """Read the tower's weights.

        Args:
            config: Of the tower.
            backend: Where the weights are.
            weights: By canonical name.
            carried: Frames behind the convolutions that survive the end of the table of positions;
                0 is the published reset.

        Raises:
            ConfigError: `carried` is below 0, or doesn't leave room for two chunks.
        """
        most = config.max_frames - 2 * config.chunk_frames
        if not 0 <= carried <= max(most, 0):
            raise ConfigError(
                f"[audio] carried must be 0 to {max(most, 0)} frames, the table of positions less "
                f"two chunks, got {carried}"
            )
        self.config = config
        self.backend = backend
        self.carried = carried
        self.convolutions = Convolutions.read(weights, "apm")
        self.positions = weights["apm.embed_positions.weight"]
        self.layers = [
            WhisperLayer.read(weights, f"apm.layers.{layer}") for layer in range(config.num_layers)
        ]
        self.norm = LayerNorm.read(weights, "apm.layer_norm", NORM_EPS)
        self.project_in = Linear.read(weights, "audio_projection_layer.linear1")
        self.project_out = Linear.read(weights, "audio_projection_layer.linear2")

    def encode_clip(self, samples: Samples) -> Array | None:
        """Tokens of sound that is there as a whole; 30 s of it at a time are encoded together.

        Args:
            samples: Mono, 16 kHz, float in [-1, 1], (num_samples,).

        Returns:
            Shape (num_tokens, output_size); None for sound too short for a token.

        Raises:
            MediaError: Samples are not one row of finite floats.
        """
        return self.joined(self.encode_together(clip_mels(samples)))

    def encode_together(self, mels: Sequence[Mel]) -> list[Array | None]:
        """Tokens of clips that are encoded as one batch, which is how a prompt's are.

        Clips do not see each other. But the published code fills the shorter ones up with zeros and
        hides what is beyond the clip by a length that is twice too large. So the frames of a
        clip's last chunk see frames of that filling; with them its tokens are the published ones.

        Args:
            mels: Log-mel frames of each clip, (num_frames, num_bands).

        Returns:
            For each clip (num_tokens, output_size); None where it is too short for a token.

        Raises:
            MediaError: A clip is longer than the table of positions.
        """
        longest = max((len(mel) for mel in mels), default=0)
        tokens = []
        for mel in mels:
            filled = np.concatenate([mel, np.zeros((longest - len(mel), mel.shape[1]), np.float32)])
            tokens.append(self.encode(filled, len(mel)))
        return tokens

    def encode(self, mel: Mel, length: int | None = None) -> Array | None:
        """Tokens of one clip's log-mel frames.

        Args:
            mel: Shape (num_frames, num_bands).
            length: Frames that are the clip's; the others are filling, see `encode_together`. None:
                all.

        Returns:
            Shape (num_tokens, output_size); None where it is too short for a token.

        Raises:
            MediaError: It is longer than the table of positions.
        """
        config = self.config
        length = len(mel) if length is None else length
        count = num_audio_tokens(length, config.pool)
        if not count:
            return None
        x = self.convolutions(self.backend, self.backend.asarray(mel))
        frames = (length + STRIDE - 1) // STRIDE
        last_chunk = -(-frames // config.chunk_frames) * config.chunk_frames
        # The first `length` frames, not the first `frames`: the mistake that is kept.
        x = x[: min(last_chunk, length, x.shape[0])]
        whole, rest = divmod(x.shape[0], config.chunk_frames)
        chunks = [config.chunk_frames] * whole + ([rest] if rest else [])
        states, _ = self.blocks(x, chunks, EncoderState())
        return self._tokens(states)[:count]

    def push(
        self, samples: Samples, stream: SoundStream, last: bool = False
    ) -> tuple[Array | None, SoundStream]:
        """Tokens of a stream's next samples, and the stream after them. Changes nothing.

        Args:
            samples: As in `encode_clip`; any number, also none.
            stream: As `SoundStream` makes it or the push before gave it.
            last: Nothing follows; see `MelStream.push`.

        Returns:
            Shape (num_tokens, output_size), None where the samples complete no token; and the next
            stream.

        Raises:
            MediaError: Samples are not one row of finite floats.
        """
        pieces, mel = stream.mel.push(samples, last)
        tokens, state = [], stream.encoder
        for piece in pieces:
            part, state = self.push_piece(piece, state)
            tokens.append(part)
        return self.joined(tokens), SoundStream(mel, state)

    def push_piece(self, piece: MelPiece, state: EncoderState) -> tuple[Array | None, EncoderState]:
        """Tokens of a stream's next mel frames, and what the encoder remembers after them.

        A piece that is too short for a token gives None and is not remembered.

        Raises:
            MediaError: The piece is longer than the table of positions.
        """
        before, after = (-(-count // STRIDE) for count in (piece.before, piece.after))
        untrimmed = (len(piece.frames) + STRIDE - 1) // STRIDE
        if (untrimmed - before - after) < self.config.pool:
            return None, state
        x = self.convolutions(self.backend, self.backend.asarray(piece.frames))
        x = x[before : untrimmed - after]
        # The published rule counts the neighbours of the piece as well.
        if state.num_frames and state.num_frames + untrimmed >= self.config.max_frames:
            state = self._begun_anew(state)
        states, (keys, values) = self.blocks(x, [x.shape[0]], state)
        pieces = _last_pieces((*state.pieces, x), self.carried)
        return self._tokens(states), EncoderState(keys, values, pieces)

    def blocks(
        self, x: Array, chunks: Sequence[int], state: EncoderState
    ) -> tuple[Array, tuple[tuple[Array, ...], tuple[Array, ...]]]:
        """The encoder's blocks over frames of a stream or a clip.

        Args:
            x: Frames as the convolutions give them, (num_frames, hidden_size).
            chunks: How they are divided: a frame sees its own chunk, earlier ones, and `state`.
            state: What came before.

        Returns:
            States in front of the last norm, and keys and values of each layer, those before
            included.

        Raises:
            MediaError: The table of positions ends before the frames do.
        """
        backend, config = self.backend, self.config
        first = state.num_frames
        stop = first + x.shape[0]
        if stop > config.max_frames:
            raise MediaError(
                f"[audio] sound must have at most {config.max_frames} frames, the positions that "
                f"the encoder knows, got {stop}; cut it into shorter clips"
            )
        x = x + self.positions[first:stop]
        keys: list[Array] = []
        values: list[Array] = []

        def attend(q: Array, k: Array, v: Array) -> Array:
            layer = len(keys)
            if first:
                k = backend.concat([state.keys[layer], k])
                v = backend.concat([state.values[layer], v])
            keys.append(k)
            values.append(v)
            seen = []
            for size, end in zip(chunks, accumulate(chunks), strict=True):
                rows, known = q[end - size : end], first + end
                scale = config.head_dim**-0.5
                seen.append(
                    backend.segment_attention(rows, k[:known], v[:known], [size], scale, [known])
                )
            return backend.concat(seen)

        for layer in self.layers:
            x = layer(backend, x, config.num_heads, attend)
        return x, (tuple(keys), tuple(values))

    def joined(self, tokens: Sequence[Array | None]) -> Array | None:
        """Tokens one after the other; None for none."""
        parts = [part for part in tokens if part is not None]
        return self.backend.concat(parts) if parts else None

    def _begun_anew(self, state: EncoderState) -> EncoderState:
        """The carried frames at the front of the table of positions, or nothing."""
        if not state.pieces:
            return EncoderState()
        chunks = [piece.shape[0] for piece in state.pieces]
        _, (keys, values) = self.blocks(self.backend.concat(state.pieces), chunks, EncoderState())
        return EncoderState(keys, values, state.pieces)

    def project(self, states: Array) -> Array:
        """Last norm and projection of the blocks' output, (num_frames, output_size)."""
        inner = self.project_in(self.backend, self.norm(self.backend, states))
        return self.project_out(self.backend, self.backend.relu(inner))

    def _tokens(self, states: Array) -> Array:
        """Means over `pool` projected frames; what is left over is dropped."""
        pool = self.config.pool
        count = states.shape[0] // pool
        projected = self.project(states[: count * pool])
        return projected.reshape((count, pool, self.config.output_size)).mean(axis=1)


def _last_pieces(pieces: tuple[Array, ...], most: int) -> tuple[Array, ...]:
    """The last pieces with `most` frames or fewer in all."""
    total, first = 0, len(pieces)
    while first and total + pieces[first - 1].shape[0] <= most:
        first -= 1
        total += pieces[first].shape[0]
    return pieces[first:]
