"""Picture and sound of a chunk: what they become, and where it lies.

Weights and rules, no state of a stream: that is handed in and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from omnitide.backend import Array, Backend
from omnitide.config import MediaOptions
from omnitide.media.chunk import Frame, MediaChunk
from omnitide.model import EncodedUnit
from omnitide.models.assembly import assemble
from omnitide.models.decoder import Decoder
from omnitide.models.layers import Weights
from omnitide.models.minicpm_o.audio import AudioTower
from omnitide.models.minicpm_o.config import MiniCPMConfig
from omnitide.models.minicpm_o.image import Patches, SlicePlan, prepare_picture
from omnitide.models.minicpm_o.layout import Layout
from omnitide.models.minicpm_o.resampler import Resampler
from omnitide.models.minicpm_o.sizes import live_slices, sound_memory
from omnitide.models.minicpm_o.stream_encoder import SoundStream, StreamEncoder
from omnitide.models.minicpm_o.vision import VisionTower
from omnitide.models.whisper import STRIDE
from omnitide.units import Unit, UnitBuilder


@dataclass(frozen=True, slots=True, eq=False)
class StreamState:
    """A stream so far.

    Attributes:
        sound: What waits, and what the audio tower remembers.
        heard: Whether any sound became tokens.
        stills: Pictures of prompts so far, which are numbered.
    """

    sound: SoundStream
    heard: bool = False
    stills: int = 0

    def after_still(self) -> StreamState:
        """The stream after one more picture of a prompt."""
        return replace(self, stills=self.stills + 1)


class MediaEncoder:
    """The towers of a checkpoint, and how chunks go through them.

    Attributes:
        config, layout: Of the checkpoint.
        decoder, vision, resampler, audio: Its parts.
    """

    def __init__(
        self,
        config: MiniCPMConfig,
        backend: Backend,
        weights: Weights,
        layout: Layout,
        media: MediaOptions,
    ) -> None:
        """Read the parts. Call on the backend's thread.

        Raises:
            ConfigError: The options ask for more slices, or more memory of sound, than there is.
        """
        self.config = config
        self.backend = backend
        self.layout = layout
        self.decoder = Decoder(config.text, backend, weights)
        self.vision = VisionTower(config.vision, backend, weights)
        self.resampler = Resampler(config.resampler, backend, weights)
        self.audio = AudioTower(config.audio, backend, weights)
        self._sounds = StreamEncoder(self.audio, sound_memory(media, config.audio))
        self._live_slices = live_slices(media, config.slices)

    def pictures(self, builder: UnitBuilder, frames: Sequence[Frame]) -> Array | None:
        """Add pictures of a stream to a unit, one after the other, and encode them.

        Returns:
            Tokens of them all, (num_tokens, hidden_size); None for no frames.

        Raises:
            MediaError: A frame of a wrong shape.
        """
        parts: list[Patches] = []
        for frame in frames:
            patches, plan = self._prepared(frame, self._live_slices)
            parts += patches
            self.layout.picture(builder, (plan.columns, plan.rows))
        return self._encoded(parts) if parts else None

    def still(self, builder: UnitBuilder, frame: Frame, number: Sequence[int]) -> Array:
        """Add a picture of a prompt to a unit, and encode it.

        Args:
            builder: Changed.
            frame: The picture.
            number: Ids of the digits of its number.
        """
        patches, plan = self._prepared(frame, self.config.slices.max_slices)
        self.layout.still(builder, (plan.columns, plan.rows), tuple(number))
        return self._encoded(patches)

    def sound(self, chunk: MediaChunk, stream: StreamState) -> tuple[Array | None, StreamState]:
        """Tokens of a chunk's sound, and the stream after it.

        Returns:
            Shape (num_tokens, hidden_size), None for none; and the next stream.

        Raises:
            MediaError: Samples of a wrong shape.
        """
        if chunk.samples is None:
            return None, stream
        tokens, sound = self._sounds.push(chunk.samples, stream.sound)
        return tokens, replace(stream, sound=sound, heard=stream.heard or tokens is not None)

    def assemble(
        self, unit: Unit, pictures: Array | None = None, sounds: Array | None = None
    ) -> EncodedUnit:
        """Put the embeddings of picture, sound and text where the unit's cells say."""
        return assemble(self.backend, unit, self.decoder.embed, pictures, sounds)

    def _prepared(self, frame: Frame, most: int) -> tuple[list[Patches], SlicePlan]:
        return prepare_picture(frame, most, self.config.slices.scale)

    def _encoded(self, pictures: Sequence[Patches]) -> Array:
        return self.resampler.encode(self.vision.encode(pictures), pictures)


def mel_frames_per_token(config: MiniCPMConfig) -> int:
    """Mel frames that become one token of sound."""
    return STRIDE * config.audio.pool
