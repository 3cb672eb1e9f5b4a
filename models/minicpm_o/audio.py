"""The audio tower: log-mel frames to tokens of the decoder's width.

Two convolutions halve the frames to 50 a second, learned positions are added, blocks of Whisper's
encoder follow, then a projection, then the mean over `pool` frames. A frame sees its own chunk and
all earlier ones, so a stream can be encoded chunk by chunk (`stream_encoder.py`), and gives what
the clip would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from omnitide.backend import Array, Backend
from omnitide.errors import MediaError
from omnitide.models.layers import LayerNorm, Linear, Weights, dense
from omnitide.models.mel import Mel, Samples
from omnitide.models.minicpm_o.config import AudioConfig
from omnitide.models.minicpm_o.mel import clip_mels
from omnitide.models.whisper import NORM_EPS, STRIDE, Convolutions, WhisperLayer


def num_audio_tokens(num_frames: int, pool: int) -> int:
    """Tokens of so many mel frames that are encoded as a clip: whole means of `pool` alone."""
    return -(-num_frames // STRIDE) // pool


def count_sound(samples: Samples, pool: int) -> int:
    """Tokens that `AudioTower.encode_sound` gives.

    Raises:
        MediaError: Samples are not one row of finite floats.
    """
    return sum(num_audio_tokens(len(mel), pool) for mel in clip_mels(samples))


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Keys and values of each layer, (num_frames, num_heads, head_dim); empty before any frame."""

    keys: tuple[Array, ...] = ()
    values: tuple[Array, ...] = ()

    @property
    def num_frames(self) -> int:
        """Frames that a new one sees beside its own chunk."""
        return int(self.keys[0].shape[0]) if self.keys else 0


class AudioTower:
    """Weights of the encoder and its projection, and how clips go through them."""

    def __init__(self, config: AudioConfig, backend: Backend, weights: Weights) -> None:
        self.config = config
        self.backend = backend
        self.convolutions = Convolutions.read(weights, "apm")
        self.positions = dense(backend, weights["apm.embed_positions.weight"])
        self.layers = [
            WhisperLayer.read(weights, f"apm.layers.{layer}") for layer in range(config.num_layers)
        ]
        self.norm = LayerNorm.read(weights, "apm.layer_norm", NORM_EPS)
        self.project_in = Linear.read(weights, "audio_projection_layer.linear1")
        self.project_out = Linear.read(weights, "audio_projection_layer.linear2")

    def encode_sound(self, samples: Samples) -> Array | None:
        """Tokens of sound that is there as a whole; clips of 30 s are encoded as one batch.

        Args:
            samples: Mono, 16 kHz, float in [-1, 1], (num_samples,).

        Returns:
            Shape (num_tokens, output_size); None for sound too short for a token.

        Raises:
            MediaError: Samples are not one row of finite floats.
        """
        return self.joined(self.encode_batch(clip_mels(samples)))

    def encode_batch(self, mels: Sequence[Mel]) -> list[Array | None]:
        """Tokens of clips that are encoded as one batch, which is how all those of a prompt are.

        Clips do not see each other. But the published code fills the shorter ones up with zeros,
        and takes twice the length of a clip to hide them. So the frames of a clip's last chunk see
        frames of that filling. That is part of what the model was made with, and is done here too.

        Args:
            mels: Log-mel frames of each clip, (num_frames, num_bands).

        Returns:
            For each clip (num_tokens, output_size); None where it is too short for a token.

        Raises:
            MediaError: A clip is longer than the table of positions.
        """
        longest = max((len(mel) for mel in mels), default=0)
        return [
            self.encode(np.pad(mel, ((0, longest - len(mel)), (0, 0))), len(mel)) for mel in mels
        ]

    def encode(self, mel: Mel, length: int | None = None) -> Array | None:
        """Tokens of one clip's log-mel frames.

        Args:
            mel: Shape (num_frames, num_bands).
            length: Frames that are the clip's, the others being filling; see `encode_batch`. None:
                all.

        Returns:
            Shape (num_tokens, output_size); None where it is too short for a token.

        Raises:
            MediaError: The clip is longer than the table of positions.
        """
        size = self.config.chunk_frames
        length = len(mel) if length is None else length
        count = num_audio_tokens(length, self.config.pool)
        if not count:
            return None
        # The published mistake: `length` counts mel frames, of which there are twice as many.
        frames = self.convolve(mel)[:length]
        starts = range(0, frames.shape[0], size)
        chunks = [min(size, frames.shape[0] - start) for start in starts]
        states, _ = self.blocks(frames, chunks, Memory())
        return self.tokens(states)[:count]

    def convolve(self, mel: Mel) -> Array:
        """mel (num_frames, num_bands) -> (ceil(num_frames / 2), hidden_size), without positions."""
        return self.convolutions(self.backend, self.backend.asarray(mel))

    def blocks(self, frames: Array, chunks: Sequence[int], memory: Memory) -> tuple[Array, Memory]:
        """The encoder's blocks.

        Args:
            frames: As `convolve` gives them, (num_frames, hidden_size).
            chunks: Frames of each chunk: a frame sees its own, those before, and `memory`.
            memory: What came before.

        Returns:
            States in front of the last norm, (num_frames, hidden_size), and the memory after them.

        Raises:
            MediaError: The table of positions ends before the frames do.
        """
        backend, config = self.backend, self.config
        past = memory.num_frames
        stop = past + frames.shape[0]
        if stop > config.max_frames:
            raise MediaError(
                f"[audio] sound must have at most {config.max_frames} frames, the positions that "
                f"the encoder knows, got {stop}; cut it into shorter clips"
            )
        x = frames + self.positions[past:stop]
        keys: list[Array] = []
        values: list[Array] = []

        def attend(q: Array, k: Array, v: Array) -> Array:
            """Called by one layer after the other."""
            if past:
                k = backend.concat([memory.keys[len(keys)], k])
                v = backend.concat([memory.values[len(values)], v])
            keys.append(k)
            values.append(v)
            seen = []
            for size, end in zip(chunks, accumulate(chunks), strict=True):
                known, scale = past + end, config.head_dim**-0.5
                seen.append(
                    backend.segment_attention(
                        q[end - size : end], k[:known], v[:known], [size], scale, [known]
                    )
                )
            return backend.concat(seen)

        for layer in self.layers:
            x = layer(backend, x, config.num_heads, attend)
        return x, Memory(tuple(keys), tuple(values))

    def project(self, states: Array) -> Array:
        """Last norm and projection of what `blocks` gave, (num_frames, output_size)."""
        inner = self.project_in(self.backend, self.norm(self.backend, states))
        return self.project_out(self.backend, self.backend.relu(inner))

    def tokens(self, states: Array) -> Array:
        """Means over `pool` projected frames; what is left over is dropped."""
        pool = self.config.pool
        count = states.shape[0] // pool
        projected = self.project(states[: count * pool])
        return projected.reshape((count, pool, self.config.output_size)).mean(axis=1)

    def joined(self, tokens: Sequence[Array | None]) -> Array | None:
        """Tokens one after the other; None for none."""
        parts = [part for part in tokens if part is not None]
        return self.backend.concat(parts) if parts else None
