"""The session's ordered record of units and cells.

Invariant: cells are in logical order, and `positions.lay_out` of them gives their positions.

A history is a value. `append` may share its buffer with the history it came from, as a slice does:
only the newest history of a line may be appended to, and an abandoned one is simply forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from omnitide.growing import append_rows
from omnitide.pages import Slots
from omnitide.positions import lay_out
from omnitide.runs import run_lengths, run_starts
from omnitide.units import AXES, CELL, Cells, Modality, Role, Span, Unit, UnitKind, spans_of

OF_TEXT = (UnitKind.TEXT, UnitKind.PROMPT, UnitKind.REPLY)
"""Kinds of units that hold nothing but text."""


def _no_cells() -> Cells:
    return np.empty(0, CELL)


# Looked up once: on Python 3.11 a look-up in an enumeration costs as much as a small array.
_TEXT, _BOUNDARY, _MEDIA = int(Modality.TEXT), int(Role.BOUNDARY), UnitKind.MEDIA


def _words(unit: Unit) -> int:
    modality, role = unit.cells["modality"], unit.cells["role"]
    return int(np.count_nonzero((modality == _TEXT) & (role != _BOUNDARY)))


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """What the history knows of a unit beside its cells.

    Attributes:
        id: Number of the unit in the stream, from 0.
        kind: Which event made it.
        time: Second of the stream at which it starts, if any.
        seconds: Seconds of the stream that it covers.
        length: Tokens that it had when complete; more than its cells once it was cut.
        words: Tokens of text, boundaries apart, that it had when complete.
        open: Whether it still grows (a reply being spoken).
    """

    id: int
    kind: UnitKind
    time: float | None
    seconds: float
    length: int
    words: int = 0
    open: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """Units, oldest first, and their live cells.

    Attributes:
        units: Records of the units that still have cells.
        cells: Live cells in logical order, dtype `CELL`, shape (num_cells,).
        next_position: The position counter after the last cell.
        next_unit: Id of the next unit.
        next_order: Order of the next cell.
        tokens_seen: Tokens ever appended.
        text_words: Words (`UnitRecord.words`) of the units of text, the system prefix apart.
        media_words: Words of the media units.
    """

    units: tuple[UnitRecord, ...] = ()
    cells: Cells = field(default_factory=_no_cells)
    next_position: int = 0
    next_unit: int = 0
    next_order: int = 0
    tokens_seen: int = 0
    text_words: int = 0
    media_words: int = 0
    _buffer: Cells = field(default_factory=_no_cells)
    _starts: NDArray[np.int64] | None = None  # as `unit_starts` gives them, if known

    def __len__(self) -> int:
        return len(self.cells)

    def append(self, unit: Unit, slots: Slots, open: bool = False) -> History:
        """The history with one more unit, whose cells lie in `slots` (shape (len(unit),)).

        Raises:
            ValueError: A unit is open; it would never be closed.
        """
        if self.units and self.units[-1].open:
            raise ValueError(f"[history] unit {self.units[-1].id} is open; close it first")
        record = UnitRecord(
            self.next_unit, unit.kind, unit.time, unit.seconds, len(unit), _words(unit), open
        )
        return self._extended(unit, slots, record, (*self.units, record), self.next_unit + 1)

    def extend(self, unit: Unit, slots: Slots) -> History:
        """The history with the cells of `unit` added to its last unit, which must be open.

        Steps and spans of `unit` must continue those of the open one.
        """
        last = self.open_unit()
        grown = replace(last, length=last.length + len(unit), words=last.words + _words(unit))
        return self._extended(unit, slots, grown, (*self.units[:-1], grown), self.next_unit)

    def close(self) -> History:
        """The history with its open unit closed."""
        return replace(self, units=(*self.units[:-1], replace(self.open_unit(), open=False)))

    def keep(self, mask: NDArray[np.bool_]) -> History:
        """The history of the cells where `mask` is true, laid out anew. Slots stay.

        Only what lies between the first and the last unit that lost a cell is laid out again; what
        follows moves as a whole, which is the same, for `lay_out` adds the counter to offsets.

        Raises:
            ValueError: The mask has another length.
        """
        old, starts, records = self.cells, self.unit_starts(), self.records()
        if len(mask) != len(old):
            raise ValueError(f"[history] a mask of {len(mask)} for {len(old)} cells")
        lengths = run_lengths(starts, len(old))
        kept = np.add.reduceat(mask, starts, dtype=np.int64) if len(starts) else lengths
        changed = (kept != lengths).nonzero()[0]
        units = tuple(compress(records, kept.tolist()))
        if self.units and self.units[-1].open and self.units[-1] not in units[-1:]:
            units += self.units[-1:]
        if len(changed) == 0:
            return replace(self, units=units)
        first, last = int(changed[0]), int(changed[-1])
        begin, end = int(starts[first]), int(starts[last] + lengths[last])

        cells = old.compress(mask)  # ten times faster on records than indexing or assigning
        stop = len(cells) - (len(old) - end)
        position, counter = lay_out(cells[begin:stop], _base(old[begin]))
        cells["position"][begin:stop] = position
        if end < len(old):
            shift = counter - _base(old[end])
            moved = cells["position"][stop:]
            for axis in range(AXES):  # an axis of three is slow to go along
                moved[:, axis] += shift
            counter = self.next_position + shift

        text, media = _words_of(units)
        lengths = kept[kept > 0]
        return replace(
            self,
            units=units,
            cells=cells,
            next_position=counter,
            text_words=text,
            media_words=media,
            _buffer=cells,
            _starts=lengths.cumsum() - lengths,
        )

    def move(self, source: Slots, destination: Slots) -> History:
        """The history after the cells in `source` have moved to `destination`, pairwise."""
        # As plain bytes: record by record, field by field, takes twenty times as long.
        cells = self.cells.view(f"V{CELL.itemsize}").copy().view(CELL)
        if len(source):
            highest = max(int(cells["slot"].max()), int(source.max()))
            place = np.arange(highest + 1, dtype=np.int32)
            place[source] = destination
            cells["slot"] = place[cells["slot"]]
        return replace(self, cells=cells, _buffer=cells)

    def renew_prefix(self, kept: int, unit: Unit, slots: Slots) -> History:
        """The history with another end of its first unit, the system prefix.

        Everything is laid out anew, and counted anew: orders begin at 0.

        Args:
            kept: First cells of the prefix that stay.
            unit: What takes the place of its other cells; steps and spans continue the kept ones.
            slots: Where they lie, shape (len(unit),).
        """
        prefix, length = self.units[0], kept + len(unit)
        cells = np.concatenate([self.cells[:kept], unit.cells, self.cells[self.prefix :]])
        new = cells[kept:length]
        new["unit"], new["slot"] = prefix.id, slots
        cells["order"] = np.arange(len(cells))
        cells["position"], next_position = lay_out(cells)
        record = replace(prefix, length=length, words=_words(Unit(prefix.kind, cells[:length])))
        return replace(
            self,
            units=(record, *self.units[1:]),
            cells=cells,
            next_position=next_position,
            next_order=len(cells),
            tokens_seen=self.tokens_seen + len(unit),
            _buffer=cells,
            _starts=run_starts(cells["unit"]),
        )

    def open_unit(self) -> UnitRecord:
        """The record of the open unit.

        Raises:
            ValueError: No unit is open.
        """
        if not self.units or not self.units[-1].open:
            raise ValueError("[history] no unit is open")
        return self.units[-1]

    @property
    def prefix(self) -> int:
        """Cells of the first unit, the system prefix."""
        starts = self.unit_starts()
        return int(starts[1]) if len(starts) > 1 else len(self)

    def unit_starts(self) -> NDArray[np.int64]:
        """Index of the first cell of each unit that has cells, shape (num_units_with_cells,)."""
        if self._starts is not None:
            return self._starts
        return run_starts(self.cells["unit"])

    def records(self) -> list[UnitRecord]:
        """Records of the units that have cells, in the order of `unit_starts`."""
        if len(self.units) == len(self.unit_starts()):
            return list(self.units)
        known = {u.id: u for u in self.units}
        return [known[i] for i in self.cells["unit"][self.unit_starts()].tolist()]

    def spans(self) -> Iterator[tuple[UnitRecord, tuple[Span, ...]]]:
        """Each unit with its spans as they now stand."""
        starts = np.searchsorted(self.cells["unit"], [u.id for u in self.units], "left")
        stops = np.searchsorted(self.cells["unit"], [u.id for u in self.units], "right")
        for record, start, stop in zip(self.units, starts, stops, strict=True):
            yield record, spans_of(self.cells[start:stop])

    def _extended(
        self,
        unit: Unit,
        slots: Slots,
        record: UnitRecord,
        units: tuple[UnitRecord, ...],
        next_unit: int,
    ) -> History:
        block, count, more = unit.cells, len(self.cells), len(unit)
        buffer = append_rows(self._buffer, count, block)
        new = buffer[count : count + more]
        new["unit"] = record.id
        new["order"] = self.next_order + np.arange(more)
        new["position"], next_position = lay_out(block, self.next_position)
        new["slot"] = slots
        starts = self.unit_starts()
        if more and (count == 0 or self.cells["unit"][-1] != record.id):
            starts = np.concatenate([starts, [count]])
        words = record.words - (self.units[-1].words if next_unit == self.next_unit else 0)
        return replace(
            self,
            units=units,
            cells=buffer[: count + more],
            next_position=next_position,
            next_unit=next_unit,
            next_order=self.next_order + more,
            tokens_seen=self.tokens_seen + more,
            text_words=self.text_words + (words if record.kind in OF_TEXT else 0),
            media_words=self.media_words + (words if record.kind == _MEDIA else 0),
            _buffer=buffer,
            _starts=starts,
        )


def _base(cell: np.void) -> int:
    """The position counter where the step of a cell begins."""
    return int(cell["position"][0]) - int(cell["offset"][0])


def _words_of(units: Iterable[UnitRecord]) -> tuple[int, int]:
    """Words of the units of text and of the media units."""
    text = media = 0
    for unit in units:
        if unit.words and unit.kind == _MEDIA:
            media += unit.words
        elif unit.words and unit.kind in OF_TEXT:
            text += unit.words
    return text, media
