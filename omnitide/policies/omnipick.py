"""OmniPick: retention by structure alone (paper section 5).

1. The system prefix and the most recent units are kept whole; so is a unit still open.
2. Of older units, oldest first: boundary tokens, the first `image_sink` and `audio_sink` tokens of
   each picture and sound span, a source image whole, and text until its shared budget is spent.
3. Still above the low watermark: whole units go, oldest first, cut ones before complete ones, until
   the target is met or one unit remains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnitide.config import RetentionConfig
from omnitide.history import OF_TEXT, History, UnitRecord
from omnitide.retention import Fate, Fates, Mask, Mass, protected_units
from omnitide.runs import run_lengths, run_starts
from omnitide.units import Cells, Modality, Role, Unit, span_starts

# As plain numbers: on Python 3.11 to look a member up costs as much as to compare a small array.
_TEXT, _BOUNDARY = int(Modality.TEXT), int(Role.BOUNDARY)
_STAYS, _LASTS, _MAY_STAY = int(Fate.STAYS), int(Fate.LASTS), int(Fate.MAY_STAY)

_WHOLE = np.array([role in (Role.BOUNDARY, Role.SOURCE_IMAGE) for role in Role])
"""By `Role`: whether an older unit keeps all of such a span."""

_ALL = 1 << 62
"""More tokens than there are."""

Counts = NDArray[np.int64]


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
        older = (~whole).nonzero()[0]
        if len(older):
            # Only the stretch of older units is looked at; recent ones stay as they are.
            units = slice(int(older[0]), int(older[-1]) + 1)
            begin, end = int(starts[older[0]]), int(starts[older[-1]] + lengths[older[-1]])
            cells = history.cells[begin:end]
            spans = _Spans.of(cells, span_starts(cells))
            inner = whole[units].repeat(lengths[units])[spans.starts]
            stays = np.where(inner, spans.lengths, _of_older(spans, ~inner, config))
            keep[begin:end] = spans.first(stays)
            first_span = spans.starts.searchsorted(starts[units] - begin)
            kept[units] = np.add.reduceat(stays, first_span)
        drop = _dropped_units(records, kept, held, config)
        keep &= ~drop.repeat(lengths)
        return keep

    def survivors(self, cells: Cells, config: RetentionConfig) -> Mask:
        """Boundary tokens, sinks, source images and text (the budget is not foreseen)."""
        spans = _Spans.of(cells, span_starts(cells))
        return spans.first(np.maximum(_sinks(spans, config), spans.words))

    def foresee(self, unit: Unit, history: History, config: RetentionConfig) -> Fates:
        """Like `survivors`, but text stays only if the text units ahead leave it some budget.

        A unit of text that fits the budget will be complete when it is old, and outlasts cut ones.
        """
        spans = _Spans.of(unit.cells, run_starts(unit.cells["span"]))
        left = config.text_budget - history.text_words
        within = _within(left, spans.words)
        of_text = unit.kind in OF_TEXT
        if of_text and (within == spans.words).all():
            return np.full(len(unit), _LASTS, np.uint8)
        fates = spans.first(_sinks(spans, config)).astype(np.uint8)  # as `_STAYS`
        if within.any():
            in_media = _STAYS if history.media_words <= left else _MAY_STAY
            fates[spans.first(within)] = _LASTS if of_text else in_media
        return fates


@dataclass(frozen=True, slots=True)
class _Spans:
    """The spans of a run of cells, oldest first. What stays of one is always its first cells.

    Attributes:
        starts, lengths: Index of its first cell and number of its cells, int64, (num_spans,).
        modality, role: Of its cells, (num_spans,).
        words: Its tokens of text, boundaries apart, int64, (num_spans,).
    """

    starts: Counts
    lengths: Counts
    modality: NDArray[np.uint8]
    role: NDArray[np.uint8]
    words: Counts

    @classmethod
    def of(cls, cells: Cells, starts: Counts) -> _Spans:
        """The spans of cells, which begin at `starts`."""
        lengths = run_lengths(starts, len(cells))
        modality, role = cells["modality"][starts], cells["role"][starts]
        words = lengths * ((modality == _TEXT) & (role != _BOUNDARY))
        return cls(starts, lengths, modality, role, words)

    def first(self, counts: Counts) -> Mask:
        """The first cells of each span, so many, as a mask of shape (num_cells,)."""
        ends = (self.starts + counts).repeat(self.lengths)
        mask: Mask = np.arange(len(ends)) < ends
        return mask


def _of_older(spans: _Spans, older: Mask, config: RetentionConfig) -> Counts:
    """Of each span what stays: sinks and the like, and text, oldest first, within its budget."""
    words = _within(config.text_budget, spans.words * older)
    return np.maximum(_sinks(spans, config), words)


def _within(budget: int, words: Counts) -> Counts:
    """Of each span the words that a budget covers, oldest first."""
    left = min(budget, _ALL) - (words.cumsum() - words)
    return np.minimum(np.maximum(left, 0), words)


def _sinks(spans: _Spans, config: RetentionConfig) -> Counts:
    """Of each span what an older unit keeps beside its text."""
    sinks = np.array([0, min(config.image_sink, _ALL), min(config.audio_sink, _ALL)])
    counts: Counts = np.where(_WHOLE[spans.role], spans.lengths, sinks[spans.modality])
    return np.minimum(counts, spans.lengths)


def _recent(lengths: NDArray[np.int64], held: Mask, config: RetentionConfig) -> Mask:
    """The newest units: a given number, or those that fit the share of the low watermark."""
    candidates = (~held).nonzero()[0]
    if config.recent_units is not None:
        count = config.recent_units
    else:
        tokens = lengths[candidates][::-1].cumsum()
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
        [(droppable & ~complete).nonzero()[0], (droppable & complete).nonzero()[0]]
    )
    going = kept[order]
    before = kept.sum() - (going.cumsum() - going)  # tokens left when a unit's turn comes
    drop = np.zeros(len(kept), np.bool_)
    drop[order[before > config.low_watermark]] = True
    return drop
