"""Acceptance rules against hand arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from omnitide.acceptance import Always, ByCost, Span, Tiles, expected_passes, make_acceptance
from omnitide.config import MigrationConfig
from omnitide.costs import Costs
from omnitide.errors import ConfigError
from omnitide.history import History
from omnitide.migration import Footprint, MigrationPlan
from omnitide.units import UnitBuilder, UnitKind


def plan(rows: int, before: tuple[int, int, int], after: tuple[int, int, int]) -> MigrationPlan:
    moves = tuple(range(rows))
    return MigrationPlan(
        tuple(1000 + m for m in moves), moves, Footprint(*before), Footprint(*after)
    )


def history(*units: tuple[UnitKind, int]) -> History:
    made, slot = History(), 0
    for kind, count in units:
        unit = UnitBuilder().text(np.arange(count)).build(kind)
        made = made.append(unit, slot + np.arange(count))
        slot += count
    return made


STREAM = history((UnitKind.SYSTEM, 100), (UnitKind.MEDIA, 600), (UnitKind.REPLY, 40))
"""640 tokens in 2 + 40 passes, the prefix apart; 740 cells."""


def test_passes_until_the_next_eviction() -> None:
    assert expected_passes(STREAM, 1380) == pytest.approx(640 * 42 / 640)
    assert expected_passes(STREAM, 1060) == pytest.approx(320 * 42 / 640)
    assert expected_passes(STREAM, 740) == 1.0, "the unit that passes it comes first"
    assert expected_passes(history((UnitKind.SYSTEM, 5)), 100) == 1.0


@pytest.mark.parametrize(
    ("rows", "tile_us", "row_us", "accepted"),
    [
        (84, 1.0, 1.0, False),  # 2 tiles x 42 passes x 1 us = 84 us, and 84 rows x 1 us
        (83, 1.0, 1.0, True),
        (84, 1.01, 1.0, True),
        (84, 1.0, 1.01, False),
        (10, 0.0, 0.0, False),
    ],
)
def test_by_cost(rows: int, tile_us: float, row_us: float, accepted: bool) -> None:
    rule = ByCost(lambda: Costs(tile_us, row_us), 1380)
    assert rule.accepts(plan(rows, (9, 12, 640), (9, 10, 640)), STREAM) is accepted


def test_costs_are_asked_only_for_plans_that_save_something() -> None:
    def never() -> Costs:
        raise AssertionError("asked for costs")

    rule = ByCost(never, 1380)
    assert not rule.accepts(plan(3, (9, 10, 640), (8, 10, 576)), STREAM)


@pytest.mark.parametrize(
    ("after", "tiles", "span_of_two"),
    [
        ((9, 12, 640), False, False),
        ((8, 12, 640), True, False),
        ((9, 11, 576), True, False),
        ((9, 12, 512), False, True),
        ((10, 13, 448), False, True),
    ],
)
def test_the_rules_of_the_paper(
    after: tuple[int, int, int], tiles: bool, span_of_two: bool
) -> None:
    made = plan(5, (9, 12, 640), after)
    assert Tiles().accepts(made, STREAM) is tiles
    assert Span(2).accepts(made, STREAM) is span_of_two


def test_costs_are_asked_once_and_shown_once_asked() -> None:
    asked: list[Costs] = []

    def ask() -> Costs:
        asked.append(Costs(1.0, 1.0))
        return asked[-1]

    rule = ByCost(ask, 1380)
    assert rule.costs is None
    for _ in range(3):
        assert rule.accepts(plan(83, (9, 12, 640), (9, 10, 640)), STREAM)
    assert asked == [rule.costs] == [rule.price()]
    assert Tiles().costs is Tiles().price() is None


@pytest.mark.parametrize("own", ["cost", "layout"])
@pytest.mark.parametrize("name", ["layout", "tiles", "span", "cost"])
def test_rules_by_name(name: str, own: str) -> None:
    def never() -> Costs:
        raise AssertionError("measured before there was a plan")

    rule = make_acceptance(MigrationConfig(name, span_pages=3), own, 1380, never)
    assert rule.name == name
    if isinstance(rule, Span):
        assert rule.pages == 3


@pytest.mark.parametrize(("own", "kind"), [("cost", ByCost), ("layout", Always), (None, Always)])
def test_without_a_name_the_rule_is_the_layouts_own(own: str | None, kind: type) -> None:
    rule = make_acceptance(MigrationConfig(), own, 1380, lambda: Costs(1.0, 1.0))
    assert type(rule) is kind


@pytest.mark.parametrize("accept", ["cost", None])
def test_given_costs_are_not_measured(accept: str | None) -> None:
    def never() -> Costs:
        raise AssertionError("measured")

    config = MigrationConfig(accept, tile_cost_us=1, row_cost_us=1)
    rule = make_acceptance(config, "cost", 1380, never)
    assert rule.accepts(plan(83, (9, 12, 640), (9, 10, 640)), STREAM)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accept": "best"}, "--accept must be one of cost, tiles, span, layout; got 'best'"),
        ({"span_pages": 0}, "--span-pages must be at least 1, got 0"),
        (
            {"accept": "cost", "tile_cost_us": -1.0, "row_cost_us": 1.0},
            "--tile-cost-us must be at least 0",
        ),
        (
            {"accept": "cost", "tile_cost_us": float("nan"), "row_cost_us": 1.0},
            "--tile-cost-us .* got nan",
        ),
        (
            {"accept": "cost", "tile_cost_us": float("inf"), "row_cost_us": 1.0},
            "below 1e9, got inf",
        ),
        (
            {"accept": "cost", "row_cost_us": 1.0},
            "--row-cost-us needs the other cost beside it; give --tile-cost-us",
        ),
        (
            {"accept": "tiles", "tile_cost_us": 1.0, "row_cost_us": 1.0},
            "costs are read by --accept cost, not 'tiles'",
        ),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MigrationConfig(**options)  # type: ignore[arg-type]
