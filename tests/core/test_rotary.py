"""Rotary tables against rotation by complex numbers in float64, one pair at a time."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest

from omnitide.errors import ConfigError
from omnitide.rotary import MOST_KEPT, Rotary, RotaryTables


def turn(head: np.ndarray, position: list[int], rotary: Rotary) -> list[float]:
    """A head rotated at a position: pair (i, i + d / 2) is one complex number."""
    pairs = rotary.head_dim // 2
    axes = [0] * pairs
    if rotary.sections is not None:
        axes = [axis for axis, count in enumerate(rotary.sections) for _ in range(count)]
    turned = [
        complex(head[i], head[i + pairs])
        * cmath.exp(1j * position[axes[i]] * rotary.theta ** (-2 * i / rotary.head_dim))
        for i in range(pairs)
    ]
    return [z.real for z in turned] + [z.imag for z in turned]


@pytest.mark.parametrize(
    "rotary",
    [
        Rotary(128, 1e6, (16, 24, 24)),
        Rotary(128, 1e6),
        Rotary(64, 1e4, (16, 16, 0)),
        Rotary(80, 1e4),
        Rotary(8, 10.0, (0, 1, 3)),
    ],
)
@pytest.mark.parametrize("reach", [1, 1000, 1_000_000])
def test_tables_turn_heads(rotary: Rotary, reach: int) -> None:
    rng = np.random.default_rng(reach)
    positions = rng.integers(0, reach + 1, (5, 3)).astype(np.int32)
    positions[0] = reach
    heads = rng.standard_normal((5, rotary.head_dim))
    cos, sin = rotary.tables(positions)
    assert cos.dtype == sin.dtype == np.float32
    assert cos.shape == sin.shape == (5, rotary.head_dim // 2)

    first, second = np.split(heads, 2, axis=1)
    ours = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1)
    expected = [turn(h, p.tolist(), rotary) for h, p in zip(heads, positions, strict=True)]
    # Rounding of the tables to float32 is all that may differ, at any position.
    np.testing.assert_allclose(ours, expected, atol=1e-6)


@pytest.mark.parametrize(
    "rotary", [Rotary(128, 1e6, (16, 24, 24)), Rotary(80, 1e4), Rotary(8, 10.0, (0, 1, 3))]
)
def test_tables_that_are_kept_turn_heads_too(rotary: Rotary) -> None:
    rng = np.random.default_rng(5)
    tables = RotaryTables(rotary)
    # Few, then more than are kept at first, then too many to keep, then few again.
    for reach in (3, 5_000, 2 * MOST_KEPT, 40):
        positions = rng.integers(0, reach + 1, (6, 3)).astype(np.int32)
        positions[0, 1] = reach
        heads = rng.standard_normal((6, rotary.head_dim))
        found = tables.look_up(positions)
        assert found.dtype == np.float32
        cos, sin = np.split(found, 2, axis=1)
        first, second = np.split(heads, 2, axis=1)
        ours = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=1)
        expected = [turn(h, p.tolist(), rotary) for h, p in zip(heads, positions, strict=True)]
        np.testing.assert_allclose(ours, expected, atol=1e-6)
    assert tables.look_up(np.empty((0, 3), np.int32)).shape == (0, rotary.head_dim)


def test_sections_split_the_pairs_by_axis() -> None:
    rotary = Rotary(12, 1e4, (1, 2, 3))
    _, sin = rotary.tables(np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], np.int32))
    assert (sin != 0).tolist() == [
        [True, False, False, False, False, False],
        [False, True, True, False, False, False],
        [False, False, False, True, True, True],
    ]


def test_scores_depend_on_distance_alone() -> None:
    rotary = Rotary(64, 1e6)
    query, key = np.random.default_rng(3).standard_normal((2, 64))

    def score(a: int, b: int) -> float:
        return math.fsum(
            x * y
            for x, y in zip(turn(query, [a] * 3, rotary), turn(key, [b] * 3, rotary), strict=True)
        )

    cos, sin = rotary.tables(np.array([[1_000_000] * 3, [999_983] * 3], np.int32))
    (q0, q1), (k0, k1) = np.split(query, 2), np.split(key, 2)
    ours = (q0 * cos[0] - q1 * sin[0]) @ (k0 * cos[1] - k1 * sin[1])
    ours += (q1 * cos[0] + q0 * sin[0]) @ (k1 * cos[1] + k0 * sin[1])
    assert ours == pytest.approx(score(17, 0), abs=1e-5)


@pytest.mark.parametrize("head_dim", [0, -2, 7])
def test_an_odd_head_is_refused(head_dim: int) -> None:
    message = rf"\[rotary\] head_dim must be even and positive, got {head_dim}"
    with pytest.raises(ConfigError, match=message):
        Rotary(head_dim)


@pytest.mark.parametrize("sections", [(16, 24, 23), (64, 64, 64)])
def test_sections_must_add_up(sections: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match=r"\[rotary\] sections .* must add up to .* = 64"):
        Rotary(128, 1e6, sections)
