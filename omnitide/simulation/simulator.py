"""The simulator: a session's history and page table without the model and its pools.

Invariant: units are placed, cut and moved by the functions that `BoundedCache` uses, in the order
in which a session uses them; history and table are compared after each step.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from omnitide.acceptance import Acceptance, Always, make_acceptance, passes_of
from omnitide.capacity import Advice, Capacity, plan_capacity
from omnitide.config import MigrationConfig, RetentionConfig
from omnitide.costs import NOMINAL, Costs
from omnitide.errors import CapacityError, ConfigError
from omnitide.history import History
from omnitide.layouts import Layout, committed_pages, make_layout
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE, PageTable, Slots
from omnitide.paging import batches, delete, doubled_pages, due_migration, due_plan, place, settled
from omnitide.policies import POLICIES, make_policy
from omnitide.retention import Mask, RetentionPolicy
from omnitide.simulation.result import Content, SimulationResult, Timeline, count_contents
from omnitide.simulation.stream import Stream
from omnitide.units import Unit, UnitKind

MOST_TOKENS = 1 << 24
"""Slots of the largest table that is simulated; beyond it each update takes a second."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One eviction: cells deleted, rows moved, rows that eager would have moved, milliseconds."""

    deleted: int
    moved: int
    eager: int
    ms: float


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
            self._check_fits(unit)
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

    def _check_fits(self, unit: Unit) -> None:
        left = self.capacity.left(len(self.history), unit.kind == UnitKind.REPLY)
        if left is not None and len(unit) > left:
            more = "--high-watermark" if self.policy.bounded else "--max-kv-size"
            raise CapacityError(
                f"[simulate] a {unit.kind} unit has {len(unit):,} tokens, capacity leaves "
                f"{left:,}; raise {more} or lower --units"
            )

    def _grow(self, table: PageTable, pages: int) -> None:
        if pages * PAGE_SIZE > MOST_TOKENS:
            raise CapacityError(
                f"[simulate] {pages * PAGE_SIZE:,} slots are needed, at most {MOST_TOKENS:,} are "
                "simulated; lower --units"
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
        costs: For the estimates of time, and for the rule "cost"; those of `migration`, or
            `NOMINAL`, if None.
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
        Advice("", ""),  # prefix and units are given by the stream
    )
    rule = migration or MigrationConfig()
    paid = costs or rule.costs or NOMINAL
    placer = make_layout(layout, rule.span_pages)
    run = Simulator(
        chosen,
        placer,
        config,
        capacity,
        make_acceptance(rule, placer.accept, config.high_watermark, lambda: paid),
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
        self.milliseconds: list[float] = []  # of each cut
        self.evicted = self.moved = self.eager = 0
        self.units = self.live = self.subblocks = self.tiles_read = 0
        self.peak_live = self.peak_pages = self.peak_span = self.peak_memory = 0

    def step(self, unit: Unit) -> None:
        run = self.run
        if unit.kind != UnitKind.REPLY:
            self._cut()  # due only after a question that no reply followed
        run.append(unit)
        # Between append and eviction everything is at its most.
        self.peak_live = max(self.peak_live, len(run.history))
        self.peak_pages = max(self.peak_pages, run.table.active_pages)
        self.peak_span = max(self.peak_span, run.table.physical_span)
        self.peak_memory = max(self.peak_memory, committed_pages(run.layout, run.table))
        self.tiles_read += run.table.active_subblocks * passes_of(unit.kind, len(unit))
        # What is asked about must be seen: the cut waits for the reply.
        if unit.kind not in (UnitKind.SYSTEM, UnitKind.PROMPT):
            self._cut()
        if run.policy.bounded or unit.kind == UnitKind.SYSTEM:
            run.check_integrity()
        self.units += 1
        self.live += len(run.history)
        self.subblocks += run.table.active_subblocks
        if self.timeline is not None:
            self.timeline.add(run.history, run.table)

    def _cut(self) -> None:
        cut = self.run.evict()
        if cut is None:
            return
        self.milliseconds.append(cut.ms)
        self.evicted += cut.deleted
        self.moved += cut.moved
        self.eager += cut.eager
        if self.timeline is not None:
            self.timeline.add_map(self.units, self.run.history, self.run.table)

    def result(self, name: str) -> SimulationResult:
        run = self.run
        run.check_integrity()
        left = [u for u in run.history.units if u.kind != UnitKind.SYSTEM]
        in_unit = run.history.cells["unit"]
        ids = [u.id for u in left]
        lengths = np.searchsorted(in_unit, ids, "right") - np.searchsorted(in_unit, ids, "left")
        by_content = count_contents(run.history.cells)
        times = self.milliseconds or [0.0]
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
            rows_moved=self.moved,
            rows_moved_share_of_eager=_ratio(self.moved, self.eager),
            evictions=len(self.milliseconds),
            plan_ms_p50=round(float(np.median(times)), 4),
            plan_ms_max=round(max(times), 4),
            units=self.units,
            tokens_seen=run.history.tokens_seen,
            tokens_evicted=self.evicted,
            mean_live_cells=_ratio(self.live, self.units),
            peak_live_cells=self.peak_live,
            end_subblock_ratio=_ratio(subblocks * SUBBLOCK_SIZE, live),
            peak_pages=self.peak_pages,
            capacity_pages=run.table.num_pages,
            peak_memory_pages=self.peak_memory,
            kept_boundary=int(by_content[Content.BOUNDARY]),
            kept_text=int(by_content[Content.TEXT]),
            kept_audio=int(by_content[Content.AUDIO]),
            kept_image=int(by_content[Content.IMAGE]),
            kept_units=len(left),
            whole_units=int(np.count_nonzero(lengths == [u.length for u in left])),
            high_watermark=run.config.high_watermark if run.policy.bounded else None,
            low_watermark=run.config.low_watermark if run.policy.bounded else None,
            accept=None if run.layout.accept is None else run.acceptance.name,
            tile_cost_us=self.costs.tile_us,
            row_cost_us=self.costs.row_us,
            attention_ms=round(self.tiles_read * self.costs.tile_us / 1e3, 3),
            copy_ms=round(self.moved * self.costs.row_us / 1e3, 3),
        )


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
