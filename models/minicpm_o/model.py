"""MiniCPM-o 4.5 and 2.6 as the sessions see them: media and text to units, units to logits.

A stream is laid out in the user's turn, as the published half-duplex streaming does it: pictures,
then sound between its markers. `DuplexRules` lays it out for a model that speaks when it wants to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array, Backend, Pools
from omnitide.config import FamilyDefaults, MediaOptions
from omnitide.media.chunk import MediaChunk
from omnitide.model import EncodedUnit, ModelSpec
from omnitide.models.checkpoint import Checkpoint, load_tensors
from omnitide.models.minicpm_o.config import MiniCPMConfig
from omnitide.models.minicpm_o.duplex import DuplexRules
from omnitide.models.minicpm_o.encoder import MediaEncoder, StreamState, mel_frames_per_token
from omnitide.models.minicpm_o.mel import MelStream, PlainMelStream
from omnitide.models.minicpm_o.names import arrange
from omnitide.models.minicpm_o.opened import open_minicpm
from omnitide.models.minicpm_o.sizes import (
    largest_media_unit,
    live_slices,
    media_tokens,
    sound_memory,
)
from omnitide.models.minicpm_o.stream_encoder import SoundStream
from omnitide.models.own_defaults import own_defaults
from omnitide.models.template import ChatTemplate
from omnitide.step import Step
from omnitide.units import Cells, Role, Unit, UnitBuilder, UnitKind

DEFAULTS = FamilyDefaults(fps=1.0, chunk_seconds=1.0)


class MiniCPMO:
    """An `OmniModel`: weights and rules, no state of a stream.

    Attributes:
        config: Of the checkpoint.
        media: Frame rate and picture size that units are made for.
        encoder: Of pictures and sound.
        decoder: The language model.
        duplex: None for a checkpoint whose tokenizer can't tell listening from speaking.
    """

    def __init__(
        self,
        config: MiniCPMConfig,
        encoder: MediaEncoder,
        template: ChatTemplate,
        spec: ModelSpec,
        eos_tokens: frozenset[int],
        media: MediaOptions,
        duplex: DuplexRules | None,
        defaults: FamilyDefaults = DEFAULTS,
    ) -> None:
        self.config = config
        self.backend = encoder.backend
        self.spec = spec
        self.defaults = defaults
        self.media = media
        ends = {template.end_of_turn, encoder.layout.markers.speech_end}
        self.eos_tokens = eos_tokens | ends
        self.encoder = encoder
        self.decoder = encoder.decoder
        self.duplex = duplex
        self._template = template
        opens_units = config.version == "2.6"
        self._unit_open = [template.tokenizer.special("<unit>")] if opens_units else []

    def new_stream(self) -> StreamState:
        """The stream before its first chunk, in the user's turn."""
        if self.config.version == "2.6":
            return StreamState(SoundStream(PlainMelStream()))
        return StreamState(SoundStream(MelStream(mel_frames_per_token(self.config), neighbours=0)))

    def encode_system(self, text: str | None) -> EncodedUnit:
        """The system message and the opening of the user's turn."""
        return self._embedded(
            self._template.system(self.defaults.system_prompt if text is None else text)
        )

    def encode_text(self, text: str, time: float | None = None) -> EncodedUnit:
        """Words inside the user's turn."""
        return self._embedded(self._template.words(text, time))

    def encode_prompt(
        self, text: str, time: float | None = None, stream: StreamState | None = None
    ) -> EncodedUnit:
        """A question, the end of the user's turn and the opening of the assistant's.

        To sound, 4.5 replies as it would speak.
        """
        speaks = self.config.version == "4.5" and stream is not None and stream.heard
        opening = [self.encoder.layout.markers.speech] if speaks else []
        return self._embedded(self._template.prompt(text, time, opening))

    def reply_unit(self, tokens: Sequence[int], first: int, time: float | None = None) -> Unit:
        """Cells of reply tokens that follow `first` earlier ones."""
        return self._template.reply(tokens, first, self.eos_tokens, time)

    def closing_unit(self, first: int, before: Cells) -> Unit:
        """Cells that end a reply of `first` tokens and open the user's turn again.

        One that was opened as speech is ended as speech first, unless the model did.
        """
        markers = self.encoder.layout.markers
        opened, last = (int(before["token"][at]) for at in (-1 - first, -1))
        ended = first > 0 and last in self.eos_tokens
        end = [markers.speech_end] if opened == markers.speech and not ended else []
        return self._template.closing(first, ended and last != markers.speech_end, end)

    def encode_media(
        self, chunk: MediaChunk, stream: StreamState
    ) -> tuple[EncodedUnit, StreamState]:
        """Pictures and sound of a chunk inside the user's turn, and the stream after it.

        A still picture is one of a prompt: numbered, and cut into slices. A chunk whose sound
        completes no token, and that has no picture, gives an empty unit.

        Args:
            chunk: Pictures at the frame rate of `self.media`.
            stream: As `new_stream` or the call before gave it.

        Raises:
            MediaError: Pictures or samples of a wrong shape.
        """
        builder = UnitBuilder()
        sounds, stream = self.encoder.sound(chunk, stream)
        if chunk.still:
            number = self._template.tokenizer.encode(str(stream.stills))
            pictures: Array | None = self.encoder.still(builder, chunk.frames[0], number)
            stream = stream.after_still()
        else:
            if chunk.frames or sounds is not None:
                builder.text(self._unit_open, Role.BOUNDARY)
            pictures = self.encoder.pictures(builder, chunk.frames)
        if sounds is not None:
            self.encoder.layout.sound(builder, sounds.shape[0])
        unit = builder.build(UnitKind.MEDIA, chunk.start, chunk.seconds)
        return self.encoder.assemble(unit, pictures, sounds), stream

    def media_tokens(self, frames: int, height: int, width: int, samples: int) -> int:
        """Tokens of a media unit of that many frames, pixels (as decoded) and 16 kHz samples.

        Exact for whole seconds in a row; never too small.
        """
        return media_tokens(self.config, self.media, frames, height, width, samples)

    def largest_media_unit(self, options: MediaOptions) -> int:
        """Tokens that no media unit under these options exceeds, whatever the picture."""
        return largest_media_unit(self.config, options)

    def embed(self, tokens: Sequence[int] | NDArray[np.int32]) -> Array:
        """Embeddings of text tokens, shape (num_tokens, hidden_size)."""
        return self.decoder.embed(tokens)

    def forward(self, embeddings: Array, pools: Pools, step: Step) -> Array:
        """Logits of the last token, shape (vocab_size,). Changes `pools` at the new slots."""
        return self.decoder.forward(embeddings, pools, step)

    def decode_text(self, tokens: Sequence[int]) -> str:
        """Text of reply tokens, special tokens left out."""
        return self._template.tokenizer.decode(tokens)

    def _embedded(self, unit: Unit) -> EncodedUnit:
        return EncodedUnit(unit, self.embed(unit.cells["token"]))


def load(checkpoint: Checkpoint, backend: Backend, name: str, media: MediaOptions) -> MiniCPMO:
    """Build the model of a checkpoint; everything is checked before a weight is read.

    Args:
        checkpoint: Its configuration and headers.
        backend: Where the weights go.
        name: For people to read.
        media: Frame rate and picture size of its units.

    Raises:
        CheckpointError: Configuration, tensors, tokenizer or chat template don't fit.
        ConfigError: The options ask for what the model can't take.
    """
    opened = open_minicpm(checkpoint, name)
    config, template = opened.config, opened.template
    defaults = own_defaults(DEFAULTS, checkpoint.folder)
    live_slices(media, config.slices)
    sound_memory(media, config.audio)
    weights = arrange(load_tensors(backend, opened.tensors), opened.converted)
    encoder = MediaEncoder(config, backend, weights, opened.layout, media)
    tokens = opened.duplex
    rules = None if tokens is None else DuplexRules(tokens, template, encoder)
    return MiniCPMO(config, encoder, template, opened.spec, opened.ends, media, rules, defaults)
