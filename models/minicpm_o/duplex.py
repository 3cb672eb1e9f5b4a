"""Listening and speaking at the same time, by the published rules.

    system  <|im_start|>system\\n ... \\n<|audio_start|> voice <|audio_end|><|im_end|>
    unit    <unit> pictures, sound | decision </unit>

The decision is <|listen|>, or words up to <|chunk_eos|> or <|chunk_tts_eos|>.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array
from omnitide.config import MediaOptions
from omnitide.errors import CheckpointError, MediaError
from omnitide.media.chunk import MediaChunk
from omnitide.model import EncodedUnit
from omnitide.models.headers import read_json
from omnitide.models.minicpm_o.config import MiniCPMConfig
from omnitide.models.minicpm_o.encoder import MediaEncoder, StreamState, mel_frames_per_token
from omnitide.models.minicpm_o.layout import Layout
from omnitide.models.minicpm_o.markers import DuplexMarkers
from omnitide.models.minicpm_o.mel import MelStream
from omnitide.models.minicpm_o.sizes import largest_live_unit
from omnitide.models.minicpm_o.stream_encoder import SoundStream
from omnitide.models.template import ChatTemplate
from omnitide.models.tokenizer import TextTokenizer
from omnitide.sampling import Sampler
from omnitide.units import Cells, Modality, Role, Unit, UnitBuilder, UnitKind

SYSTEM_PROMPT = "Streaming Omni Conversation."

RECALL_MARKER = "\n\nprevious: "
"""Before the words of units that were dropped."""

REPETITION = 1.05
"""Divisor of the logits of tokens chosen lately, whatever their sign."""

LENGTH = 1.1
"""Factor against the end of a turn: it divides a positive logit and multiplies a negative one."""


@dataclass(frozen=True, slots=True)
class DuplexTokens:
    """What a tokenizer knows of listening and speaking.

    Attributes:
        markers: Ids of the tokens for it.
        bad: Ids that are never chosen.
        special: Ids that are no words.
    """

    markers: DuplexMarkers
    bad: tuple[int, ...] = ()
    special: frozenset[int] = frozenset()

    @classmethod
    def read(cls, folder: Path, tokenizer: TextTokenizer, vocab_size: int) -> DuplexTokens | None:
        """Those of a checkpoint; None if it has no tokens for it, as 2.6.

        Raises:
            CheckpointError: It has some of them only, lists bad tokens that don't exist, or has
                something else than a list.
        """
        markers = DuplexMarkers.of(tokenizer)
        if markers is None:
            return None
        settings = read_json(folder / "tokenizer_config.json", missing={})
        bad = settings.get("bad_token_ids", [])
        if not isinstance(bad, list) or any(
            type(i) is not int or not 0 <= i < vocab_size for i in bad
        ):
            raise CheckpointError(
                "[checkpoint] bad_token_ids in tokenizer_config.json must be a list of ids below "
                f"{vocab_size}; download it again"
            )
        return cls(markers, tuple(bad), _special_ids(settings, tokenizer))


def system_unit(template: ChatTemplate, layout: Layout, text: str | None, num_sounds: int) -> Unit:
    """The system prefix of a duplex stream.

    Args:
        template, layout: Of the checkpoint.
        text: System message; the published one if None.
        num_sounds: Tokens of the voice to speak with.
    """
    builder = UnitBuilder().text(template.system_open, Role.BOUNDARY)
    # With its line break, for the last word may make one token with it.
    builder.text(template.tokenizer.encode(f"{SYSTEM_PROMPT if text is None else text}\n"))
    builder.text([layout.markers.audio], Role.BOUNDARY)
    if num_sounds:
        layout.bare_sound(builder, num_sounds)
    builder.text(_system_close(template, layout), Role.BOUNDARY)
    return builder.build(UnitKind.SYSTEM)


def recall_marker(template: ChatTemplate) -> list[int]:
    """Ids before the words of units that were dropped."""
    return template.tokenizer.encode(RECALL_MARKER)


def largest_duplex_unit(config: MiniCPMConfig, options: MediaOptions) -> int:
    """Most tokens of a unit up to where the model decides."""
    return 1 + largest_live_unit(config, options)


def _system_close(template: ChatTemplate, layout: Layout) -> list[int]:
    return [layout.markers.audio_end, template.end_of_turn]


class DuplexRules:
    """An `omnitide.model.Duplex`: layout and decisions of a checkpoint that can."""

    remembered = 512

    def __init__(self, tokens: DuplexTokens, template: ChatTemplate, encoder: MediaEncoder) -> None:
        """Collect the ids.

        Args:
            tokens, template: Of the checkpoint.
            encoder: Of its media.
        """
        markers, speech = tokens.markers, encoder.layout.markers.speech
        self.markers = markers
        self.listen = markers.listen
        self.unit_full = markers.chunk_end
        self.chunk_ends = frozenset({markers.listen, markers.chunk_end, markers.chunk_speech_end})
        self.turn_end = markers.turn_end
        self.instead_of_listen = speech
        self._forbidden = np.array([markers.padding, *tokens.bad, markers.chunk_end], np.int64)
        self._control = self.chunk_ends | {
            markers.turn_end,
            markers.speak,
            markers.unit_end,
            speech,
        }
        self._special = tokens.special
        self._system_close = _system_close(template, encoder.layout)
        self._recall_marker = recall_marker(template)
        self.suffix = len(self._system_close)
        self.recall_marker = len(self._recall_marker)
        self._template = template
        self._encoder = encoder

    def new_stream(self) -> StreamState:
        """The stream before its first chunk; its sound has neighbours for the convolutions."""
        return StreamState(SoundStream(MelStream(mel_frames_per_token(self._encoder.config))))

    def encode_system(self, text: str | None, voice: NDArray[np.float32] | None) -> EncodedUnit:
        """The system prefix: the message, and the voice to speak with.

        Raises:
            MediaError: The clip of the voice is too short for a token, or no row of finite floats.
        """
        sounds = None if voice is None else self._encoder.audio.encode_sound(voice)
        if voice is not None and sounds is None:
            raise MediaError(
                "[voice] a clip must be long enough for a token of sound, got "
                f"{len(voice)} samples of 16 kHz; record a few seconds"
            )
        count = 0 if sounds is None else sounds.shape[0]
        unit = system_unit(self._template, self._encoder.layout, text, count)
        return self._encoder.assemble(unit, None, sounds)

    def encode_media(
        self, chunk: MediaChunk, stream: StreamState
    ) -> tuple[EncodedUnit, StreamState]:
        """A unit up to where the model decides. Without picture and sound it has no cells.

        Raises:
            MediaError: Pictures or samples of a wrong shape.
        """
        builder = UnitBuilder().text([self.markers.unit], Role.BOUNDARY)
        pictures = self._encoder.pictures(builder, chunk.frames)
        sounds, stream = self._encoder.sound(chunk, stream)
        if sounds is not None:
            self._encoder.layout.bare_sound(builder, sounds.shape[0])
        if pictures is None and sounds is None:
            builder = UnitBuilder()
        unit = builder.build(UnitKind.MEDIA, chunk.start, chunk.seconds)
        return self._encoder.assemble(unit, pictures, sounds), stream

    def choose(self, logits: Array, chosen: Sequence[int], sampler: Sampler) -> int:
        """The next token by the published rule.

        The end of a chunk is taken where the logits as they are give it. Otherwise it is forbidden,
        as are padding and bad tokens; what was chosen lately and the end of a turn are made less
        likely; and of that a token is drawn.
        """
        raw = self._encoder.backend.to_numpy(logits).astype(np.float32)
        if sampler.as_it_is(raw) == self.markers.chunk_end:
            return self.markers.chunk_end
        ruled = raw.copy()
        ruled[self._forbidden] = -np.inf
        # A negative logit is raised by this: so it is published, and so the model is used.
        ruled[np.unique(np.array(chosen, np.int64))] /= np.float32(REPETITION)
        end = self.markers.turn_end
        ruled[end] = ruled[end] / LENGTH if ruled[end] > 0 else ruled[end] * LENGTH
        return sampler.of_logits(ruled)

    def counts(self, token: int) -> bool:
        """Whether a chosen token is among those that are made less likely afterwards."""
        return token != self.markers.chunk_end

    def decided(self, tokens: Sequence[int], after: Cells) -> Unit:
        """Cells of tokens that were decided on; control tokens are boundaries."""
        return self._more(tokens, after)

    def closing(self, after: Cells) -> Unit:
        """The end of a unit; no cells where it has ended."""
        if after["token"][-1] == self.markers.unit_end:
            return UnitBuilder().build(UnitKind.MEDIA)
        return self._more([self.markers.unit_end], after)

    def worth_recalling(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Words among the tokens of a unit. Its first token never is one, as published."""
        return tuple(t for t in tokens[1:] if t not in self._control and t not in self._special)

    def recalled(self, tokens: Sequence[int], after: Cells) -> Unit:
        """The end of the system prefix, with words before what ends it always."""
        last = after[-1]
        builder = UnitBuilder(int(last["step"]) + 1, int(last["span"]) + 1)
        builder.text(self._recall_marker, Role.BOUNDARY).text(tokens)
        return builder.text(self._system_close, Role.BOUNDARY).build(UnitKind.SYSTEM)

    def largest_unit(self, options: MediaOptions) -> int:
        """Most tokens of a unit up to where the model decides."""
        return largest_duplex_unit(self._encoder.config, options)

    def _more(self, tokens: Sequence[int], after: Cells) -> Unit:
        """Cells of text behind those of a unit, whose steps and spans they continue."""
        last = after[-1]
        runs = [(role, list(run)) for role, run in groupby(tokens, self._role)]
        goes_on = last["modality"] == Modality.TEXT and last["role"] == runs[0][0]
        builder = UnitBuilder(int(last["step"]) + 1, int(last["span"]) + (not goes_on))
        for role, run in runs:
            builder.text(run, role)
        return builder.build(UnitKind.MEDIA)

    def _role(self, token: int) -> Role:
        return Role.BOUNDARY if token in self._control else Role.CONTENT


def _special_ids(settings: Mapping[str, Any], tokenizer: TextTokenizer) -> frozenset[int]:
    """Ids that tokenizer_config.json calls special, which are fewer than all added ones.

    Raises:
        CheckpointError: It doesn't list them.
    """
    single = [settings.get(f"{name}_token") for name in ("bos", "eos", "pad", "unk")]
    listed = settings.get("additional_special_tokens") or []
    if not isinstance(listed, list):
        raise CheckpointError(
            "[checkpoint] additional_special_tokens in tokenizer_config.json must be a list, got "
            f"{listed!r}; download it again"
        )
    names = [t.get("content") if isinstance(t, dict) else t for t in (*single, *listed)]
    found = {name for name in names if isinstance(name, str) and tokenizer.has_special(name)}
    return frozenset(map(tokenizer.special, found))
