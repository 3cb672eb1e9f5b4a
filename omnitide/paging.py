"""What an update does to history and table: place, plan, delete, relocate.

Plain integers only. The cache does this around its pools; the simulator does it without any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from omnitide.acceptance import Acceptance
from omnitide.config import RetentionConfig
from omnitide.history import History
from omnitide.layouts import Layout
from omnitide.migration import MigrationPlan, rounds
from omnitide.pages import PAGE_SIZE, PageTable, Slots
from omnitide.retention import Mass, RetentionPlan, RetentionPolicy, foresee, make_plan
from omnitide.units import Unit


def place(
    table: PageTable,
    unit: Unit,
    history: History,
    policy: RetentionPolicy,
    layout: Layout,
    config: RetentionConfig,
) -> Slots:
    """Take slots for the cells of a new unit by what the policy expects of them. Changes `table`.

    Raises:
        CapacityError: Too few slots are free; nothing was taken.
    """
    return layout.place(table, foresee(policy, unit, history, config), unit.kind)


def due_plan(
    policy: RetentionPolicy,
    history: History,
    config: RetentionConfig,
    mass: Mass | None = None,
) -> RetentionPlan | None:
    """What to delete now. None if the history is short enough or nothing would go.

    Changes nothing. `mass` is what a policy that needs it decides by, shape (num_cells,).
    """
    if len(history) <= config.high_watermark or not policy.bounded:
        return None
    plan = make_plan(policy, history, config, mass)
    return plan if plan.num_deleted else None


def delete(history: History, table: PageTable, plan: RetentionPlan) -> tuple[History, PageTable]:
    """History and table without the cells that a plan deletes; the others stay where they lie.

    Both are new; those that were given stay as they were.
    """
    table = table.copy()
    table.release(history.cells["slot"][~plan.keep])
    return plan.after, table


def due_migration(
    history: History, table: PageTable, layout: Layout, acceptance: Acceptance
) -> MigrationPlan | None:
    """What the layout wants to move after `delete`, if the rule accepts it. Changes nothing."""
    migration = layout.plan(table, history)
    if migration is None or not acceptance.accepts(migration, history):
        return None
    migration.validate(table)
    return migration


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Moves of a migration that write to free slots only, with history and table after them."""

    source: Slots
    destination: Slots
    history: History
    table: PageTable


def batches(history: History, table: PageTable, migration: MigrationPlan) -> Iterator[Batch]:
    """A migration in batches; each is to be copied and committed before the next one."""
    for source, destination in rounds(migration, table):
        table = table.copy()
        table.move(source, destination)
        history = history.move(source, destination)
        yield Batch(source, destination, history, table)


def settled(history: History, table: PageTable, layout: Layout) -> PageTable:
    """The table with its pages re-classed after an eviction and its migration."""
    table = table.copy()
    layout.settle(table, history)
    return table


def doubled_pages(table: PageTable, count: int) -> int:
    """Pages of an unbounded table once `count` more slots must be free: as now, or doubled."""
    if table.num_free >= count:
        return table.num_pages
    return table.num_pages + max(table.num_pages, -(-count // PAGE_SIZE))
