"""What the sessions ask of a model family.

A model holds weights and rules, never the state of a stream: that is the caller's, and is handed
in and back, so that a failed update can be forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from omnitide.backend import Array, Backend, Pools
from omnitide.config import FamilyDefaults, MediaOptions
from omnitide.media.chunk import MediaChunk
from omnitide.rotary import Rotary
from omnitide.sampling import Sampler
from omnitide.step import Step
from omnitide.units import Cells, Unit


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shapes that the cache needs.

    Attributes:
        name: Repository name or folder, for people to read.
        family: Name of the family, e.g. "qwen2_5_omni".
        num_layers, num_heads, num_kv_heads, head_dim: Of the language model.
        vocab_size: Number of logits.
        rotary: Its rotary embedding.
        trained: False for random weights; the command line says so.
    """

    name: str
    family: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rotary: Rotary
    trained: bool = True

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Bytes of K and V of one token in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * itemsize


@dataclass(frozen=True, slots=True)
class EncodedUnit:
    """A unit with the embeddings of its tokens, shape (num_tokens, hidden_size)."""

    unit: Unit
    embeddings: Array


class Duplex(Protocol):
    """What a model can that listens all the time and decides in every unit whether to speak.

    A unit is opened by its media, then the model decides token by token, then it is closed. The
    tokens that it decides on are fed as they are; the session keeps the rules that hold for all.
    """

    listen: int  # decides on silence, and ends what is decided
    unit_full: int  # fed where a unit may decide no further; ends what is decided too
    chunk_ends: frozenset[int]  # all that end what is decided in a unit
    turn_end: int  # ends a turn of the model, not the unit
    instead_of_listen: int  # fed where the model would listen in the middle of its turn
    remembered: int  # chosen tokens that `choose` wants to know, the newest ones
    suffix: int  # tokens of the system prefix behind what is recalled
    recall_marker: int  # tokens before what is recalled

    def new_stream(self) -> Any:
        """State of a duplex stream before its first chunk; see `OmniModel.new_stream`."""
        ...

    def encode_system(self, text: str | None, voice: NDArray[np.float32] | None) -> EncodedUnit:
        """The system prefix of a duplex stream.

        Args:
            text: System message; the family's own if None.
            voice: A clip of the voice to speak with, 16 kHz; None for no voice.
        """
        ...

    def encode_media(self, chunk: MediaChunk, stream: Any) -> tuple[EncodedUnit, Any]:
        """A unit up to where the model decides, and the state of the stream after it.

        A chunk with neither picture nor sound gives a unit without cells.
        """
        ...

    def choose(self, logits: Array, chosen: Sequence[int], sampler: Sampler) -> int:
        """The next token that the model decides on.

        Args:
            logits: After the unit as it stands, shape (vocab_size,).
            chosen: The newest tokens that it chose before, `remembered` at most, oldest first.
            sampler: How to draw.
        """
        ...

    def counts(self, token: int) -> bool:
        """Whether a token that was chosen is among the `chosen` of later choices."""
        ...

    def decided(self, tokens: Sequence[int], after: Cells) -> Unit:
        """Cells of tokens that the model decided on, behind the cells of its unit so far."""
        ...

    def closing(self, after: Cells) -> Unit:
        """Cells that end a unit, behind those it has; none where these end it already."""
        ...

    def worth_recalling(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Of all tokens decided on in a unit those that are words, without the first one."""
        ...

    def recalled(self, tokens: Sequence[int], after: Cells) -> Unit:
        """The end of the system prefix with words of units that were dropped before `suffix`.

        Args:
            tokens: At least one word.
            after: Cells of the prefix so far.
        """
        ...

    def largest_unit(self, options: MediaOptions) -> int:
        """Most tokens of a unit up to where the model decides, whatever the picture."""
        ...


class OmniModel(Protocol):
    """A model family's adapter: from text and media to units, from units to logits."""

    spec: ModelSpec
    backend: Backend
    defaults: FamilyDefaults
    media: MediaOptions  # frame rate and picture size that its units are made for
    eos_tokens: frozenset[int]
    duplex: Duplex | None  # None for a model that speaks only when asked

    def new_stream(self) -> Any:
        """State of a stream before its first chunk (running mel maximum, samples carried over).

        Immutable: `encode_media` returns the next one.
        """
        ...

    def encode_system(self, text: str | None) -> EncodedUnit:
        """The system prefix: the system message and whatever opens the user's turn.

        None takes the family's default message.
        """
        ...

    def encode_media(self, chunk: MediaChunk, stream: Any) -> tuple[EncodedUnit, Any]:
        """One media unit, and the state of the stream after it."""
        ...

    def encode_text(self, text: str, time: float | None = None) -> EncodedUnit:
        """Text inside the user's turn, without a question."""
        ...

    def encode_prompt(
        self, text: str, time: float | None = None, stream: Any = None
    ) -> EncodedUnit:
        """A question, the end of the user's turn and the opening of the assistant's.

        `stream`: its state, for families whose replies open otherwise once sound was heard.
        """
        ...

    def reply_unit(self, tokens: Sequence[int], first: int, time: float | None = None) -> Unit:
        """Cells of reply tokens that follow `first` earlier ones (steps and span continue)."""
        ...

    def closing_unit(self, first: int, stopped: bool) -> Unit:
        """The cells that end a reply of `first` tokens and open the user's turn again.

        `stopped`: whether the reply's last token was already the end-of-turn token.
        """
        ...

    def media_tokens(self, frames: int, height: int, width: int, samples: int) -> int:
        """Tokens of a media unit of that many frames, pixels (as decoded) and 16 kHz samples."""
        ...

    def largest_media_unit(self, options: MediaOptions) -> int:
        """Most tokens that a media unit can have under these options, whatever the picture."""
        ...

    def embed(self, tokens: Sequence[int] | NDArray[np.int32]) -> Array:
        """Embeddings of text tokens, shape (num_tokens, hidden_size)."""
        ...

    def forward(self, embeddings: Array, pools: Pools, step: Step) -> Array:
        """Run the language model, appending K and V. Logits of the last token, (vocab_size,).

        Changes `pools` at `step.query_slots` only, and adds the attention mass of every layer to
        `step.mass` if there is one.
        """
        ...

    def decode_text(self, tokens: Sequence[int]) -> str:
        """Text of reply tokens, special tokens left out."""
        ...
