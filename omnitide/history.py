"""The session's ordered record of units and cells.

Invariant: cells are in logical order, and `positions.lay_out` of them gives their positions.

A history is a value. `append` may share its buffer with the history it came from, as a slice does:
only the newest history of a line may be appended to, and an abandoned one is simply forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from omnitide.growing import append_rows
from omnitide.pages import Slots
from omnitide.positions import lay_out
from omnitide.units import CELL, Cells, Modality, Role, Span, Unit, UnitKind, spans_of


def _no_cells() -> Cells:
    return np.empty(0, CELL)


def _words(unit: Unit) -> int:
    modality, role = unit.cells["modality"], unit.cells["role"]
    return int(np.count_nonzero((modality == Modality.TEXT) & (role != Role.BOUNDARY)))


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
    """

    units: tuple[UnitRecord, ...] = ()
    cells: Cells = field(default_factory=_no_cells)
    next_position: int = 0
    next_unit: int = 0
    next_order: int = 0
    tokens_seen: int = 0
    _buffer: Cells = field(default_factory=_no_cells)

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
        more = self._extended(unit.cells, slots, record.id)
        return replace(more, units=(*self.units, record), next_unit=self.next_unit + 1)

    def extend(self, unit: Unit, slots: Slots) -> History:
        """The history with the cells of `unit` added to its last unit, which must be open.

        Steps and spans of `unit` must continue those of the open one.
        """
        last = self.open_unit()
        more = self._extended(unit.cells, slots, last.id)
        grown = replace(
            last, length=last.length + len(unit), words=last.words + _words(unit)
        )
        return replace(more, units=(*self.units[:-1], grown))

    def close(self) -> History:
        """The history with its open unit closed."""
        return replace(self, units=(*self.units[:-1], replace(self.open_unit(), open=False)))

    def keep(self, mask: NDArray[np.bool_]) -> History:
        """The history of the cells where `mask` is true, laid out anew. Slots stay.

        Raises:
            ValueError: The mask has another length.
        """
        if len(mask) != len(self.cells):
            raise ValueError(f"[history] a mask of {len(mask)} for {len(self.cells)} cells")
        cells = self.cells.compress(mask)  # ten times faster on records than indexing
        cells["position"], next_position = lay_out(cells)
        left = set(np.unique(cells["unit"]).tolist())
        units = tuple(u for u in self.units if u.id in left or u.open)
        return replace(self, units=units, cells=cells, next_position=next_position, _buffer=cells)

    def move(self, source: Slots, destination: Slots) -> History:
        """The history after the cells in `source` have moved to `destination`, pairwise."""
        cells = self.cells.copy()
        if len(source):
            highest = max(int(cells["slot"].max()), int(source.max()))
            place = np.arange(highest + 1, dtype=np.int32)
            place[source] = destination
            cells["slot"] = place[cells["slot"]]
        return replace(self, cells=cells, _buffer=cells)

    def open_unit(self) -> UnitRecord:
        """The record of the open unit.

        Raises:
            ValueError: No unit is open.
        """
        if not self.units or not self.units[-1].open:
            raise ValueError("[history] no unit is open")
        return self.units[-1]

    def unit_starts(self) -> NDArray[np.int64]:
        """Index of the first cell of each unit that has cells, shape (num_units_with_cells,)."""
        unit = self.cells["unit"]
        if len(unit) == 0:
            return np.empty(0, np.int64)
        return np.concatenate([[0], np.flatnonzero(unit[1:] != unit[:-1]) + 1])

    def spans(self) -> Iterator[tuple[UnitRecord, tuple[Span, ...]]]:
        """Each unit with its spans as they now stand."""
        starts = np.searchsorted(self.cells["unit"], [u.id for u in self.units], "left")
        stops = np.searchsorted(self.cells["unit"], [u.id for u in self.units], "right")
        for record, start, stop in zip(self.units, starts, stops, strict=True):
            yield record, spans_of(self.cells[start:stop])

    def _extended(self, block: Cells, slots: Slots, unit_id: int) -> History:
        count, more = len(self.cells), len(block)
        buffer = append_rows(self._buffer, count, block)
        new = buffer[count : count + more]
        new["unit"] = unit_id
        new["order"] = self.next_order + np.arange(more)
        new["position"], next_position = lay_out(block, self.next_position)
        new["slot"] = slots
        return replace(
            self,
            cells=buffer[: count + more],
            next_position=next_position,
            next_order=self.next_order + more,
            tokens_seen=self.tokens_seen + more,
            _buffer=buffer,
        )
