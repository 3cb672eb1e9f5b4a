"""What an update does to history and table: place, plan, delete, relocate.

Plain integers only. The cache does this around its pools; the simulator does it without any.
"""

from __future__ import annotations

from collections.abc import Callable

from omnitide.config import RetentionConfig
from omnitide.history import History
from omnitide.layouts import Layout
from omnitide.migration import MigrationPlan
from omnitide.pages import PAGE_SIZE, PageTable, Slots
from omnitide.retention import Mass, RetentionPlan, RetentionPolicy, make_plan
from omnitide.units import Unit

Execute = Callable[[Slots, Slots], None]
"""Copies rows from source slots to destination slots."""


def place(
    table: PageTable, unit: Unit, policy: RetentionPolicy, layout: Layout, config: RetentionConfig
) -> Slots:
    """Take slots for the cells of a new unit by what the policy expects of them. Changes `table`.

    Raises:
        CapacityError: Too few slots are free; nothing was taken.
    """
    return layout.place(table, policy.survivors(unit.cells, config), unit.kind)


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
    return history.keep(plan.keep), table


def relocate(
    history: History, table: PageTable, layout: Layout, execute: Execute
) -> tuple[History, PageTable, MigrationPlan | None]:
    """History and table after the layout's migration, if it wants one, and its re-classing.

    Both are new; those that were given stay as they were.

    Args:
        history, table: After `delete`.
        layout: Plans the moves.
        execute: Called with checked moves, before anything that is returned refers to them.
    """
    migration = layout.plan(table, history)
    table = table.copy()
    if migration is not None:
        migration.validate(table)
        source, destination = migration.arrays()
        execute(source, destination)
        table.move(source, destination)
        history = history.move(source, destination)
    layout.settle(table, history)
    return history, table, migration


def doubled_pages(table: PageTable, count: int) -> int:
    """Pages of an unbounded table once `count` more slots must be free: as now, or doubled."""
    if table.num_free >= count:
        return table.num_pages
    return table.num_pages + max(table.num_pages, -(-count // PAGE_SIZE))
