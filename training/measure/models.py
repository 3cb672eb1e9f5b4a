"""Models for many sessions over the same stream: what all of them compute is computed once.

Replies are those of the plain model: nothing is approximated, only remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnitide.backend import Backend
from omnitide.backends import load_backend
from omnitide.embedded import default_checkpoint
from omnitide.evaluation.pool import LoadPlan
from omnitide.media.chunk import MediaChunk
from omnitide.model import EncodedUnit, OmniModel
from omnitide.models import load_model
from omnitide.models.hub import resolve


class EncodesOnce:
    """An `OmniModel` whose towers run once for each chunk of the newest stream.

    Chunks and states of streams are told apart as objects, so a stream whose chunks are made anew
    is encoded anew. What was encoded is forgotten when another stream begins.
    """

    def __init__(self, model: OmniModel) -> None:
        self._model = model
        self._first = model.new_stream()
        self._known: dict[tuple[int, int], tuple[EncodedUnit, Any, MediaChunk, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        """All else is the model's."""
        return getattr(self._model, name)

    def new_stream(self) -> Any:
        """The state before the first chunk, the same object each time; it is never changed."""
        return self._first

    def encode_media(self, chunk: MediaChunk, stream: Any) -> tuple[EncodedUnit, Any]:
        """A unit and the state after it, as the model gives them."""
        key = (id(chunk), id(stream))
        if key not in self._known:
            if stream is self._first:
                self._known.clear()
            # Chunk and state are kept beside the result, so that no other object gets their ids.
            self._known[key] = (*self._model.encode_media(chunk, stream), chunk, stream)
        return self._known[key][:2]


@dataclass(frozen=True, slots=True)
class RememberingPlan(LoadPlan):
    """A `LoadPlan` whose models remember."""

    def load(self) -> OmniModel:
        """Load the model.

        Raises:
            OmnitideError: See `omnitide.load`.
        """
        backend: Backend = load_backend(self.backend, self.dtype)
        folder = default_checkpoint() if self.model is None else resolve(self.model)
        name = self.model or "embedded default"
        model = backend.run(load_model, folder, backend, name=name, media=self.options.media)
        return EncodesOnce(model)
