"""The simulator: a session's history and page table without the model and its pools.

Invariant: units are placed, cut and moved by the functions that `BoundedCache` uses, in the order
in which a session uses them; history and table are compared after each step.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from omnitide.acceptance import Acceptance, Always, make_acceptance
from omnitide.capacity import Capacity, plan_capacity
from omnitide.config import MigrationConfig, RetentionConfig
from omnitide.errors import CapacityError, ConfigError
from omnitide.history import History
from omnitide.layouts import Layout, make_layout
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE, PageTable, Slots
from omnitide.paging import batches, delete, doubled_pages, due_migration, due_plan, place, settled
from omnitide.policies import POLICIES, make_policy
from omnitide.retention import Mask, RetentionPolicy
from omnitide.simulation.costs import Costs
from omnitide.simulation.result import Content, SimulationResult, Timeline
from omnitide.simulation.stream import Stream
from omnitide.step import PREFILL_STEP
from omnitide.units import Unit, UnitKind

MOST_TOKENS = 1 << 24
"""Slots of the largest table that is simulated; beyond it each update takes a second."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One eviction: cells deleted and kept, rows moved, rows that eager would have moved, ms."""

    deleted: int = 0
    moved: int = 0
    eager: int = 0
    ms: float = 0.0


class Simulator:
    """Follows a stream unit by unit.

    Attributes:
        history, table: The present state; replaced by each step, never changed in place.
    """

    def __init__(
        self,
        policy: RetentionPolicy,
        layout: Layout,
        config: RetentionConfig,
        capacity: Capacity,
        acceptance: Acceptance | None = None,
    ) -> None:
        """Begin with an empty history.

        Raises:
            ConfigError: The capacity is more than the simulator holds.
        """
        if capacity.pages * PAGE_SIZE > MOST_TOKENS:
            raise ConfigError(
                f"[simulate] the watermarks need {capacity.pages * PAGE_SIZE:,} slots, at most "
                f"{MOST_TOKENS:,} are simulated; lower --high-watermark or --max-kv-size"
            )
        self.policy, self.layout, self.config, self.capacity = policy, layout, config, capacity
        self.acceptance = acceptance or Always()
        self.history, self.table = History(), PageTable(capacity.pages)
        # Layouts for comparison that never fill a hole, and so outgrow any bound.
        self._loses_holes = bool(getattr(layout, "simulated", False))

    def append(self, unit: Unit) -> None:
        """Place a unit.

        A reply is placed in one piece, where a session places it token by token.

        Raises:
            CapacityError: It does not fit.
        """
        count = len(unit)
        if unit.kind != UnitKind.SYSTEM:
            is_reply = unit.kind == UnitKind.REPLY
            self.capacity.check_fits(f"{unit.kind} unit", count, len(self.history), is_reply)
        table = self.table.copy()
        if self.capacity.tokens is None:
            self._grow(table, doubled_pages(table, count))
        slots: Slots | None = None
        while slots is None:
            try:
                slots = place(table, unit, self.history, self.policy, self.layout, self.config)
            except CapacityError:
                if not self._loses_holes:
                    raise
                self._grow(table, 2 * table.num_pages)
        self.history = self.history.append(unit, slots)
        self.table = table

    def _grow(self, table: PageTable, pages: int) -> None:
        if pages * PAGE_SIZE > MOST_TOKENS:
            raise CapacityError(
                f"[simulate] {self.policy.name}, {self.layout.name} needs {pages * PAGE_SIZE:,} "
                f"slots, at most {MOST_TOKENS:,} are simulated; lower --units"
            )
        table.grow(pages)

    def evict(self) -> Cut | None:
        """Cut the history if it is due; None if it is not."""
        started = clock.perf_counter()
        plan = due_plan(self.policy, self.history, self.config)
        if plan is None:
            return None
        history, table = delete(self.history, self.table, plan)
        migration = due_migration(history, table, self.layout, self.acceptance)
        if migration is not None:
            *_, last = batches(history, table, migration)  # there is nothing to copy
            history, table = last.history, last.table
        self.history, self.table = history, settled(history, table, self.layout)
        ms = (clock.perf_counter() - started) * 1e3
        moved = migration.rows_moved if migration else 0
        return Cut(plan.num_deleted, moved, eager_rows(plan.keep), ms)

    def check_integrity(self) -> None:
        """Compare history and table.

        Raises:
            IntegrityError: They disagree.
        """
        self.table.check_integrity(self.history.cells)


def eager_rows(keep: Mask) -> int:
    """Rows that repacking all survivors in logical order moves, were all packed before.

    Cells before the first hole stay where they are, all others move up.
    """
    return int(np.count_nonzero(keep[int(np.argmin(keep)) :]))


def simulate(
    stream: Stream,
    policy: str = "omnipick",
    layout: str = "predictive",
    config: RetentionConfig | None = None,
    *,
    max_kv_size: int | None = None,
    costs: Costs | None = None,
    migration: MigrationConfig | None = None,
    timeline: Timeline | None = None,
    progress: Callable[[int], None] | None = None,
) -> SimulationResult:
    """Let one policy and one layout follow a stream.

    Args:
        stream: Units.
        policy, layout: Names of `POLICIES` and `LAYOUTS`.
        config: Watermarks and budgets; the defaults if None.
        max_kv_size: Tokens that the pools may hold; lowers the watermarks.
        costs: For the estimates of time, and for the rule "cost".
        migration: The rule by which moves are accepted; the layout's own if None.
        timeline: Filled with the course of it, which takes time of its own.
        progress: Called with the number of units that are done.

    Raises:
        ConfigError: An unknown name, watermarks that can't be met, or a policy that needs the
            attention of a model.
        CapacityError: A unit does not fit.
    """
    chosen = make_policy(policy)
    if needs_model(policy):
        raise ConfigError(
            f"[simulate] policy {policy} decides by the attention of a model, which a simulation "
            "has not; take another, or measure it with omnitide generate"
        )
    config, capacity = plan_capacity(
        config or RetentionConfig(),
        chosen.bounded,
        stream.prefix,
        stream.largest_unit,
        stream.reply,
        max_kv_size,
    )
    paid, rule = costs or Costs(), migration or MigrationConfig()
    run = Simulator(
        chosen,
        make_layout(layout, rule.span_pages),
        config,
        capacity,
        make_acceptance(rule, config.high_watermark, lambda: paid),
    )
    course = _Course(run, paid, timeline)
    for done, unit in enumerate(stream.units()):
        course.step(unit)
        if progress is not None:
            progress(done)
    return course.result(stream.name)


def needs_model(policy: str) -> bool:
    """Whether a policy decides by attention, which a simulation has not."""
    return POLICIES[policy].needs_mass


class _Course:
    """Sums over a stream."""

    def __init__(self, run: Simulator, costs: Costs, timeline: Timeline | None) -> None:
        self.run, self.costs, self.timeline = run, costs, timeline
        self.cuts: list[Cut] = []
        self.units = self.live = self.subblocks = self.tiles_read = 0
        self.peak_live = self.peak_pages = self.peak_span = 0

    def step(self, unit: Unit) -> None:
        run = self.run
        # Due only after a question that no reply followed.
        late = Cut() if unit.kind == UnitKind.REPLY else self._cut()
        run.append(unit)
        # Between append and eviction everything is at its most.
        self.peak_live = max(self.peak_live, len(run.history))
        self.peak_pages = max(self.peak_pages, run.table.active_pages)
        self.peak_span = max(self.peak_span, run.table.physical_span)
        self.tiles_read += run.table.active_subblocks * _passes(unit)
        # What is asked about must be seen: the cut waits for the reply.
        waits = unit.kind in (UnitKind.SYSTEM, UnitKind.PROMPT)
        done = Cut() if waits else self._cut()
        if run.policy.bounded or unit.kind == UnitKind.SYSTEM:
            run.check_integrity()
        self.units += 1
        self.live += len(run.history)
        self.subblocks += run.table.active_subblocks
        if self.timeline is not None:
            deleted, moved = late.deleted + done.deleted, late.moved + done.moved
            self.timeline.add(run.history, run.table, deleted, moved)

    def _cut(self) -> Cut:
        cut = self.run.evict()
        if cut is None:
            return Cut()
        self.cuts.append(cut)
        return cut

    def result(self, name: str) -> SimulationResult:
        run, cuts = self.run, self.cuts
        run.check_integrity()
        left = [u for u in run.history.units if u.kind != UnitKind.SYSTEM]
        in_unit = run.history.cells["unit"]
        ids = [u.id for u in left]
        lengths = np.searchsorted(in_unit, ids, "right") - np.searchsorted(in_unit, ids, "left")
        kept = Timeline()
        kept.add(run.history, run.table, 0, 0)
        by_content = kept.kept[0]
        moved, eager = sum(c.moved for c in cuts), sum(c.eager for c in cuts)
        times = [c.ms for c in cuts] or [0.0]
        live, subblocks = len(run.history), run.table.active_subblocks
        return SimulationResult(
            shape=name,
            policy=run.policy.name,
            layout=run.layout.name,
            live_cells=live,
            active_pages=run.table.active_pages,
            active_subblocks=subblocks,
            active_subblock_ratio=_ratio(self.subblocks * SUBBLOCK_SIZE, self.live),
            physical_span=run.table.physical_span,
            peak_span=self.peak_span,
            rows_moved=moved,
            rows_moved_share_of_eager=_ratio(moved, eager),
            evictions=len(cuts),
            plan_ms_p50=round(float(np.median(times)), 4),
            plan_ms_max=round(max(times), 4),
            units=self.units,
            tokens_seen=run.history.tokens_seen,
            tokens_evicted=sum(c.deleted for c in cuts),
            mean_live_cells=_ratio(self.live, self.units),
            peak_live_cells=self.peak_live,
            end_subblock_ratio=_ratio(subblocks * SUBBLOCK_SIZE, live),
            peak_pages=self.peak_pages,
            capacity_pages=run.table.num_pages,
            kept_boundary=int(by_content[Content.BOUNDARY]),
            kept_text=int(by_content[Content.TEXT]),
            kept_audio=int(by_content[Content.AUDIO]),
            kept_image=int(by_content[Content.IMAGE]),
            kept_units=len(left),
            whole_units=int(np.count_nonzero(lengths == [u.length for u in left])),
            high_watermark=run.config.high_watermark,
            low_watermark=run.config.low_watermark,
            attention_ms=round(self.tiles_read * self.costs.tile_us / 1e3, 3),
            copy_ms=round(moved * self.costs.row_us / 1e3, 3),
        )


def _passes(unit: Unit) -> int:
    """Forward passes: a reply takes one a token, anything else one a piece of its prefill."""
    return len(unit) if unit.kind == UnitKind.REPLY else -(-len(unit) // PREFILL_STEP)


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
