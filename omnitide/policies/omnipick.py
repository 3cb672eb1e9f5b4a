"""OmniPick: retention by structure alone (paper section 5, design section 4).

1. The system prefix and the most recent units are kept whole; so is a unit still open.
2. Of older units, oldest first: boundary tokens, the first `image_sink` and `audio_sink` tokens of
   each picture and sound span, a source image whole, and text until its shared budget is spent.
3. Still above the low watermark: whole units go, oldest first, cut ones before complete ones, until
   the target is met or one unit remains.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnitide.config import RetentionConfig
from omnitide.history import History
from omnitide.retention import Fate, Fates, Mask, protected
from omnitide.units import Cells, Modality, Role, Unit, UnitKind, span_ranks

_OF_TEXT = (UnitKind.TEXT, UnitKind.PROMPT, UnitKind.REPLY)


class OmniPick:
    """Sinks of older units, recent units whole."""

    name = "omnipick"
    bounded = True

    def select(self, history: History, config: RetentionConfig) -> Mask:
        """Which cells stay; see the module."""
        cells = history.cells
        starts = history.unit_starts()
        lengths = np.diff(np.append(starts, len(history)))
        held = protected(history)[starts]

        whole = held | _recent(lengths, held, config)
        is_text = _is_content_text(cells)
        old_text = is_text & ~np.repeat(whole, lengths)
        keep = np.repeat(whole, lengths) | _sinks(cells, config)
        keep |= old_text & (np.cumsum(old_text) <= config.text_budget)

        kept = np.add.reduceat(keep, starts, dtype=np.int64)
        drop = _dropped_units(history, starts, kept, held, config)
        return keep & ~np.repeat(drop, lengths)

    def survivors(self, cells: Cells, config: RetentionConfig) -> Mask:
        """Boundary tokens, sinks, source images and text (the budget is not foreseen)."""
        return _sinks(cells, config) | _is_content_text(cells)

    def foresee(self, unit: Unit, history: History, config: RetentionConfig) -> Fates:
        """Like `survivors`, but text stays only if the text units ahead leave it some budget.

        A unit of text that fits the budget will be complete when it is old, and outlasts cut ones.
        """
        words = _is_content_text(unit.cells)
        left = config.text_budget - sum(u.words for u in history.units if u.kind in _OF_TEXT)
        within = words & (np.cumsum(words) <= left)
        fates = _sinks(unit.cells, config).astype(np.uint8)
        if unit.kind not in _OF_TEXT:
            spoken = sum(u.words for u in history.units if u.kind == UnitKind.MEDIA)
            fates[within] = Fate.STAYS if spoken <= left else Fate.MAY_STAY
        elif (within == words).all():
            fates[:] = Fate.LASTS
        else:
            fates[within] = Fate.LASTS
        return fates


def _is_content_text(cells: Cells) -> Mask:
    mask: Mask = (cells["modality"] == Modality.TEXT) & (cells["role"] != Role.BOUNDARY)
    return mask


def _sinks(cells: Cells, config: RetentionConfig) -> Mask:
    """What an older unit keeps beside its text."""
    rank, modality, role = span_ranks(cells), cells["modality"], cells["role"]
    mask: Mask = (
        (role == Role.BOUNDARY)
        | (role == Role.SOURCE_IMAGE)
        | ((modality == Modality.IMAGE) & (rank < config.image_sink))
        | ((modality == Modality.AUDIO) & (rank < config.audio_sink))
    )
    return mask


def _recent(lengths: NDArray[np.int64], held: Mask, config: RetentionConfig) -> Mask:
    """The newest units: a given number, or those that fit the share of the low watermark."""
    candidates = np.flatnonzero(~held)
    if config.recent_units is not None:
        count = config.recent_units
    else:
        tokens = np.cumsum(lengths[candidates][::-1])
        count = int(np.count_nonzero(tokens <= config.recent_share * config.low_watermark))
    recent = np.zeros(len(lengths), np.bool_)
    recent[candidates[-max(count, 1) :]] = True
    return recent


def _dropped_units(
    history: History,
    starts: NDArray[np.int64],
    kept: NDArray[np.int64],
    held: Mask,
    config: RetentionConfig,
) -> Mask:
    """Units that go whole so that the low watermark is met; the newest unit stays."""
    full_length = {u.id: u.length for u in history.units}
    ids = history.cells["unit"][starts].tolist()
    complete = kept == np.array([full_length[i] for i in ids])
    droppable = ~held
    droppable[-1] = False
    order = np.concatenate(
        [np.flatnonzero(droppable & ~complete), np.flatnonzero(droppable & complete)]
    )
    before = int(kept.sum()) - np.concatenate([[0], np.cumsum(kept[order])[:-1]])[: len(order)]
    drop = np.zeros(len(kept), np.bool_)
    drop[order[before > config.low_watermark]] = True
    return drop
