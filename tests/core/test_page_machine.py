"""Random lives of a stream in a page table, checked after each act against a plain dict.

The dict says which order lies in which slot. Every layout and policy goes through all acts of a
session: append, evict, migrate, replies that grow, growth, refusals, and failed updates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from omnitide.config import RetentionConfig
from omnitide.errors import CapacityError
from omnitide.history import History
from omnitide.layouts import LAYOUTS, make_layout
from omnitide.migration import plan_tile_mode, rounds, simulate
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE, PageClass, PageTable
from omnitide.policies import POLICIES, make_policy
from omnitide.retention import foresee
from omnitide.units import Unit, UnitBuilder, UnitKind

SETTINGS = settings(
    max_examples=25, stateful_step_count=25, deadline=None, derandomize=True, print_blob=False
)


def frozen(table: PageTable, history: History) -> tuple[Any, ...]:
    """All that an abandoned update must not touch."""
    return (
        table.live.tobytes(),
        table.page_class.tobytes(),
        dict(table.cursors),
        history.cells.tobytes(),
        history.units,
        history.next_position,
        history.next_order,
        history.next_unit,
        history.tokens_seen,
    )


class Life(RuleBasedStateMachine):
    """One stream in one table."""

    def __init__(self, streams: Any, layout: str, policy: str) -> None:
        super().__init__()
        self.streams = streams
        self.layout, self.policy = make_layout(layout), make_policy(policy)
        self.history, self.table = History(), PageTable(0)
        self.cells: dict[int, int] = {}  # slot -> order
        self.highest: dict[int, int] = {}  # page -> highest row taken since the page was free
        self.open = False
        self.step = 0

    @initialize(data=st.data(), pages=st.integers(2, 9))
    def begin(self, data: st.DataObject, pages: int) -> None:
        self.table = PageTable(pages)
        self.add(self.streams.build(data.draw(self.streams.system)))

    def survivors(self, unit: Unit) -> Any:
        return foresee(self.policy, unit, self.history, RetentionConfig())

    def add(self, unit: Unit, open: bool = False, extend: bool = False) -> None:
        """Place a unit and record it, or see it refused without a trace."""
        before = frozen(self.table, self.history)
        free = {p for p in range(self.table.num_pages) if not self.table.rows(p).any()}
        if len(unit) > self.table.num_free:
            with pytest.raises(CapacityError):
                self.layout.place(self.table, self.survivors(unit), unit.kind)
            assert frozen(self.table, self.history) == before
            return
        if not self.has_room(len(unit)):
            with pytest.raises(CapacityError):
                self.layout.place(self.table, self.survivors(unit), unit.kind)
            assert frozen(self.table, self.history) == before
            return
        slots = self.layout.place(self.table, self.survivors(unit), unit.kind)
        if extend:
            self.history = self.history.extend(unit, slots)
        else:
            self.history = self.history.append(unit, slots, open=open)
            self.open, self.step = open, 0
        first = self.history.next_order - len(unit)
        for order, slot in enumerate(slots.tolist(), first):
            assert slot not in self.cells
            self.cells[slot] = order
        if self.layout.name == "predictive" and free - {s // PAGE_SIZE for s in slots.tolist()}:
            fresh = [
                s // PAGE_SIZE in free or s % PAGE_SIZE > self.highest[s // PAGE_SIZE]
                for s in slots.tolist()
                if self.table.page_class[s // PAGE_SIZE] != PageClass.MUST_KEEP
            ]
            assert all(fresh), "a hole of a ring was filled while a page was free"
        for slot in slots.tolist():
            page = slot // PAGE_SIZE
            self.highest[page] = max(self.highest.get(page, -1), slot % PAGE_SIZE)

    def has_room(self, count: int) -> bool:
        """Whether a layout that fills no hole can take so many cells, from the dict alone."""
        if not self.layout.simulated:
            return True
        size = self.table.num_pages * PAGE_SIZE
        if self.layout.name == "contiguous":
            return count <= size - max(self.cells, default=-1) - 1
        # The page being filled goes on behind the last row that was taken, while it is in use.
        used = {s // PAGE_SIZE for s in self.cells}
        rows = PAGE_SIZE * (self.table.num_pages - len(used))
        cursor = self.table.cursors.get((PageClass.MIXED, 0))
        return count <= rows + (PAGE_SIZE - cursor[1] if cursor else 0)

    def moved(self, source: Any, destination: Any) -> None:
        """Carry out moves on the dict: gather, then scatter."""
        orders = [self.cells.pop(s) for s in source.tolist()]
        self.cells.update(zip(destination.tolist(), orders, strict=True))
        for slot in destination.tolist():
            page = slot // PAGE_SIZE
            self.highest[page] = max(self.highest.get(page, -1), slot % PAGE_SIZE)

    def forget(self) -> None:
        used = {s // PAGE_SIZE for s in self.cells}
        self.highest = {p: r for p, r in self.highest.items() if p in used}

    @precondition(lambda self: not self.open)
    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        self.add(self.streams.build(data.draw(self.streams.units)))

    @precondition(lambda self: not self.open)
    @rule(count=st.integers(40, 400))
    def append_large(self, count: int) -> None:
        self.add(UnitBuilder().text(np.arange(count)).build(UnitKind.TEXT))

    @precondition(lambda self: not self.open)
    @rule(count=st.integers(0, 5))
    def open_reply(self, count: int) -> None:
        unit = UnitBuilder().text(np.arange(count)).build(UnitKind.REPLY)
        self.add(unit, open=True)
        self.step = count

    @precondition(lambda self: self.open)
    @rule(count=st.integers(1, 40))
    def extend_reply(self, count: int) -> None:
        builder = UnitBuilder(first_step=self.step, first_span=self.step)
        self.add(builder.text(np.arange(count)).build(UnitKind.REPLY), extend=True)
        self.step += count

    @precondition(lambda self: self.open)
    @rule()
    def close_reply(self) -> None:
        self.history = self.history.close()
        self.open = False

    @precondition(lambda self: len(self.history) > 0)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        config = data.draw(self.streams.configs())
        self.history, plan, migration = self.streams.evict(
            self.policy, self.layout, self.table, self.history, config
        )
        orders = sorted(self.cells.values())
        kept = {o for o, k in zip(orders, plan.keep.tolist(), strict=True) if k}
        self.cells = {s: o for s, o in self.cells.items() if o in kept}
        self.forget()
        if migration is not None:
            self.moved(*migration.arrays())
            self.forget()

    @precondition(lambda self: len(self.history) > 0)
    @rule(data=st.data())
    def delete_by_hand(self, data: st.DataObject) -> None:
        """Any cells may go: by a user, or by a policy that is not ours."""
        seed = data.draw(st.integers(0, 2**32 - 1))
        share = data.draw(st.sampled_from([0.0, 0.1, 0.5, 0.9]))
        keep = np.random.default_rng(seed).random(len(self.history)) < share
        if self.open:
            keep |= self.history.cells["unit"] == self.history.units[-1].id
        orders = self.history.cells["order"][keep].tolist()
        self.table.release(self.history.cells["slot"][~keep])
        self.history = self.history.keep(keep)
        self.layout.settle(self.table, self.history)
        self.cells = {s: o for s, o in self.cells.items() if o in set(orders)}
        self.forget()

    @rule()
    def pack(self) -> None:
        plan = plan_tile_mode(self.table, np.flatnonzero(self.table.live).astype(np.int32))
        assume(plan is not None)
        assert plan is not None
        plan.validate(self.table)
        before = self.table.active_pages, self.table.active_subblocks
        source, destination = plan.arrays()
        self.table.move(source, destination)
        self.history = self.history.move(source, destination)
        self.moved(source, destination)
        self.forget()
        after = self.table.active_pages, self.table.active_subblocks
        assert after == (plan.after.active_pages, plan.after.active_subblocks)
        assert after[0] < before[0] or after[1] < before[1]

    @rule(seed=st.integers(0, 2**32 - 1))
    def shuffle(self, seed: int) -> None:
        """Any valid plan will do, chains and cycles too; rounds of it never hit a live cell."""
        rng = np.random.default_rng(seed)
        live, empty = np.flatnonzero(self.table.live), np.flatnonzero(~self.table.live)
        source = rng.permutation(live)[: rng.integers(0, 20)].astype(np.int32)
        among = rng.permutation(np.concatenate([source, empty[:30]]))
        destination = among[: len(source)].astype(np.int32)
        plan = simulate(self.table, source, destination)
        plan.validate(self.table)
        orders = [self.cells[slot] for slot in source.tolist()]
        try:
            batches = rounds(plan, self.table)
        except ValueError:
            assert self.table.num_free == 0
            return
        for begin, end in batches:
            assert not self.table.live[end].any()
            self.table.move(begin, end)
            self.history = self.history.move(begin, end)
            self.moved(begin, end)
            self.table.check_integrity(self.history.cells)
        assert [self.cells[slot] for slot in destination.tolist()] == orders
        self.forget()

    @rule(more=st.integers(0, 2))
    def grow(self, more: int) -> None:
        assume(self.table.num_pages + more <= 14)
        self.table.grow(self.table.num_pages + more)

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        """The stream ends, in the middle of a reply even, and another begins in the same table."""
        self.table.release(self.history.cells["slot"])
        assert self.table.num_free == self.table.num_pages * PAGE_SIZE
        assert self.table.cursors == {}
        self.history, self.open, self.step = History(), False, 0
        self.cells, self.highest = {}, {}
        self.add(self.streams.build(data.draw(self.streams.system)))

    @precondition(lambda self: not self.open)
    @rule(data=st.data())
    def fail_half_way(self, data: st.DataObject) -> None:
        """An update that breaks off is forgotten: what was committed has not changed."""
        before = frozen(self.table, self.history)
        unit = self.streams.build(data.draw(self.streams.units))
        table, history = self.table.copy(), self.history
        if len(unit) <= table.num_free and self.has_room(len(unit)):
            history = history.append(
                unit, self.layout.place(table, self.survivors(unit), unit.kind)
            )
            if len(history):
                config = data.draw(self.streams.configs())
                history, _, _ = self.streams.evict(self.policy, self.layout, table, history, config)
            table.check_integrity(history.cells)
        assert frozen(self.table, self.history) == before

    @invariant()
    def table_and_history_are_the_dict(self) -> None:
        table, cells = self.table, self.history.cells
        table.check_integrity(cells)
        assert dict(zip(cells["slot"].tolist(), cells["order"].tolist(), strict=True)) == self.cells
        assert cells["order"].tolist() == sorted(self.cells.values())
        assert np.flatnonzero(table.live).tolist() == sorted(self.cells)
        used = {s // PAGE_SIZE for s in self.cells}
        free = np.flatnonzero(table.page_class == PageClass.FREE).tolist()
        assert free == [p for p in range(table.num_pages) if p not in used]
        assert table.num_live + table.num_free == table.num_pages * PAGE_SIZE
        assert table.active_subblocks == len({s // SUBBLOCK_SIZE for s in self.cells})
        assert table.active_pages == len(used)


# What is for comparison only differs in where it puts cells, not in what it makes of a policy.
LIVES = [
    (layout, policy)
    for layout, made in LAYOUTS.items()
    for policy in POLICIES
    if policy == "omnipick" or not made.simulated
]


@pytest.mark.parametrize(("layout", "policy"), LIVES)
def test_lives(streams: Any, layout: str, policy: str) -> None:
    run_state_machine_as_test(lambda: Life(streams, layout, policy), settings=SETTINGS)
