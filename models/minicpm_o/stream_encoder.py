"""A stream's sound to tokens, piece by piece, with a bounded memory.

The encoder's positions run on from piece to piece, and the table of learned ones ends after 30 s.
`carried` says what happens then:

- 0, the published reset: keys and values are forgotten, and positions begin again at 0.
- More, the window: the last so many frames are encoded anew from position 0, and what follows sees
  them. So no moment is heard without what was before it, and no position is used that the encoder
  was not trained on.

Either way the memory holds less than `max_frames` frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from omnitide.backend import Array
from omnitide.errors import ConfigError
from omnitide.models.mel import HOP, Samples
from omnitide.models.minicpm_o.audio import AudioTower, Memory
from omnitide.models.minicpm_o.mel import MelPiece, MelStream, PlainMelStream
from omnitide.models.whisper import STRIDE

CARRIED = 500
"""Frames that are carried over, 10 s, unless told else."""


def most_stream_tokens(num_samples: int, pool: int) -> int:
    """Tokens that a push of so many samples gives at most; exact for whole seconds in a row."""
    return -(-num_samples // (STRIDE * pool * HOP))


@dataclass(frozen=True, slots=True, eq=False)
class SoundStream:
    """A stream's sound so far; nothing that it holds is ever written to.

    Attributes:
        mel: What waits for the transform.
        memory: What the encoder remembers.
        pieces: The last pieces as the convolutions gave them, oldest first; as many whole ones as
            may be carried over.
    """

    mel: MelStream | PlainMelStream
    memory: Memory = field(default_factory=Memory)
    pieces: tuple[Array, ...] = ()


class StreamEncoder:
    """How streams go through an audio tower; it holds no state of theirs."""

    def __init__(self, tower: AudioTower, carried: int = CARRIED) -> None:
        """Check what is to be carried.

        Args:
            tower: The weights.
            carried: Frames behind the convolutions, 50 a second; see above.

        Raises:
            ConfigError: `carried` is below 0, or leaves no room for two chunks.
        """
        most = max(tower.config.max_frames - 2 * tower.config.chunk_frames, 0)
        if not 0 <= carried <= most:
            raise ConfigError(
                f"[audio] carried must be 0 to {most} frames, the table of positions without two "
                f"chunks, got {carried}"
            )
        self.tower = tower
        self.carried = carried

    def push(
        self, samples: Samples, stream: SoundStream, last: bool = False
    ) -> tuple[Array | None, SoundStream]:
        """Tokens of a stream's next samples, and the stream after them. Changes nothing.

        Args:
            samples: Mono, 16 kHz, float in [-1, 1], (num_samples,); any number, also none.
            stream: A new one, or as the push before gave it.
            last: Nothing follows; see `MelStream.push`.

        Returns:
            Shape (num_tokens, output_size), None where the samples complete no token; and the next
            stream.

        Raises:
            MediaError: Samples are not one row of finite floats.
        """
        pieces, mel = stream.mel.push(samples, last)
        stream = SoundStream(mel, stream.memory, stream.pieces)
        tokens = []
        for piece in pieces:
            part, stream = self.push_piece(piece, stream)
            tokens.append(part)
        return self.tower.joined(tokens), stream

    def push_piece(self, piece: MelPiece, stream: SoundStream) -> tuple[Array | None, SoundStream]:
        """Tokens of a stream's next mel frames, and the stream after them. Changes nothing.

        A piece that is too short for a token gives None and is not remembered.

        Raises:
            MediaError: The piece is longer than the table of positions.
        """
        tower = self.tower
        before, after = piece.before // STRIDE, piece.after // STRIDE
        untrimmed = -(-len(piece.frames) // STRIDE)
        if untrimmed - before - after < tower.config.pool:
            return None, stream
        frames = tower.convolve(piece.frames)[before : untrimmed - after]
        memory, pieces = stream.memory, stream.pieces
        # The published rule counts the neighbours of the piece as well.
        if memory.num_frames and memory.num_frames + untrimmed >= tower.config.max_frames:
            memory = self._begun_anew(pieces)
        states, memory = tower.blocks(frames, [frames.shape[0]], memory)
        pieces = _last_of((*pieces, frames), self.carried)
        return tower.tokens(states), SoundStream(stream.mel, memory, pieces)

    def _begun_anew(self, pieces: tuple[Array, ...]) -> Memory:
        """The memory of these pieces alone."""
        if not pieces:
            return Memory()
        chunks = [piece.shape[0] for piece in pieces]
        return self.tower.blocks(self.tower.backend.concat(pieces), chunks, Memory())[1]


def _last_of(pieces: tuple[Array, ...], most: int) -> tuple[Array, ...]:
    """The last pieces that have `most` frames or fewer in all."""
    total, first = 0, len(pieces)
    while first and total + pieces[first - 1].shape[0] <= most:
        first -= 1
        total += pieces[first].shape[0]
    return pieces[first:]
