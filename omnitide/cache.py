"""The bounded cache: history, page table and pools, and the life cycle of an update.

Invariant: the committed state is a value that is replaced in one assignment, and no row that it
refers to is ever overwritten. So an exception or an interrupt at any moment leaves the cache as it
was before or as it is after, never between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from omnitide.acceptance import Acceptance, Always
from omnitide.backend import Array, Backend, Pools
from omnitide.cache_state import CacheState, Placed, next_of
from omnitide.capacity import Capacity
from omnitide.config import RetentionConfig
from omnitide.errors import IntegrityError
from omnitide.growing import append_rows
from omnitide.history import History
from omnitide.layouts import Layout
from omnitide.migration import MigrationPlan
from omnitide.model import EncodedUnit, OmniModel
from omnitide.pages import PageTable, Slots
from omnitide.paging import batches, delete, doubled_pages, due_migration, due_plan, place, settled
from omnitide.retention import Mass, RetentionPlan, RetentionPolicy
from omnitide.rotary import RotaryTables, Table
from omnitide.step import MassSum, Step, Watch
from omnitide.units import Cells, Unit, UnitKind

Observer = Callable[[Unit], None]
"""Called with each unit once it is whole and recorded."""

Watcher = Callable[[History, int, int], Watch]
"""Called with the history and the range [begin, stop) of its cells that a pass adds; pure.

What it returns is shown the pass. A pass that was placed ahead may be dropped without being run.
"""


@dataclass(frozen=True, slots=True)
class Eviction:
    """What one eviction did."""

    retention: RetentionPlan
    migration: MigrationPlan | None


class BoundedCache:
    """K and V of one stream, in pages, cut by a policy when they pass the high watermark."""

    def __init__(
        self,
        model: OmniModel,
        policy: RetentionPolicy,
        layout: Layout,
        config: RetentionConfig,
        capacity: Capacity,
        acceptance: Acceptance | None = None,
        kv_bits: int | None = None,
    ) -> None:
        """Allocate the pools. Call on the backend's thread, as all methods here.

        `kv_bits` is as in `Backend.new_pools`.
        """
        spec = model.spec
        self.model, self.policy, self.layout = model, policy, layout
        self.config, self.capacity = config, capacity
        self.acceptance: Acceptance = acceptance or Always()
        self._backend: Backend = model.backend
        self._rotary = RotaryTables(spec.rotary)
        self.pools: Pools = self._backend.new_pools(
            spec.num_layers, spec.num_kv_heads, spec.head_dim, capacity.pages, kv_bits
        )
        self.observer: Observer | None = None
        self.watcher: Watcher | None = None
        self._ahead: Placed | None = None
        angles = np.empty((0, spec.head_dim), np.float32)
        self.state = CacheState(
            History(),
            PageTable(capacity.pages),
            angles,
            stream=model.new_stream(),
            mass=np.empty(0) if policy.needs_mass else None,
        )

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the history can hold; for an unbounded policy, that the pools hold now."""
        bound = self.capacity.tokens
        return len(self.state.table.live) if bound is None else bound

    @property
    def history(self) -> History:
        """The committed history."""
        return self.state.history

    def append(self, encoded: EncodedUnit, open: bool = False, **changes: Any) -> Array:
        """Check, allocate, prefill and record one unit. Logits of its last token.

        Args:
            encoded: The unit; without cells it changes nothing but what `changes` says.
            open: Whether it is to grow by `extend` until `close`.
            **changes: Fields of the state to replace with it: `stream`, `time`, `talk`.

        Raises:
            CapacityError: The unit does not fit; nothing has changed.
        """
        self.evict()  # what an interrupt kept from being done after the last unit
        unit = encoded.unit
        if unit.kind != UnitKind.SYSTEM:  # the capacity was made around the system prefix
            self.capacity.check_fits(f"{unit.kind} unit", len(unit), len(self.history))
        record = partial(self.history.append, open=open)
        logits = self._grow(unit, encoded.embeddings, record, **changes)
        if len(unit) and not open:
            self._tell(unit)
        return logits

    def open_reply(self, time: float | None) -> None:
        """Begin a reply unit, which stays open until `close`."""
        unit = Unit(UnitKind.REPLY, self.history.cells[:0], time)
        history = self.history.append(unit, np.empty(0, np.int32), open=True)
        self.state = replace(self.state, history=history)

    def extend(self, unit: Unit, embeddings: Array, **changes: Any) -> Array:
        """Add cells to the open unit: a reply, or what a model says in a media unit.

        Args:
            unit: The cells; steps and spans continue those of the open unit.
            embeddings: Of the cells.
            **changes: Fields of the state to replace with it: `talk`.

        Returns:
            Logits of the last token.

        While the device computes them, the place of a next token is worked out.

        Raises:
            CapacityError: There are more than what was kept free for replies.
        """
        self.capacity.check_fits("reply", len(unit), len(self.history), is_reply=True)
        logits = self._grow(unit, embeddings, self.history.extend, **changes)
        self._look_ahead(unit)
        return logits

    def close(self) -> None:
        """End the open unit."""
        record = self.history.open_unit()
        self.state = replace(self.state, history=self.history.close())
        cells = self.history.cells[-record.length :] if record.length else self.history.cells[:0]
        self._tell(Unit(record.kind, cells, record.time, record.seconds))

    def evict(self) -> Eviction | None:
        """Between forward passes: cut a history that is above the high watermark.

        Plan, delete and re-index, then migrate; each is committed when it is whole. None if there
        was nothing to do.
        """
        state = self.state
        plan = due_plan(self.policy, state.history, self.config, state.mass)
        if plan is None:
            return None
        history, table = delete(state.history, state.table, plan)
        self.state = state = replace(
            state,
            history=history,
            table=table,
            angles=self._angles(history),
            mass=None if state.mass is None else state.mass[plan.keep],
            evictions=state.evictions + 1,
        )
        migration = due_migration(history, table, self.layout, self.acceptance)
        if migration is not None:
            # Each batch writes to free slots only, and is committed before the next one.
            for batch in batches(history, table, migration):
                self._backend.migrate(self.pools, batch.source, batch.destination)
                self.state = state = replace(state, history=batch.history, table=batch.table)
            state = replace(state, rows_moved=state.rows_moved + migration.rows_moved)
        self.state = replace(state, table=settled(state.history, state.table, self.layout))
        return Eviction(plan, migration)

    def renew_prefix(self, kept: int, unit: Unit, embeddings: Array, **changes: Any) -> None:
        """Give the system prefix another end, which sees what is kept of it and nothing else.

        What follows keeps its K and V and moves to where the prefix now ends.

        Args:
            kept: First cells of the prefix that stay.
            unit: The new end; steps and spans continue those of the kept cells.
            embeddings: Of its tokens.
            **changes: Fields of the state to replace with it: `talk`.

        Raises:
            CapacityError: It has more tokens than the pools have free.
        """
        state = self.state
        self.capacity.check_fits("prefix", len(unit), len(state.history), is_reply=True)
        table, before = state.table.copy(), state.history.prefix
        self._make_room(table, len(unit))
        slots = place(table, unit, state.history, self.policy, self.layout, self.config)
        history = state.history.renew_prefix(kept, unit, slots)
        angles, mass = self._angles(history), state.mass
        cells = history.cells[: kept + len(unit)]
        # Without a rotation: the pass sees a part of the cells, whose angles are about to change.
        self._run(self._steps(cells, angles, kept, None), embeddings, None)
        table.release(state.history.cells["slot"][kept:before])
        if mass is not None:
            mass = np.concatenate([mass[:kept], np.zeros(len(unit)), mass[before:]])
        self.state = replace(
            state,
            history=history,
            table=table,
            angles=angles,
            mass=mass,
            renewals=state.renewals + 1,
            **changes,
        )

    def check_integrity(self) -> None:
        """Compare table, history and attention mass.

        Raises:
            IntegrityError: They disagree.
        """
        state = self.state
        state.table.check_integrity(state.history.cells)
        if state.mass is not None and len(state.mass) != len(state.history):
            raise IntegrityError(
                f"[cache] attention mass of {len(state.mass):,} cells, the history has "
                f"{len(state.history):,}"
            )

    def _tell(self, unit: Unit) -> None:
        if self.observer is not None:
            self.observer(unit)

    def _grow(
        self,
        unit: Unit,
        embeddings: Array,
        record: Callable[[Unit, Slots], History],
        **changes: Any,
    ) -> Array:
        if len(unit) == 0:
            self.state = replace(self.state, **changes)
            return None
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.is_for(self.state, unit):
            ahead.name_tokens(unit)
            placed = ahead
        else:
            placed = self._place(unit, record)
        logits = self._run(placed.steps, embeddings, placed.after.mass)
        self.state = replace(placed.after, **changes)
        return logits

    def _look_ahead(self, unit: Unit) -> None:
        """Place what may follow a token of a reply. Changes nothing that is committed."""
        left = self.capacity.left(len(self.history), is_reply=True)
        fits = self.state.table.num_free > 0 and (left is None or left > 0)
        if len(unit) == 1 and fits and self.state.mass is None:
            self._ahead = self._place(next_of(unit), self.history.extend)
            self._backend.prepare(self.pools, self._ahead.steps[0])

    def _place(self, unit: Unit, record: Callable[[Unit, Slots], History]) -> Placed:
        """Slots, positions and passes of new cells, at least one. Changes no state."""
        state = self.state
        table = state.table.copy()
        self._make_room(table, len(unit))
        slots = place(table, unit, state.history, self.policy, self.layout, self.config)
        history = record(unit, slots)
        first = len(state.history)
        angles = append_rows(state.angles, first, self._angles(history, first))
        mass = state.mass
        if mass is not None:
            # A copy: the pass adds to the mass of old cells too.
            mass = np.concatenate([mass, np.zeros(len(unit))])
        after = replace(state, history=history, table=table, angles=angles, mass=mass)
        watched = None if self.watcher is None else partial(self.watcher, history)
        steps = self._steps(history.cells, angles, first, state.rotation, mass is not None, watched)
        return Placed(state, unit, after, first, tuple(steps))

    def _make_room(self, table: PageTable, count: int) -> None:
        """Grow an unbounded cache by doubling. Pools larger than the table do no harm."""
        if self.capacity.tokens is None and table.num_free < count:
            pages = max(doubled_pages(table, count), self.pools.num_pages)
            if pages > self.pools.num_pages:
                self._backend.grow_pools(self.pools, pages)
            table.grow(pages)

    def _angles(self, history: History, first: int = 0) -> Table:
        return self._rotary.look_up(history.cells["position"][first:])

    def _steps(
        self,
        cells: Cells,
        angles: Table,
        first: int,
        rotation: int | None,
        with_mass: bool = False,
        watched: Callable[[int, int], Watch | None] | None = None,
    ) -> Iterator[Step]:
        """The passes over the cells from `first` on."""
        slots = np.ascontiguousarray(cells["slot"])
        orders = np.arange(len(slots), dtype=np.int32)
        half = angles.shape[1] // 2
        cos, sin = angles[:, :half], angles[:, half:]
        most = self._backend.prefill_step
        for begin in range(first, len(slots), most):
            stop = min(begin + most, len(slots))
            yield Step(
                slots[:stop],
                orders[:stop],
                cos[:stop],
                sin[:stop],
                slots[begin:stop],
                orders[begin:stop],
                cos[begin:stop],
                sin[begin:stop],
                MassSum() if with_mass else None,
                None if watched is None else watched(begin, stop),
                rotation=rotation,
            )

    def _run(self, steps: Iterable[Step], embeddings: Array, mass: Mass | None) -> Array:
        """Run passes; adds what they attend to to `mass`. Logits of the last token."""
        logits: Array = None
        done = 0
        for step in steps:
            piece = embeddings[done : done + step.num_queries]
            done += step.num_queries
            logits = self._backend.forward_pass(self.model.forward, piece, self.pools, step)
            if mass is not None and step.mass is not None:
                # Read now: a sum still to be computed would hold on to the pools.
                mass[: step.num_cells] += self._backend.to_numpy(step.mass.total)
        return logits
