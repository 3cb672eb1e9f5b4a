"""OmniPick: retention by structure alone (paper section 5).

1. The system prefix and the most recent units are kept whole; so is a unit still open.
2. Of older units, oldest first: boundary tokens, the first `image_sink` and `audio_sink` tokens of
   each picture and sound span, a source image whole, and text until its shared budget is spent.
3. Still above the low watermark: whole units go, oldest first, cut ones before complete ones, until
   the target is met or one unit remains.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from omnitide.config import RetentionConfig
from omnitide.history import OF_TEXT, History, UnitRecord
from omnitide.retention import Fate, Fates, Mask, Mass, protected_units
from omnitide.runs import run_lengths
from omnitide.units import Cells, Modality, Role, Unit, span_ranks

# As plain numbers: on Python 3.11 to look a member up costs as much as to compare a small array.
_TEXT, _IMAGE, _AUDIO = int(Modality.TEXT), int(Modality.IMAGE), int(Modality.AUDIO)
_BOUNDARY, _SOURCE_IMAGE = int(Role.BOUNDARY), int(Role.SOURCE_IMAGE)


class OmniPick:
    """Sinks of older units, recent units whole."""

    name = "omnipick"
    bounded = True
    needs_mass = False

    def select(self, history: History, config: RetentionConfig, mass: Mass | None = None) -> Mask:
        """Which cells stay; see the module."""
        starts, records = history.unit_starts(), history.records()
        lengths = run_lengths(starts, len(history))
        held = protected_units(history)
        whole = held | _recent(lengths, held, config)
        keep, kept = np.ones(len(history), np.bool_), lengths.copy()
        older = np.flatnonzero(~whole)
        if len(older):
            # Only the stretch of older units is looked at; recent ones stay as they are.
            units = slice(int(older[0]), int(older[-1]) + 1)
            begin, end = int(starts[older[0]]), int(starts[older[-1]] + lengths[older[-1]])
            inner = np.repeat(whole[units], lengths[units])
            keep[begin:end] = inner | _of_older(history.cells[begin:end], ~inner, config)
            kept[units] = np.add.reduceat(keep[begin:end], starts[units] - begin, dtype=np.int64)
        drop = _dropped_units(records, kept, held, config)
        keep[np.repeat(drop, lengths)] = False
        return keep

    def survivors(self, cells: Cells, config: RetentionConfig) -> Mask:
        """Boundary tokens, sinks, source images and text (the budget is not foreseen)."""
        return _sinks(cells, config) | _is_content_text(cells)

    def foresee(self, unit: Unit, history: History, config: RetentionConfig) -> Fates:
        """Like `survivors`, but text stays only if the text units ahead leave it some budget.

        A unit of text that fits the budget will be complete when it is old, and outlasts cut ones.
        """
        words = _is_content_text(unit.cells)
        left = config.text_budget - history.text_words
        within = words & (np.cumsum(words) <= left)
        fates = _sinks(unit.cells, config).astype(np.uint8)
        if unit.kind not in OF_TEXT:
            fates[within] = Fate.STAYS if history.media_words <= left else Fate.MAY_STAY
        elif (within == words).all():
            fates[:] = Fate.LASTS
        else:
            fates[within] = Fate.LASTS
        return fates


def _is_content_text(cells: Cells) -> Mask:
    mask: Mask = (cells["modality"] == _TEXT) & (cells["role"] != _BOUNDARY)
    return mask


def _of_older(cells: Cells, older: Mask, config: RetentionConfig) -> Mask:
    """What stays of older units: sinks and the like, and text, oldest first, within its budget."""
    text = _is_content_text(cells) & older
    return _sinks(cells, config) | text & (np.cumsum(text) <= config.text_budget)


def _sinks(cells: Cells, config: RetentionConfig) -> Mask:
    """What an older unit keeps beside its text."""
    rank, modality, role = span_ranks(cells), cells["modality"], cells["role"]
    mask: Mask = (
        (role == _BOUNDARY)
        | (role == _SOURCE_IMAGE)
        | ((modality == _IMAGE) & (rank < config.image_sink))
        | ((modality == _AUDIO) & (rank < config.audio_sink))
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
    records: Sequence[UnitRecord], kept: NDArray[np.int64], held: Mask, config: RetentionConfig
) -> Mask:
    """Units that go whole so that the low watermark is met; the newest unit stays."""
    complete = kept == np.array([u.length for u in records])
    droppable = ~held
    droppable[-1] = False
    order = np.concatenate(
        [np.flatnonzero(droppable & ~complete), np.flatnonzero(droppable & complete)]
    )
    before = int(kept.sum()) - np.concatenate([[0], np.cumsum(kept[order])[:-1]])[: len(order)]
    drop = np.zeros(len(kept), np.bool_)
    drop[order[before > config.low_watermark]] = True
    return drop
