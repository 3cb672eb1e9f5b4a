"""Histories without a model: as long as asked for, true to their tables, within watermarks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest

from omnitide.bench.left import after, just_before_a_cut, media, scaled, steady
from omnitide.bench.settings import Settings
from omnitide.config import RetentionConfig
from omnitide.errors import ConfigError
from omnitide.layouts import LAYOUTS
from omnitide.policies import POLICIES
from omnitide.simulation.shapes import SHAPES
from omnitide.units import Modality, Role

Make = Callable[..., Settings]

SERVED = [name for name, layout in LAYOUTS.items() if not layout.simulated]
STRUCTURAL = [name for name, policy in POLICIES.items() if not policy.needs_mass]


@pytest.mark.parametrize("policy", STRUCTURAL)
@pytest.mark.parametrize("layout", SERVED)
def test_a_history_has_exactly_the_cells_asked_for(
    settings: Make, policy: str, layout: str
) -> None:
    left = just_before_a_cut(settings(stream="audio"), policy, layout, 300)
    assert len(left.history) == 300
    left.table.check_integrity(left.history.cells)
    assert (left.policy, left.layout) == (policy, layout)
    assert left.config.high_watermark == 300
    # It has been cut, or never is.
    seen = left.history.tokens_seen
    assert seen > 400 if POLICIES[policy].bounded else seen < 400


@pytest.mark.parametrize("stream", SHAPES)
def test_every_stream_gets_there(settings: Make, stream: str) -> None:
    left = just_before_a_cut(settings(stream=stream), "omnipick", "predictive", 1500)
    assert len(left.history) == 1500


def test_a_history_shorter_than_the_prefix_is_refused(settings: Make) -> None:
    with pytest.raises(ConfigError, match=r"must be longer than the system prefix .* 43; raise"):
        just_before_a_cut(settings(), "omnipick", "predictive", 43)
    assert len(just_before_a_cut(settings(), "full", "predictive", 40).history) == 40


@pytest.mark.parametrize(("tokens", "seen"), [(64, 640), (100, 1000), (512, 1000), (3, 200)])
def test_a_full_history_has_all_that_was_seen(settings: Make, tokens: int, seen: int) -> None:
    left = after(settings(), "full", "predictive", tokens, seen)
    assert len(left.history) == left.history.tokens_seen == seen
    left.table.check_integrity(left.history.cells)


@pytest.mark.parametrize("policy", [p for p in STRUCTURAL if POLICIES[p].bounded])
def test_a_bounded_history_stops_with_the_last_whole_unit(settings: Make, policy: str) -> None:
    left = after(settings(), policy, "predictive", 64, 1000)
    # 43 tokens of prefix, then 14 units of 64.
    assert left.history.tokens_seen == 43 + 14 * 64
    assert 64 <= len(left.history) <= 300
    left.table.check_integrity(left.history.cells)


@pytest.mark.parametrize("tokens", [1, 2, 5, 6, 7, 15, 64, 512, 2304])
def test_a_media_unit_has_its_tokens(tokens: int) -> None:
    unit = media(tokens)
    assert len(unit) == tokens
    kinds = {m: int(np.count_nonzero(unit.cells["modality"] == m)) for m in Modality}
    if tokens >= 6:
        assert kinds[Modality.TEXT] == 4
        assert kinds[Modality.AUDIO] == max((tokens - 4) // 10, 1)
        assert set(unit.cells["role"][:2]) == {Role.BOUNDARY}
    # No two cells of the picture share a place.
    image = unit.cells["offset"][unit.cells["modality"] == Modality.IMAGE]
    assert len(np.unique(image, axis=0)) == len(image)


def test_a_steady_stream_begins_with_its_prefix(settings: Make) -> None:
    prefix, *units = islice(steady(settings(stream="minicpm-duplex"), 80), 4)
    assert len(prefix) == len(SHAPES["minicpm-duplex"].system())
    assert [len(unit) for unit in units] == [80, 80, 80]


def test_watermarks_are_scaled_in_proportion() -> None:
    made = scaled(RetentionConfig(2500, 1800, image_sink=3), 1000)
    assert (made.high_watermark, made.low_watermark, made.image_sink) == (1000, 720, 3)
    assert scaled(RetentionConfig(2500, 1), 2).low_watermark == 1
