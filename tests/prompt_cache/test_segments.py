"""Turns, paragraphs and their marks, found in tokens; worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnitide.errors import ConfigError
from omnitide.mlx_lm.markers import Markers, Opener, learn_markers
from omnitide.mlx_lm.segments import SHORTEST, Place, cut
from omnitide.units import Role, UnitKind

LONG = " ".join(["w1"] * SHORTEST)
OTHER = " ".join(["w2"] * SHORTEST)

Written = list[tuple[str, str]]
"""Kind of each unit and its text, boundary tokens in brackets."""


def units_of(tokenizer: Any, text: str, longest: int = 1000, end: bool = True) -> Written:
    """The units of a text; `end` adds a turn so that the last one is complete."""
    markers = learn_markers(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    marks = [*markers.openers[0].ids, *markers.openers[0].space] if markers.openers else []
    tokens = np.array([*ids, *(marks if end else [])], np.int32)
    found = cut(tokens, Place(), markers, longest)
    return [(unit.kind.value, written(tokenizer, unit)) for unit in found.units]


def written(tokenizer: Any, unit: Any) -> str:
    parts, inside = [], False
    for cell in unit.cells:
        mark = cell["role"] == Role.BOUNDARY
        if mark != inside:
            parts.append("[" if mark else "]")
        parts.append(tokenizer.decode([int(cell["token"])]))
        inside = bool(mark)
    return "".join(parts) + ("]" if inside else "")


CONVERSATIONS: dict[str, tuple[str, Written]] = {
    "chatml": (
        "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nw1 w2<|im_end|>\n"
        "<|im_start|>assistant\nw3<|im_end|>\n",
        [
            ("system", "[<|im_start|>system\n]be kind[<|im_end|>\n]"),
            ("prompt", "[<|im_start|>user\n]w1 w2[<|im_end|>\n]"),
            ("reply", "[<|im_start|>assistant\n]w3[<|im_end|>\n]"),
        ],
    ),
    "llama3": (
        "<|begin|><|start|>system<|end|>\n\nbe<|eot|><|start|>user<|end|>\n\nw1<|eot|>"
        "<|start|>assistant<|end|>\n\nw3<|eot|>",
        [
            ("system", "[<|begin|>]"),
            ("system", "[<|start|>system<|end|>\n\n]be[<|eot|>]"),
            ("prompt", "[<|start|>user<|end|>\n\n]w1[<|eot|>]"),
            ("reply", "[<|start|>assistant<|end|>\n\n]w3[<|eot|>]"),
        ],
    ),
    "gemma": (
        "<bos><start_of_turn>user\nw1<end_of_turn>\n<start_of_turn>model\nw3<end_of_turn>\n",
        [
            ("system", "[<bos>]"),
            ("prompt", "[<start_of_turn>user\n]w1[<end_of_turn>\n]"),
            ("reply", "[<start_of_turn>model\n]w3[<end_of_turn>\n]"),
        ],
    ),
    "mistral": (
        "<s>[INST]w1[/INST]w3</s>[INST]w2[/INST]w4</s>",
        [
            ("system", "[<s>]"),
            ("prompt", "[[INST]]w1"),
            ("reply", "[[/INST]]w3[</s>]"),
            ("prompt", "[[INST]]w2"),
            ("reply", "[[/INST]]w4[</s>]"),
        ],
    ),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_is_its_turns(name: str, tokenizer: Callable[[str], Any]) -> None:
    text, wanted = CONVERSATIONS[name]
    assert units_of(tokenizer(name), text) == wanted


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_what_the_template_writes_is_recognised(name: str, tokenizer: Callable[[str], Any]) -> None:
    words = tokenizer(name)
    talk = [
        {"role": role, "content": f"w{i} w9"} for i, role in enumerate(["user", "assistant"] * 3)
    ]
    text = words.apply_chat_template(talk, tokenize=False)
    kinds = [kind for kind, _ in units_of(words, text) if kind != "system"]
    assert kinds == ["prompt", "reply"] * 3


def test_a_reply_that_was_generated_needs_no_line_break_after_it(
    tokenizer: Callable[[str], Any],
) -> None:
    text = "<|im_start|>assistant\nw3<|im_end|><|im_start|>user\nw4<|im_end|>\n"
    assert units_of(tokenizer("chatml"), text) == [
        ("reply", "[<|im_start|>assistant\n]w3[<|im_end|>]"),
        ("prompt", "[<|im_start|>user\n]w4[<|im_end|>\n]"),
    ]


def test_words_behind_a_turn_belong_to_none(tokenizer: Callable[[str], Any]) -> None:
    text = "<|im_start|>user\nw1<|im_end|>\nw5 w6"
    assert units_of(tokenizer("chatml"), text) == [
        ("prompt", "[<|im_start|>user\n]w1[<|im_end|>\n]"),
        ("text", "w5 w6"),
    ]


def test_a_role_that_is_not_known_opens_a_turn(tokenizer: Callable[[str], Any]) -> None:
    text = "<|im_start|>user\nw1<|im_end|>\n<|im_start|>w7\nw8<|im_end|>\n"
    assert units_of(tokenizer("chatml"), text) == [
        ("prompt", "[<|im_start|>user\n]w1[<|im_end|>\n]"),
        ("text", "[<|im_start|>]w7\nw8[<|im_end|>\n]"),
    ]


def test_words_that_begin_with_a_line_break_hide_no_turn(tokenizer: Callable[[str], Any]) -> None:
    """The tokenizer joins both line breaks to one token."""
    text = "<|im_start|>user\n\nw4<|im_end|>\n"
    assert units_of(tokenizer("chatml"), text) == [
        ("prompt", "[<|im_start|>user]\n\nw4[<|im_end|>\n]")
    ]


def test_later_words_of_the_system_are_no_prefix(tokenizer: Callable[[str], Any]) -> None:
    turn = "<|im_start|>system\nbe kind<|im_end|>\n"
    user = "<|im_start|>user\nw1<|im_end|>\n"
    kinds = [kind for kind, _ in units_of(tokenizer("chatml"), turn + user + turn)]
    assert kinds == ["system", "prompt", "text"]


def test_paragraphs_are_units_of_their_turn(tokenizer: Callable[[str], Any]) -> None:
    text = f"<|im_start|>user\n{LONG}\n\n{OTHER}\n\nw3<|im_end|>\n"
    assert units_of(tokenizer("chatml"), text) == [
        ("prompt", f"[<|im_start|>user\n]{LONG}\n\n"),
        ("prompt", f"{OTHER}\n\n"),
        ("prompt", "w3[<|im_end|>\n]"),
    ]


def test_two_line_breaks_in_two_tokens_end_a_paragraph() -> None:
    class Breaks:
        def decode(self, ids: list[int]) -> str:
            return "\n" if ids == [1] else "w"

    tokens = np.array([*[5] * SHORTEST, 1, 1, *[6] * SHORTEST, 1, 7, 7], np.int32)
    found = cut(tokens, Place(), Markers(Breaks()), 1000)
    assert [len(u) for u in found.units] == [SHORTEST + 2]


def test_a_short_paragraph_is_joined_with_the_next(tokenizer: Callable[[str], Any]) -> None:
    text = f"<|im_start|>user\nw5\n\n{LONG}<|im_end|>\n"
    assert len(units_of(tokenizer("chatml"), text)) == 1


def test_a_long_paragraph_is_cut_and_marks_are_not(tokenizer: Callable[[str], Any]) -> None:
    text = "<|im_start|>user\n" + "!" * 9 + "<|im_end|>\n"
    words = tokenizer("chatml")
    ids = words.encode(text.replace("!" * 9, " ".join("w1" for _ in range(9))))
    markers = learn_markers(words)
    found = cut(np.array([*ids, *markers.openers[0].ids, 1]), Place(), markers, 10)
    assert [len(u) for u in found.units] == [10, 10 + 2]


@pytest.mark.parametrize("token", [7, 1])
def test_a_run_of_closing_marks_is_cut(token: int) -> None:
    """It has no end by itself: a batch padded with the token that ends a text, an empty line."""
    found = cut(np.array([7, *[token] * 200], np.int32), Place(), MARKS, 24)
    assert found.used > 170
    assert max(len(u) for u in found.units) <= 24


def test_without_a_tokenizer_units_are_blocks() -> None:
    found = cut(np.arange(35, dtype=np.int32), Place(), Markers(), 10)
    assert [len(u) for u in found.units] == [10, 10, 10]
    assert found.used == 30
    assert all(u.kind == UnitKind.TEXT for u in found.units)


def test_what_may_still_grow_is_left(tokenizer: Callable[[str], Any]) -> None:
    words = tokenizer("chatml")
    text = "<|im_start|>user\nw1<|im_end|>\n"
    assert units_of(words, text, end=False) == []
    # A mark that has not come to its end decides nothing.
    assert units_of(words, text + "<|im_start|>", end=False) == []
    assert units_of(words, text + "<|im_start|>assistant", end=False) == []


def test_a_template_that_fails_leaves_the_marks_that_are_known(
    tokenizer: Callable[[str], Any],
) -> None:
    markers = learn_markers(tokenizer("plain"))
    assert markers.openers == ()
    assert markers.closers == {tokenizer("plain").eos_token_id}
    kinds = [o.kind for o in learn_markers(tokenizer("gemma")).openers]
    assert sorted(kinds) == ["prompt", "reply", "text"]  # its template refuses the system


def test_what_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the one that mlx_lm\.load returns; str has no decode"):
        learn_markers("tokenizer")


MARKS = Markers(
    type("Words", (), {"decode": lambda self, ids: {1: "\n", 2: "\n\n"}.get(ids[0], "w")})(),
    bos=9,
    openers=[
        Opener((3,), (), UnitKind.TEXT),
        Opener((3, 4), (1,), UnitKind.PROMPT),
        Opener((3, 5), (1,), UnitKind.REPLY),
        Opener((3, 6), (1,), UnitKind.SYSTEM),
    ],
    closers=[7],
    space=[1],
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_how_the_tokens_come_does_not_matter(data: st.DataObject) -> None:
    """All at once, or absorbed piece by piece with what was left in front of the next piece."""
    runs = st.lists(st.integers(1, 9), min_size=0, max_size=4)
    words = st.integers(10, 30).map(lambda n: [n] * 8)
    tokens = [t for run in data.draw(st.lists(st.one_of(runs, words), max_size=20)) for t in run]
    whole = cut(np.array(tokens, np.int32), Place(), MARKS, 24)
    units: list[Any] = []
    place, left = Place(), np.empty(0, np.int32)
    at = 0
    while at < len(tokens):
        size = data.draw(st.integers(1, 30))
        left = np.concatenate([left, np.array(tokens[at : at + size], np.int32)])
        found = cut(left, place, MARKS, 24)
        units += found.units
        place, left = found.place, left[found.used :]
        at += size
    assert [u.kind for u in units] == [u.kind for u in whole.units]
    for one, other in zip(units, whole.units, strict=True):
        np.testing.assert_array_equal(one.cells, other.cells)
    assert (place, len(left)) == (whole.place, len(tokens) - whole.used)


@settings(max_examples=150, deadline=None)
@given(tokens=st.lists(st.integers(1, 30), max_size=200))
def test_units_hold_the_tokens_in_order_and_are_no_longer_than_allowed(tokens: list[int]) -> None:
    found = cut(np.array(tokens, np.int32), Place(), MARKS, 24)
    said = [int(t) for u in found.units for t in u.cells["token"]]
    assert said == tokens[: found.used]
    for unit in found.units:
        words = unit.cells["role"] == Role.CONTENT
        assert np.count_nonzero(words) <= 24
        inner = np.flatnonzero(~words)
        # Marks stand at the ends only.
        edges = np.flatnonzero(np.diff(words.astype(int)))
        assert len(edges) <= 2
        assert len(inner) == 0 or not words[0] or not words[-1]
