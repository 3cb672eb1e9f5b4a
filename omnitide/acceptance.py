"""Whether a migration that a layout proposes is worth its copies.

Equal plans, histories and costs get equal answers. What a tile and a row cost is asked once, when
there is a plan to judge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from omnitide.config import MigrationConfig
from omnitide.costs import Costs
from omnitide.history import History
from omnitide.migration import MigrationPlan
from omnitide.pages import PAGE_SIZE
from omnitide.step import PREFILL_STEP
from omnitide.units import UnitKind

RECENT = 32
"""Units from which the coming ones are estimated."""


class Acceptance(Protocol):
    """A rule for migrations."""

    @property
    def name(self) -> str:
        """What it is chosen by."""
        ...

    @property
    def costs(self) -> Costs | None:
        """The costs in use; None if it has none, or has not needed them yet."""
        ...

    def price(self) -> Costs | None:
        """The costs that it judges by, asked for now if need be; None if it needs none."""
        ...

    def accepts(self, plan: MigrationPlan, history: History) -> bool:
        """Whether to carry out a plan made for this history, just after an eviction."""
        ...


class Free:
    """A rule without costs."""

    costs: Costs | None = None

    def price(self) -> Costs | None:
        """None are needed."""
        return None


class Always(Free):
    """The layout has its own reasons."""

    name = "layout"

    def accepts(self, plan: MigrationPlan, history: History) -> bool:
        """Yes."""
        return True


class Tiles(Free):
    """Fewer active pages or subblocks: for kernels that skip tiles (paper section 6.2)."""

    name = "tiles"

    def accepts(self, plan: MigrationPlan, history: History) -> bool:
        """Whether either count falls."""
        return plan.after.is_smaller(plan.before)


class Span(Free):
    """A shorter span: for kernels that walk it (paper section 6.2).

    Attributes:
        pages: Least number of pages.
    """

    name = "span"

    def __init__(self, pages: int) -> None:
        self.pages = pages

    def accepts(self, plan: MigrationPlan, history: History) -> bool:
        """Whether the page-rounded span becomes shorter by at least `pages`."""
        saved = plan.before.physical_span - plan.after.physical_span
        return saved >= self.pages * PAGE_SIZE


class ByCost:
    """The attention time saved until the next expected eviction exceeds the copy time.

    Attributes:
        costs: Those in use; None until a plan had to be judged.
    """

    name = "cost"

    def __init__(self, ask: Callable[[], Costs], high_watermark: int) -> None:
        """Judge by what `ask` gives, which is called once, for the first plan that saves something.

        Args:
            ask: Gives the costs.
            high_watermark: Tokens at which the next eviction comes.
        """
        self._ask, self._high_watermark = ask, high_watermark
        self.costs: Costs | None = None

    def price(self) -> Costs:
        """The costs."""
        if self.costs is None:
            self.costs = self._ask()
        return self.costs

    def accepts(self, plan: MigrationPlan, history: History) -> bool:
        """Whether saved subblocks x passes x tile cost > rows x row cost."""
        saved = plan.before.active_subblocks - plan.after.active_subblocks
        if saved <= 0:
            return False
        costs = self.price()
        passes = expected_passes(history, self._high_watermark)
        return saved * passes * costs.tile_us > plan.rows_moved * costs.row_us


def passes_of(kind: UnitKind, tokens: int) -> int:
    """Forward passes of a unit: a reply takes one a token, any other one a piece of its prefill."""
    return tokens if kind == UnitKind.REPLY else -(-tokens // PREFILL_STEP)


def expected_passes(history: History, high_watermark: int) -> float:
    """Forward passes until the next eviction, if the coming units are like the recent ones.

    The unit that passes the watermark comes before the eviction, so there is at least one pass.
    """
    recent = [u for u in history.units if u.kind != UnitKind.SYSTEM and u.length][-RECENT:]
    tokens = sum(u.length for u in recent)
    if tokens == 0:
        return 1.0
    passes = sum(passes_of(u.kind, u.length) for u in recent)
    left = max(high_watermark - len(history), 0)
    return max(1.0, left * passes / tokens)


def make_acceptance(
    config: MigrationConfig,
    own: str | None,
    high_watermark: int,
    measure: Callable[[], Costs],
) -> Acceptance:
    """The rule for a layout.

    Args:
        config: Names it, and may give its costs.
        own: The layout's own rule, where the configuration names none; None if nothing ever moves.
        high_watermark: Tokens at which the next eviction comes.
        measure: Called only if its costs are needed.
    """
    rule = config.accept or own
    if own is None or rule == Always.name:
        return Always()
    if rule == Tiles.name:
        return Tiles()
    if rule == Span.name:
        return Span(config.span_pages)
    given = config.costs
    return ByCost(measure if given is None else lambda: given, high_watermark)
