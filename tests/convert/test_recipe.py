"""Which matrices become how many bits."""

from __future__ import annotations

import pytest

from omnitide.convert.recipe import Format, Recipe, Rule, read_rules
from omnitide.errors import ConfigError

MATRICES = {
    "model.layers.0.q": (64, 256),
    "model.layers.1.q": (64, 256),
    "model.layers.0.down": (64, 96),
    "lm_head": (300, 256),
    "visual.0": (64, 256),
}
DECODER = frozenset(name for name in MATRICES if not name.startswith("visual"))
FOUR, EIGHT = Format(4, 64), Format(8, 64)


def _choose(*rules: str, format: Format = FOUR) -> dict[str, Format]:
    return Recipe(format, read_rules(rules, format)).choose(MATRICES, DECODER)


def test_the_decoder_is_quantised_where_groups_divide_its_rows() -> None:
    assert _choose() == dict.fromkeys(("model.layers.0.q", "model.layers.1.q", "lm_head"), FOUR)


def test_smaller_groups_divide_more() -> None:
    format = Format(8, 32)
    assert _choose(format=format) == dict.fromkeys(DECODER, format)


@pytest.mark.parametrize(
    ("rules", "changed"),
    [
        (["lm_head=16"], {"lm_head": None}),
        (["lm_head=8"], {"lm_head": EIGHT}),
        (["visual.*=8:128"], {"visual.0": Format(8, 128)}),
        (["*.down=4:32"], {"model.layers.0.down": Format(4, 32)}),
        (["model.layers.?.q=16", "model.layers.1.*=8"], {"model.layers.0.q": None,
                                                         "model.layers.1.q": EIGHT}),
        (["*.q=8", "*.q=16"], {"model.layers.0.q": None, "model.layers.1.q": None}),
    ],
)  # fmt: skip
def test_rules_come_on_top_and_the_last_that_matches_counts(
    rules: list[str], changed: dict[str, Format | None]
) -> None:
    want = {**_choose(), **changed}
    assert _choose(*rules) == {name: format for name, format in want.items() if format}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (["*.down=4"], "model.layers.0.down has 96, the rule .* asks for groups of 64"),
        (["*.up=4"], r"the rule '\*\.up' must match a matrix .* names are such as"),
        (["*=16"], "nothing would be quantised"),
        (["lm_head"], "a rule reads PATTERN=BITS or PATTERN=BITS:GROUP, .* got 'lm_head'"),
        (["lm_head=four"], "a rule reads PATTERN=BITS"),
        (["=4"], "a rule reads PATTERN=BITS"),
        (["lm_head=5"], "to 4 or 8 bits in groups of 32, 64 or 128, got 5 bits"),
        (["lm_head=4:48"], "got 4 bits in groups of 48"),
    ],
)
def test_rules_that_can_not_be_met(rules: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _choose(*rules)


@pytest.mark.parametrize(("bits", "group"), [(3, 64), (16, 64), (4, 0), (4, -64), (4, 256)])
def test_formats_that_there_are_not(bits: int, group: int) -> None:
    with pytest.raises(ConfigError, match="to 4 or 8 bits in groups of 32, 64 or 128"):
        Format(bits, group)


def test_groups_that_divide_nothing() -> None:
    with pytest.raises(ConfigError, match="nothing would be quantised: groups of 64 in rows of 96"):
        Recipe(FOUR).choose({"down": (8, 96)}, frozenset({"down"}))


def test_a_pattern_is_for_whole_names() -> None:
    assert not Rule("head", None).matches("lm_head")
    assert Rule("*head", None).matches("lm_head")
