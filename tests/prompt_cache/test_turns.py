"""The policy of turns and paragraphs: an example by hand, properties on random conversations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnitide.config import RetentionConfig
from omnitide.errors import ConfigError
from omnitide.history import History
from omnitide.mlx_lm.policies import TEXT_POLICIES, make_text_policy
from omnitide.mlx_lm.turns import HEAD_SHARE, Turns
from omnitide.retention import make_plan
from omnitide.units import Role, UnitBuilder, UnitKind

Sketch = tuple[UnitKind, int, int, int]
"""Kind of a unit, opening marks, words, closing marks."""

SYSTEM, PROMPT, REPLY = UnitKind.SYSTEM, UnitKind.PROMPT, UnitKind.REPLY


def history_of(sketches: list[Sketch]) -> History:
    history = History()
    for kind, opening, words, closing in sketches:
        builder = UnitBuilder()
        builder.text([1] * opening, Role.BOUNDARY).text([5] * words)
        unit = builder.text([2] * closing, Role.BOUNDARY).build(kind)
        first = len(history)
        history = history.append(unit, np.arange(first, first + len(unit), dtype=np.int32))
    return history


def left(history: History) -> list[tuple[int, int, int]]:
    """Of each unit that has cells: its id, its marks and its words."""
    out = []
    for number in np.unique(history.cells["unit"]):
        cells = history.cells[history.cells["unit"] == number]
        marks = int(np.count_nonzero(cells["role"] == Role.BOUNDARY))
        out.append((int(number), marks, len(cells) - marks))
    return out


def kept(history: History, **options: Any) -> History:
    config = RetentionConfig(high_watermark=10_000, **options)
    return make_plan(Turns(), history, config).after


TALK: list[Sketch] = [
    (SYSTEM, 3, 10, 2),  # 0
    (PROMPT, 3, 20, 0),  # 1: a turn of three paragraphs
    (PROMPT, 0, 30, 0),  # 2
    (PROMPT, 0, 40, 2),  # 3
    (REPLY, 3, 25, 2),  # 4
    (PROMPT, 3, 10, 2),  # 5
    (REPLY, 3, 30, 2),  # 6
]


@pytest.mark.parametrize(
    ("low", "wanted"),
    [
        # 190 tokens. The first paragraph (20 words) is within the budget.
        (190, [(0, 5, 10), (1, 3, 20), (2, 0, 30), (3, 2, 40), (4, 5, 25), (5, 5, 10), (6, 5, 30)]),
        # One token too many: the next paragraph goes, its turn keeps its marks.
        (189, [(0, 5, 10), (1, 3, 20), (3, 2, 40), (4, 5, 25), (5, 5, 10), (6, 5, 30)]),
        (159, [(0, 5, 10), (1, 3, 20), (3, 2, 0), (4, 5, 25), (5, 5, 10), (6, 5, 30)]),
        # A whole turn goes with its marks.
        (119, [(0, 5, 10), (1, 3, 20), (3, 2, 0), (5, 5, 10), (6, 5, 30)]),
        # The newest stays, and the first words as far as a quarter of the low watermark reaches.
        (20, [(0, 5, 10), (1, 3, 5), (3, 2, 0), (6, 5, 30)]),
    ],
)
def test_paragraphs_leave_oldest_first(low: int, wanted: list[tuple[int, int, int]]) -> None:
    assert left(kept(history_of(TALK), low_watermark=low)) == wanted


def test_without_a_budget_the_first_turn_goes_like_the_others() -> None:
    after = kept(history_of(TALK), low_watermark=100, text_budget=0)
    assert left(after) == [(0, 5, 10), (4, 5, 25), (5, 5, 10), (6, 5, 30)]


UNITS = st.tuples(
    st.sampled_from([PROMPT, REPLY]), st.integers(0, 3), st.integers(0, 30), st.integers(0, 2)
).filter(lambda s: sum(s[1:]) > 0)


@settings(max_examples=120, deadline=None)
@given(
    units=st.lists(UNITS, min_size=1, max_size=20),
    system=st.integers(0, 10),
    low=st.integers(12, 300),
    budget=st.integers(0, 80),
)
def test_what_stays_reads_as_a_conversation(
    units: list[Sketch], system: int, low: int, budget: int
) -> None:
    sketches: list[Sketch] = [(SYSTEM, 2, system, 1)] if system else []
    sketches += [(PROMPT, 1, units[0][2], units[0][3]), *units[1:]]
    history = history_of(sketches)
    before = {number: (marks, words) for number, marks, words in left(history)}
    after = kept(history, low_watermark=low, text_budget=budget)
    now = {number: (marks, words) for number, marks, words in left(after)}
    newest = len(sketches) - 1
    assert now[newest] == before[newest]
    if system:
        assert now[0] == before[0]

    # The turn of each unit: one that begins with a mark opens it.
    turns = np.cumsum([s[1] > 0 or s[2] == 0 for s in sketches])
    for turn in set(turns):
        inside = [i for i in range(len(sketches)) if turns[i] == turn]
        words = sum(now.get(i, (0, 0))[1] for i in inside)
        had = sum(before[i][1] for i in inside)
        for i in inside:
            if words:
                assert now.get(i, (0, 0))[0] == before[i][0]  # all its marks
            elif not had:
                assert now.get(i, before[i]) == before[i]
            elif i != newest and sketches[i][0] != SYSTEM:
                assert i not in now

    # A paragraph is whole or gone, but for the first, and none left before an older one.
    whole = [now.get(i, (0, 0))[1] == before[i][1] for i in range(len(sketches))]
    spoken = [i for i in range(len(sketches)) if i >= bool(system) and before[i][1]]
    torn = [i for i, w in enumerate(whole) if not w and now.get(i, (0, 0))[1]]
    assert torn in ([], spoken[:1])
    head = min(budget, low // HEAD_SHARE)
    first = [i for i in range(int(bool(system)), newest) if not whole[i]]
    if first:
        paragraphs = [before[i] for i in range(int(bool(system)), first[0]) if before[i][1]]
        ahead = sum(words for _, words in paragraphs)
        assert ahead <= head
        gone = [
            i for i in range(first[0] + 1, newest) if before[i][1] and not now.get(i, (0, 0))[1]
        ]
        assert all(now.get(i, (0, 0))[1] == 0 for i in range(first[0] + 1, max(gone, default=0)))
    fixed = (sum(before[0]) if system else 0) + head + sum(before[newest])
    marks = sum(m for i, (m, _) in now.items() if i != newest)  # of turns that have words left
    assert len(after) <= max(low, fixed + marks)
    assert len(history) > low or len(after) == len(history)


def test_a_second_cut_goes_on_where_the_first_one_ended() -> None:
    history = kept(history_of(TALK), low_watermark=119)
    assert left(kept(history, low_watermark=80)) == [(0, 5, 10), (1, 3, 20), (3, 2, 0), (6, 5, 30)]


def test_marks_of_short_turns_do_not_fill_the_cache() -> None:
    """Sixty replies of one word are 360 tokens, of which the budget of words would keep 180."""
    turns: list[Sketch] = [(PROMPT if i % 2 else REPLY, 3, 1, 2) for i in range(60)]
    after = kept(history_of(turns), low_watermark=120)
    assert len(after) <= 120
    assert left(after)[:10] == [(i, 5, 1) for i in range(10)]
    assert left(after)[-1] == (59, 5, 1)


def test_policies_that_need_attention_mass_are_refused() -> None:
    assert next(iter(TEXT_POLICIES)) == "turns"
    assert "h2o" not in TEXT_POLICIES
    with pytest.raises(ConfigError, match=r"\[mlx-lm\] h2o chooses by attention mass"):
        make_text_policy("h2o")
    with pytest.raises(ConfigError, match=r"policy must be one of turns, .*; got 'best'"):
        make_text_policy("best")
