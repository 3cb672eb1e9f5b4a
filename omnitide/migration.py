"""Migration plans: which rows move where, and whether that is worth it.

A plan states moves; nothing here copies anything. Moves may form chains and cycles: `rounds` cuts
a plan into batches that write to free slots only, each of which leaves a true state behind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from omnitide.history import History
from omnitide.pages import PAGE_SIZE, PageClass, PageTable, Slots


@dataclass(frozen=True, slots=True)
class Footprint:
    """What attention has to walk: regions with at least one live cell."""

    active_pages: int
    active_subblocks: int
    physical_span: int

    @staticmethod
    def of(table: PageTable) -> Footprint:
        """The footprint of a table."""
        return Footprint(table.active_pages, table.active_subblocks, table.physical_span)

    def is_smaller(self, other: Footprint) -> bool:
        """Fewer active pages or fewer active subblocks (the paper's rule for tile mode)."""
        return (
            self.active_pages < other.active_pages or self.active_subblocks < other.active_subblocks
        )


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """Moves `source[i] -> destination[i]`, one list for all layers, with what they bring.

    Attributes:
        source, destination: Slots; both lists are free of duplicates and rising in `source`.
        before, after: Footprints of the table as it is and as it would be.
    """

    source: tuple[int, ...]
    destination: tuple[int, ...]
    before: Footprint
    after: Footprint

    @property
    def rows_moved(self) -> int:
        """Rows copied in each layer."""
        return len(self.source)

    def arrays(self) -> tuple[Slots, Slots]:
        """Source and destination slots, int32, each of shape (rows_moved,)."""
        return np.array(self.source, np.int32), np.array(self.destination, np.int32)

    def validate(self, table: PageTable) -> None:
        """Check the moves against the table they were planned for.

        Raises:
            ValueError: A source is dead or given twice, or a destination is given twice, out of
                range, or live and not itself moved away.
        """
        source, destination = self.arrays()
        if len(source) != len(destination):
            raise ValueError(f"[migration] {len(source)} sources, {len(destination)} destinations")
        if len(set(self.source)) != len(source) or len(set(self.destination)) != len(source):
            raise ValueError("[migration] a slot is named twice")
        size = len(table.live)
        for name, slots in (("source", source), ("destination", destination)):
            if len(slots) and not (slots.min() >= 0 and slots.max() < size):
                raise ValueError(f"[migration] a {name} lies outside [0, {size})")
        if not table.live[source].all():
            raise ValueError("[migration] a source is not live")
        taken = table.live[destination] & ~np.isin(destination, source)
        if taken.any():
            raise ValueError(f"[migration] {int(taken.sum())} destinations hold live cells")


def simulate(table: PageTable, source: Slots, destination: Slots) -> MigrationPlan:
    """State what moves would bring, by making them on a copy of the table."""
    after = table.copy()
    after.move(source, destination)
    return MigrationPlan(
        tuple(source.tolist()),
        tuple(destination.tolist()),
        Footprint.of(table),
        Footprint.of(after),
    )


def rounds(plan: MigrationPlan, table: PageTable) -> list[tuple[Slots, Slots]]:
    """A plan as batches of moves, each to slots that are free once the batches before are done.

    If each batch is committed when it is copied, no row that the committed state refers to is ever
    overwritten, and a batch that fails leaves what was. Where most moves wait for others (chains
    and cycles), waiting rows are parked in slots that no move needs: those are copied twice.

    Raises:
        ValueError: A cycle, and no slot is free to park in; nothing has been moved.
    """
    at, goal = plan.arrays()
    live = table.live.copy()
    batches: list[tuple[Slots, Slots]] = []

    def move(source: Slots, destination: Slots) -> None:
        live[source], live[destination] = False, True
        batches.append((source, destination))

    parked = False
    while len(at):
        ready = ~live[goal]
        if not parked and np.count_nonzero(ready) < len(at) / 2:
            spare = ~live
            spare[goal] = False
            parking = np.flatnonzero(spare).astype(np.int32)
            waiting = np.flatnonzero(~ready)[: len(parking)]
            if len(waiting):
                move(at[waiting], parking[: len(waiting)])
                at = at.copy()
                at[waiting] = parking[: len(waiting)]
                parked = True
                continue
        if not ready.any():
            raise ValueError("[migration] a cycle of moves needs a free slot, and there is none")
        move(at[ready], goal[ready])
        at, goal = at[~ready], goal[~ready]
        parked = False
    return batches


def cut_cells(history: History) -> Slots:
    """Slots of cells whose unit was cut: the candidates of tile mode, in physical order."""
    ids, counts = np.unique(history.cells["unit"], return_counts=True)
    lengths = {u.id: u.length for u in history.units}
    cut = [i for i, n in zip(ids.tolist(), counts.tolist(), strict=True) if n < lengths[i]]
    slots: Slots = np.sort(history.cells["slot"][np.isin(history.cells["unit"], cut)])
    return slots


def plan_tile_mode(table: PageTable, candidates: Slots) -> MigrationPlan | None:
    """Pack candidates into earlier empty slots (paper section 6.2, tile mode).

    Candidates (live slots, rising) are visited in physical order and take the lowest empty slot
    before them in a page that is empty or of their own class; cells in full pages stay. The plan is
    returned only if, simulated, it leaves fewer active pages or subblocks. No destination is a
    live slot, so a table that knows nothing of the moves stays true while they are made.
    """
    movable = candidates[table.occupancy()[candidates // PAGE_SIZE] < PAGE_SIZE]
    empty = np.flatnonzero(~table.live).tolist()
    classes: list[int] = table.page_class.tolist()
    owners = list(classes)  # a free page begun by one class is closed to the others
    free = int(PageClass.FREE)
    next_empty = dict.fromkeys(classes, 0)  # by class, where in `empty` to look on
    source: list[int] = []
    destination: list[int] = []
    for slot in movable.tolist():
        own = classes[slot // PAGE_SIZE]
        i = next_empty[own]
        while i < len(empty) and owners[empty[i] // PAGE_SIZE] not in (own, free):
            i += 1
        if i < len(empty) and empty[i] < slot:
            source.append(slot)
            destination.append(empty[i])
            owners[empty[i] // PAGE_SIZE] = own
            i += 1
        next_empty[own] = i
    if not source:
        return None
    plan = simulate(table, np.array(source, np.int32), np.array(destination, np.int32))
    return plan if plan.after.is_smaller(plan.before) else None
