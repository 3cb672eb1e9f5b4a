"""The Qwen2.5-Omni thinker as the sessions see it: media and text to units, units to logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array, Backend, Pools
from omnitide.config import FamilyDefaults, MediaOptions
from omnitide.media.chunk import Frame, MediaChunk
from omnitide.model import EncodedUnit, ModelSpec
from omnitide.models.assembly import assemble
from omnitide.models.checkpoint import Checkpoint, load_tensors
from omnitide.models.decoder import Decoder
from omnitide.models.layers import Weights
from omnitide.models.own_defaults import own_defaults
from omnitide.models.qwen2_5_omni.audio import AudioTower, num_audio_tokens
from omnitide.models.qwen2_5_omni.config import ThinkerConfig
from omnitide.models.qwen2_5_omni.image import TEMPORAL_PATCH, Grid, prepare_frames
from omnitide.models.qwen2_5_omni.layout import Layout
from omnitide.models.qwen2_5_omni.mel import MelStream
from omnitide.models.qwen2_5_omni.opened import open_thinker
from omnitide.models.qwen2_5_omni.sizes import largest_media_unit, media_tokens
from omnitide.models.qwen2_5_omni.vision import VisionTower
from omnitide.models.template import ChatTemplate
from omnitide.step import Step
from omnitide.units import Cells, Unit, UnitBuilder, UnitKind

DEFAULTS = FamilyDefaults()


class QwenOmni:
    """An `OmniModel`: weights and rules, no state of a stream.

    Attributes:
        config: Of the thinker.
        media: Frame rate and picture size that units are made for.
        layout: Position rules.
        decoder, vision, audio: The language model and the towers.
    """

    def __init__(
        self,
        config: ThinkerConfig,
        backend: Backend,
        weights: Weights,
        template: ChatTemplate,
        spec: ModelSpec,
        eos_tokens: frozenset[int],
        media: MediaOptions,
        defaults: FamilyDefaults = DEFAULTS,
    ) -> None:
        self.config = config
        self.backend = backend
        self.spec = spec
        self.defaults = defaults
        self.media = media
        self.eos_tokens = eos_tokens | {template.end_of_turn}
        self.duplex = None
        self.layout = Layout.of(config)
        self.decoder = Decoder(config.text, backend, weights)
        self.vision = VisionTower(config.vision, backend, weights)
        self.audio = AudioTower(config.audio, backend, weights)
        self._template = template

    def new_stream(self) -> MelStream:
        """The sound before the first chunk."""
        return MelStream()

    def encode_system(self, text: str | None) -> EncodedUnit:
        """The system message and the opening of the user's turn."""
        return self._embedded(
            self._template.system(self.defaults.system_prompt if text is None else text)
        )

    def encode_text(self, text: str, time: float | None = None) -> EncodedUnit:
        """Words inside the user's turn."""
        return self._embedded(self._template.words(text, time))

    def encode_prompt(
        self, text: str, time: float | None = None, stream: MelStream | None = None
    ) -> EncodedUnit:
        """A question, the end of the user's turn and the opening of the assistant's."""
        return self._embedded(self._template.prompt(text, time))

    def reply_unit(self, tokens: Sequence[int], first: int, time: float | None = None) -> Unit:
        """Cells of reply tokens that follow `first` earlier ones."""
        return self._template.reply(tokens, first, self.eos_tokens, time)

    def closing_unit(self, first: int, before: Cells) -> Unit:
        """Cells that end a reply of `first` tokens and open the user's turn again."""
        stopped = first > 0 and int(before["token"][-1]) in self.eos_tokens
        return self._template.closing(first, stopped)

    def encode_media(self, chunk: MediaChunk, stream: MelStream) -> tuple[EncodedUnit, MelStream]:
        """One vision span with the chunk's sound inside it, and the stream after the chunk.

        Sound of fewer than three mel frames gives no token; a chunk with neither picture nor
        sound gives an empty unit.

        Args:
            chunk: At most a few seconds; pictures at the frame rate of `self.media`.
            stream: As `new_stream` or the call before gave it.

        Raises:
            MediaError: Pictures or samples of a wrong shape.
        """
        builder = UnitBuilder()
        sounds, num_sounds = None, 0
        if chunk.samples is not None:
            mel, stream = stream.push(chunk.samples)
            num_sounds = num_audio_tokens(len(mel))
            sounds = self.audio.encode(mel) if num_sounds else None
        seconds_per_step = TEMPORAL_PATCH / self.media.fps
        pictures = None
        if chunk.frames:
            pictures, grid = self._encode_pictures(chunk.frames)
            if chunk.still:
                self.layout.still(builder, grid)
            elif num_sounds:
                self.layout.film_with_sound(builder, grid, seconds_per_step, num_sounds)
            else:
                self.layout.film(builder, grid, seconds_per_step)
        if num_sounds and (chunk.still or not chunk.frames):
            self.layout.sound(builder, num_sounds)
        unit = builder.build(UnitKind.MEDIA, chunk.start, chunk.seconds)
        return self.assemble(unit, pictures, sounds), stream

    def media_tokens(self, frames: int, height: int, width: int, samples: int) -> int:
        """Tokens of a media unit of that many frames, pixels (as decoded) and 16 kHz samples.

        Exact for a chunk that starts on the grid of mel frames (a multiple of 160 samples into
        the stream); never too small.
        """
        return media_tokens(
            self.layout,
            frames,
            height,
            width,
            samples,
            min_pixels=self.defaults.min_pixels,
            max_pixels=self.media.max_pixels,
        )

    def largest_media_unit(self, options: MediaOptions) -> int:
        """Tokens that no media unit under these options exceeds, whatever the picture."""
        return largest_media_unit(options, self.defaults.min_pixels)

    def assemble(
        self, unit: Unit, pictures: Array | None = None, sounds: Array | None = None
    ) -> EncodedUnit:
        """Put the embeddings of picture, sound and text where the unit's cells say."""
        return assemble(self.backend, unit, self.embed, pictures, sounds)

    def embed(self, tokens: Sequence[int] | NDArray[np.int32]) -> Array:
        """Embeddings of text tokens, shape (num_tokens, hidden_size)."""
        return self.decoder.embed(tokens)

    def forward(self, embeddings: Array, pools: Pools, step: Step) -> Array:
        """Logits of the last token, shape (vocab_size,). Changes `pools` at the new slots."""
        return self.decoder.forward(embeddings, pools, step)

    def decode_text(self, tokens: Sequence[int]) -> str:
        """Text of reply tokens, special tokens left out."""
        return self._template.tokenizer.decode(tokens)

    def _encode_pictures(self, frames: Sequence[Frame]) -> tuple[Array, Grid]:
        patches, grid = prepare_frames(
            frames,
            min_pixels=min(self.defaults.min_pixels, self.media.max_pixels),
            max_pixels=self.media.max_pixels,
        )
        return self.vision.encode(patches, grid), grid

    def _embedded(self, unit: Unit) -> EncodedUnit:
        return EncodedUnit(unit, self.embed(unit.cells["token"]))


def load(checkpoint: Checkpoint, backend: Backend, name: str, media: MediaOptions) -> QwenOmni:
    """Build the model of a checkpoint; everything is checked before a weight is read.

    Args:
        checkpoint: Its configuration and headers.
        backend: Where the weights go.
        name: For people to read.
        media: Frame rate and picture size of its units.

    Raises:
        CheckpointError: Configuration, tensors, tokenizer or chat template don't fit.
    """
    opened = open_thinker(checkpoint, name)
    defaults = own_defaults(DEFAULTS, checkpoint.folder)
    weights = load_tensors(backend, opened.tensors)
    return QwenOmni(
        opened.config, backend, weights, opened.template, opened.spec, opened.ends, media, defaults
    )
