"""Pieces of a stream as omnitide lays them out: ids and positions of media and of text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omnitide.models.qwen2_5_omni.config import parse_config
from omnitide.models.qwen2_5_omni.layout import Layout
from omnitide.models.qwen2_5_omni.model import DEFAULTS
from omnitide.models.template import ChatTemplate
from omnitide.positions import lay_out
from omnitide.units import Modality, Unit, UnitBuilder, UnitKind, span_ranks
from training.settings import SOUND_TOKENS, STEPS, Settings
from training.world.unit import SIZE

GRID = (STEPS, SIZE // 14, SIZE // 14)
"""Frame pairs, patch rows and patch columns of a unit."""

_KEPT_TEXTS = 1 << 14


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of tokens that can stand anywhere in a stream.

    Attributes:
        ids: int32, (tokens,).
        positions: int32, (3, tokens), from the counter at which the piece begins.
        extent: By how much the counter moves on.
        ranks: int32, (tokens,), place of a picture or sound token in its span; -1 for text and
            markers.
        modality: uint8, (tokens,), of `omnitide.units.Modality`.
    """

    ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    extent: int
    ranks: NDArray[np.int32]
    modality: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.ids)


class Writer:
    """Lays out what a session would, without a model.

    Attributes:
        system: The system message and the opening of the user's turn.
        media: A unit of picture and sound.
        end: Id of the token that ends a reply.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        """Read tokenizer and chat template of `folder`, which `rows.tokenizer.write` wrote."""
        self._template = ChatTemplate(folder)
        self.end = self._template.end_of_turn
        self.system = _piece(self._template.system(DEFAULTS.system_prompt))
        layout = Layout.of(parse_config(settings.config()))
        seconds_per_step = STEPS / DEFAULTS.fps
        builder = layout.film_with_sound(UnitBuilder(), GRID, seconds_per_step, SOUND_TOKENS)
        self.media = _piece(builder.build(UnitKind.MEDIA))
        self.closing = _piece(self._template.closing(1, stopped=True))
        self.typed = lru_cache(_KEPT_TEXTS)(self._typed)
        self.prompt = lru_cache(_KEPT_TEXTS)(self._prompt)
        self.answer = lru_cache(_KEPT_TEXTS)(self._answer)

    def _typed(self, text: str) -> Piece:
        """Words inside the user's turn."""
        return _piece(self._template.words(text, None))

    def _prompt(self, text: str) -> Piece:
        """A question, the end of the user's turn and the opening of the assistant's."""
        return _piece(self._template.prompt(text, None))

    def _answer(self, text: str) -> Piece:
        """A reply with the token that ends it."""
        tokens = [*self._template.tokenizer.encode(text), self.end]
        return _piece(self._template.reply(tokens, 0, frozenset({self.end}), None))


def _piece(unit: Unit) -> Piece:
    cells = unit.cells
    positions, extent = lay_out(cells)
    text = cells["modality"] == Modality.TEXT
    ranks = np.where(text, -1, span_ranks(cells)).astype(np.int32)
    return Piece(
        np.ascontiguousarray(cells["token"]),
        np.ascontiguousarray(positions.T),
        extent,
        ranks,
        np.ascontiguousarray(cells["modality"]),
    )
