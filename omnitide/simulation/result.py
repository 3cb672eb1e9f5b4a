"""What a simulation found: one row of figures, and how it came about unit by unit."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.history import History
from omnitide.pages import PAGE_SIZE, PageTable
from omnitide.units import Cells, Modality, Role


class Content(IntEnum):
    """What a slot holds, as tables and pictures tell it apart."""

    NOTHING = 0
    BOUNDARY = 1
    TEXT = 2
    AUDIO = 3
    IMAGE = 4


_OF_MODALITY = np.zeros(len(Modality), np.uint8)
_OF_MODALITY[Modality.TEXT] = Content.TEXT
_OF_MODALITY[Modality.AUDIO] = Content.AUDIO
_OF_MODALITY[Modality.IMAGE] = Content.IMAGE


def contents(cells: Cells) -> NDArray[np.uint8]:
    """What each cell is (`Content`), shape (num_cells,)."""
    found: NDArray[np.uint8] = np.where(
        cells["role"] == Role.BOUNDARY, Content.BOUNDARY, _OF_MODALITY[cells["modality"]]
    ).astype(np.uint8)
    return found


def count_contents(cells: Cells) -> NDArray[np.int64]:
    """How many cells there are of each `Content`, shape (len(Content),)."""
    return np.bincount(contents(cells), minlength=len(Content))


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Figures of one stream under one policy and one layout.

    Attributes:
        shape, policy, layout: What was simulated.
        live_cells: Cells kept at the end.
        active_pages, active_subblocks: Pages and subblocks with a live cell at the end.
        active_subblock_ratio: Slots of active subblocks for each live cell, over the whole stream
            (sums after each unit): 1 is perfect, and a kernel walks that many slots a token.
        physical_span: Highest live slot + 1 at the end, rounded up to a page.
        peak_span: Greatest physical span at any time.
        rows_moved: Rows migrated, in each layer.
        rows_moved_share_of_eager: The same as a share of what repacking after each eviction moves.
        evictions: How often the history was cut.
        plan_ms_p50: Median wall time of an eviction with all its bookkeeping, but no copies. ms.
        plan_ms_max: Longest. ms.
        units, tokens_seen: Of the stream, the system prefix included.
        tokens_evicted: Cells deleted.
        mean_live_cells, peak_live_cells: Over the stream. The peak is before an eviction.
        end_subblock_ratio: As `active_subblock_ratio`, at the end alone.
        peak_pages: Most active pages at any time.
        capacity_pages: Pages of the pools; they are never exceeded.
        peak_memory_pages: Most pages of memory at any time: the pools, or what a layout for
            comparison had committed.
        kept_boundary, kept_text, kept_audio, kept_image: Cells kept at the end, by content.
        kept_units, whole_units: Units with a cell left at the end, and those that are complete; the
            system prefix is not counted.
        high_watermark, low_watermark: That held; None if the policy cuts nothing.
        accept: The rule of moves; None if the layout makes none.
        tile_cost_us, row_cost_us: Of the estimates, and of the rule "cost".
        attention_ms, copy_ms: Estimates for the whole stream, see `Costs`.
    """

    shape: str
    policy: str
    layout: str
    live_cells: int
    active_pages: int
    active_subblocks: int
    active_subblock_ratio: float
    physical_span: int
    peak_span: int
    rows_moved: int
    rows_moved_share_of_eager: float
    evictions: int
    plan_ms_p50: float
    plan_ms_max: float
    units: int
    tokens_seen: int
    tokens_evicted: int
    mean_live_cells: float
    peak_live_cells: int
    end_subblock_ratio: float
    peak_pages: int
    capacity_pages: int
    peak_memory_pages: int
    kept_boundary: int
    kept_text: int
    kept_audio: int
    kept_image: int
    kept_units: int
    whole_units: int
    high_watermark: int | None
    low_watermark: int | None
    accept: str | None
    tile_cost_us: float
    row_cost_us: float
    attention_ms: float
    copy_ms: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class PageMap:
    """Where everything lay after an eviction.

    Attributes:
        unit: Index of the unit that was being followed: the last one before it, or, where a cut
            was late, the next.
        contents: `Content` of each slot up to the physical span, shape (pages, PAGE_SIZE).
        classes: `PageClass` of each page, shape (pages,).
    """

    unit: int
    contents: NDArray[np.uint8]
    classes: NDArray[np.uint8]

    @classmethod
    def of(cls, unit: int, history: History, table: PageTable) -> PageMap:
        """The map of a history in its table."""
        pages = table.physical_span // PAGE_SIZE
        slots = np.zeros(pages * PAGE_SIZE, np.uint8)
        slots[history.cells["slot"]] = contents(history.cells)
        return cls(unit, slots.reshape(pages, PAGE_SIZE), table.page_class[:pages].copy())


MAPS = 512
"""Page maps kept at most; beyond that, every other one."""


@dataclass(slots=True)
class Timeline:
    """The course of a simulation. Lists but `maps` have one entry a unit, the prefix first.

    Attributes:
        kept: Cells by `Content` after the unit, each of shape (len(Content),).
        subblocks, span: Of the table after the unit.
        maps: Page maps after evictions; thinned out evenly on long streams.
    """

    kept: list[NDArray[np.int64]] = field(default_factory=list)
    subblocks: list[int] = field(default_factory=list)
    span: list[int] = field(default_factory=list)
    maps: list[PageMap] = field(default_factory=list)
    _stride: int = 1
    _evictions: int = 0

    def add(self, history: History, table: PageTable) -> None:
        """Note the state after a unit."""
        self.kept.append(count_contents(history.cells))
        self.subblocks.append(table.active_subblocks)
        self.span.append(table.physical_span)

    def add_map(self, unit: int, history: History, table: PageTable) -> None:
        """Note where everything lies after an eviction; `unit` is the one being followed."""
        if self._evictions % self._stride == 0:
            self.maps.append(PageMap.of(unit, history, table))
        self._evictions += 1
        if len(self.maps) > MAPS:
            del self.maps[1::2]
            self._stride *= 2
