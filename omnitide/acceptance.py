"""Whether a migration that a layout proposes is worth its copies.

A rule is pure: equal plans and histories get equal answers. What a tile and a row cost comes from
`costs`, asked only when there is a plan to judge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from omnitide.config import MigrationConfig
from omnitide.history import History
from omnitide.migration import MigrationPlan
from omnitide.pages import PAGE_SIZE
from omnitide.step import PREFILL_STEP
from omnitide.units import UnitKind

RECENT = 32
"""Units from which the coming ones are estimated."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What attention and copies cost on a device.

    Attributes:
        tile_us: Microseconds that one active subblock adds to a forward pass of one query.
        row_us: Microseconds to copy K and V of one row in all layers.
    """

    tile_us: float
    row_us: float


class Acceptance(Protocol):
    """A rule for migrations."""

    @property
    def name(self) -> str:
        """What it is chosen by."""
        ...

    def accepts(self, plan: MigrationPlan, history: History) -> bool:
        """Whether to carry out a plan made for this history, just after an eviction."""
        ...


class Always:
    """The layout has its own reasons."""

    name = "layout"

    def accepts(self, plan: MigrationPlan, history: History) -> bool:
        """Yes."""
        return True


class Tiles:
    """Fewer active pages or subblocks: for kernels that skip tiles (paper section 6.2)."""

    name = "tiles"

    def accepts(self, plan: MigrationPlan, history: History) -> bool:
        """Whether either count falls."""
        return plan.after.is_smaller(plan.before)


@dataclass(frozen=True, slots=True)
class Span:
    """A shorter span: for kernels that walk it (paper section 6.2).

    Attributes:
        pages: Least number of pages.
    """

    pages: int
    name: str = "span"

    def accepts(self, plan: MigrationPlan, history: History) -> bool:
        """Whether the page-rounded span becomes shorter by at least `pages`."""
        saved = plan.before.physical_span - plan.after.physical_span
        return saved >= self.pages * PAGE_SIZE


@dataclass(frozen=True, slots=True)
class ByCost:
    """The attention time saved until the next expected eviction exceeds the copy time.

    Attributes:
        costs: Gives the costs; called for plans that save something only.
        high_watermark: Tokens at which the next eviction comes.
    """

    costs: Callable[[], Costs]
    high_watermark: int
    name: str = "cost"

    def accepts(self, plan: MigrationPlan, history: History) -> bool:
        """Whether saved subblocks x passes x tile cost > rows x row cost."""
        saved = plan.before.active_subblocks - plan.after.active_subblocks
        if saved <= 0:
            return False
        costs = self.costs()
        passes = expected_passes(history, self.high_watermark)
        return saved * passes * costs.tile_us > plan.rows_moved * costs.row_us


def expected_passes(history: History, high_watermark: int) -> float:
    """Forward passes until the next eviction, if the coming units are like the recent ones.

    A reply takes a pass a token, any other unit one for each `PREFILL_STEP` tokens begun. The unit
    that passes the watermark comes before the eviction, so there is at least one pass.
    """
    recent = [u for u in history.units if u.kind != UnitKind.SYSTEM and u.length][-RECENT:]
    tokens = sum(u.length for u in recent)
    if tokens == 0:
        return 1.0
    passes = sum(
        u.length if u.kind == UnitKind.REPLY else -(-u.length // PREFILL_STEP) for u in recent
    )
    left = max(high_watermark - len(history), 0)
    return max(1.0, left * passes / tokens)


def make_acceptance(
    config: MigrationConfig, high_watermark: int, measure: Callable[[], Costs]
) -> Acceptance:
    """The rule that a configuration names. `measure` is called only if its costs are needed."""
    if config.accept == "tiles":
        return Tiles()
    if config.accept == "span":
        return Span(config.span_pages)
    if config.accept == "cost":
        if config.tile_cost_us is not None and config.row_cost_us is not None:
            given = Costs(config.tile_cost_us, config.row_cost_us)
            return ByCost(lambda: given, high_watermark)
        return ByCost(measure, high_watermark)
    return Always()
