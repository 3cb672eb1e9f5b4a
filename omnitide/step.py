"""A step: all that one forward pass needs to know of the history, shared by all layers and heads.

Built on the host once a pass, and read only but for the sum of attention mass, which the pass fills
if its caller asks for it, and for a watch, which is shown each layer's queries. Two views of the
same live cells: by cell in logical order (for paths made of plain array operations) and by subblock
(for kernels, which never look at a dead tile).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from omnitide.pages import SUBBLOCK_SIZE, Slots
from omnitide.rotary import Table

PREFILL_STEP = 512
"""Most tokens of one forward pass; longer units are prefilled in pieces, with equal results."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Live subblocks, a compact list.

    Attributes:
        subblocks: Subblock ids in rising order, int32, shape (num_tiles,).
        masks: Bit r is set where row r is live, uint32, shape (num_tiles,).
        least: Least order of a live cell in it, int32, shape (num_tiles,).
        greatest: Greatest order of a live cell in it, int32, shape (num_tiles,).
        orders: Order of each row, -1 where dead, int32, shape (num_tiles, SUBBLOCK_SIZE).
        cells: Index of each row in the step's cells, -1 where dead, int32, same shape.
    """

    subblocks: NDArray[np.int32]
    masks: NDArray[np.uint32]
    least: NDArray[np.int32]
    greatest: NDArray[np.int32]
    orders: NDArray[np.int32]
    cells: NDArray[np.int32]


@dataclass(slots=True)
class MassSum:
    """Attention mass of a step's cells, added up layer by layer while a pass runs.

    Attributes:
        total: Shape (num_cells,), an array of the backend; None before the first layer.
    """

    total: Any = None

    def add(self, mass: Any) -> None:
        """Add what one layer gave."""
        self.total = mass if self.total is None else self.total + mass


class Watch(Protocol):
    """Looks at the attention of each layer of a pass; see `Backend.attention_weights`."""

    def __call__(
        self, backend: Any, q: Any, pools: Any, layer: int, step: Step, scale: float
    ) -> None:
        """See one layer's queries, before it attends. Changes nothing of the pass."""
        ...


@dataclass(frozen=True)
class Step:
    """Live cells and queries of one forward pass.

    A query sees the cells whose order is at most its own. The new tokens are cells too: their K and
    V are appended to `query_slots` before attention reads them.

    Attributes:
        slots: Slot of each live cell, new ones included, int32, shape (num_cells,).
        orders: Order of each cell, non-negative, rising, distinct, int32, shape (num_cells,).
        cos, sin: Rotary tables of the cells, float32, shape (num_cells, head_dim / 2).
        query_slots: Where K and V of the new tokens go, int32, shape (num_queries,).
        query_orders: int32, shape (num_queries,).
        query_cos, query_sin: float32, shape (num_queries, head_dim / 2).
        mass: Where the layers add their attention mass. None: it is not computed.
        watch: Shown each layer's queries, un-rotated, shape (num_queries, num_heads, head_dim).
        rotation: Tells angles apart. Cells that two steps over the same pools share have equal
            angles if the steps have equal `rotation`, so a backend that keeps turned keys need not
            turn them again. The first step of a rotation holds all live cells: later ones hold
            these and what was appended since. None: nothing is known, as where a pass sees a part.
    """

    slots: Slots
    orders: NDArray[np.int32]
    cos: Table
    sin: Table
    query_slots: Slots
    query_orders: NDArray[np.int32]
    query_cos: Table
    query_sin: Table
    mass: MassSum | None = None
    watch: Watch | None = None
    rotation: int | None = None

    @property
    def num_cells(self) -> int:
        """Live cells."""
        return len(self.slots)

    @property
    def num_queries(self) -> int:
        """New tokens."""
        return len(self.query_orders)

    @property
    def observed(self) -> bool:
        """Whether somebody asks what the queries attend to: of all of them, in every layer."""
        return self.mass is not None or self.watch is not None

    @cached_property
    def is_suffix(self) -> bool:
        """Whether the queries are the newest cells in order, so that plain causality is enough."""
        count = self.num_queries
        return 0 < count <= self.num_cells and np.array_equal(
            self.orders[-count:], self.query_orders
        )

    @cached_property
    def newest(self) -> Step:
        """The same cells with the last query alone: all that a last layer has to compute."""
        step = replace(
            self,
            query_slots=self.query_slots[-1:],
            query_orders=self.query_orders[-1:],
            query_cos=self.query_cos[-1:],
            query_sin=self.query_sin[-1:],
        )
        if "tiles" in vars(self):
            vars(step)["tiles"] = self.tiles  # what a cached property keeps: the cells are the same
        return step

    @cached_property
    def visible(self) -> NDArray[np.bool_]:
        """Whether query i sees cell j, shape (num_queries, num_cells)."""
        return self.orders[None, :] <= self.query_orders[:, None]

    @cached_property
    def tiles(self) -> Tiles:
        """The live cells by subblock."""
        # A grid of all subblocks up to the last live one, then only those with a live row.
        count = int(self.slots.max(initial=-1)) // SUBBLOCK_SIZE + 1
        by_slot = np.full(count * SUBBLOCK_SIZE, -1, np.int32)
        by_slot[self.slots] = np.arange(self.num_cells, dtype=np.int32)
        grid = by_slot.reshape(count, SUBBLOCK_SIZE)
        bits = np.packbits(grid >= 0, axis=1, bitorder="little").view("<u4")[:, 0]
        subblocks = np.flatnonzero(bits)
        cells = grid[subblocks]
        dead = cells < 0
        orders = self.orders[cells] if self.num_cells else cells
        orders[dead] = np.iinfo(np.int32).max
        least = orders.min(axis=1)
        orders[dead] = -1
        return Tiles(
            subblocks.astype(np.int32),
            bits[subblocks].astype(np.uint32),
            least,
            orders.max(axis=1),
            orders,
            cells,
        )
