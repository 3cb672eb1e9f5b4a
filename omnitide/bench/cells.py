"""Live cells for one layer's attention: where they lie, and where the new tokens go.

scattered    as a policy and a layout leave them (`left.just_before_a_cut`)
dense        one behind the other
half-dead    as dense, but every second tile, at random, is dead: half as many live cells
interleaved  as many cells as dense, but a dead tile after each live one
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from omnitide.bench.left import just_before_a_cut, media, pages_for
from omnitide.bench.settings import Settings
from omnitide.layouts import make_layout
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE, Slots
from omnitide.paging import place
from omnitide.policies import make_policy
from omnitide.positions import lay_out
from omnitide.rotary import Rotary, Table
from omnitide.step import Step


@dataclass(frozen=True, slots=True)
class LiveCells:
    """A history and new tokens.

    Attributes:
        slots: Of all cells in logical order, the new ones last, int32, shape (num_cells,).
        cos, sin: Float32, shape (num_cells, head_dim / 2).
        queries: How many of them are new.
    """

    slots: Slots
    cos: Table
    sin: Table
    queries: int

    @property
    def history(self) -> int:
        """Cells before the new ones."""
        return len(self.slots) - self.queries

    @property
    def num_pages(self) -> int:
        """Pages of a pool that holds them."""
        return int(self.slots.max()) // PAGE_SIZE + 1

    @property
    def tiles(self) -> int:
        """Subblocks with a live cell."""
        return len(np.unique(self.slots // SUBBLOCK_SIZE))

    @property
    def pairs(self) -> int:
        """Pairs of a new token and a cell that it sees."""
        return self.queries * self.history + self.queries * (self.queries + 1) // 2

    def steps(self, first: int, most: int) -> Iterator[tuple[int, Step]]:
        """Passes over the cells from `first` on, at most `most` new tokens each, with their start.

        As `BoundedCache` makes them of a unit.
        """
        orders = np.arange(len(self.slots), dtype=np.int32)
        for start in range(first, len(self.slots), most):
            stop = min(start + most, len(self.slots))
            yield (
                start,
                Step(
                    self.slots[:stop],
                    orders[:stop],
                    self.cos[:stop],
                    self.sin[:stop],
                    self.slots[start:stop],
                    orders[start:stop],
                    self.cos[start:stop],
                    self.sin[start:stop],
                    rotation=0,
                ),
            )


def live_cells(
    settings: Settings, live: str, history: int, queries: int, policy: str, layout: str
) -> LiveCells:
    """Cells by one of `settings.LIVE`."""
    rotary = settings.shape.text.rotary
    if live == "scattered":
        return _scattered(settings, history, queries, policy, layout)
    slots = _placed(live, history, settings.seed)
    behind = -(-(int(slots.max()) + 1) // PAGE_SIZE) * PAGE_SIZE
    new = np.arange(behind, behind + queries)
    if live == "dense":
        new = np.arange(history, history + queries)
    everywhere = np.concatenate([slots, new]).astype(np.int32)
    positions = np.repeat(np.arange(len(everywhere), dtype=np.int32)[:, None], 3, axis=1)
    return _turned(everywhere, positions, queries, rotary)


def _placed(live: str, history: int, seed: int) -> Slots:
    slots = np.arange(history)
    tile, row = np.divmod(slots, SUBBLOCK_SIZE)
    if live == "interleaved":
        slots = 2 * tile * SUBBLOCK_SIZE + row
    elif live == "half-dead":
        tiles = int(tile[-1]) + 1
        chosen = np.random.default_rng(seed).permutation(tiles)[: -(-tiles // 2)]
        slots = slots[np.isin(tile, chosen)]
    return slots.astype(np.int32)


def _scattered(
    settings: Settings, history: int, queries: int, policy: str, layout: str
) -> LiveCells:
    left = just_before_a_cut(settings, policy, layout, history)
    table, unit = left.table.copy(), media(queries)
    table.grow(table.num_pages + pages_for(queries))
    chosen = make_policy(policy)
    new = place(table, unit, left.history, chosen, make_layout(layout), left.config)
    cells = left.history.cells
    behind, _ = lay_out(unit.cells, left.history.next_position)
    slots = np.concatenate([cells["slot"], new]).astype(np.int32)
    positions = np.concatenate([cells["position"], behind])
    return _turned(slots, positions, queries, settings.shape.text.rotary)


def _turned(slots: Slots, positions: np.ndarray, queries: int, rotary: Rotary) -> LiveCells:
    cos, sin = rotary.tables(positions)
    return LiveCells(slots, cos, sin, queries)
