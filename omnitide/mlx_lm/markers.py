"""Marks of a conversation as tokens: what opens a turn, what closes one, where a paragraph ends.

They are learned from the tokenizer: its chat template is rendered around sentinels and cut at them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from omnitide.errors import ConfigError
from omnitide.units import UnitKind

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Opener:
    """What begins a turn.

    Attributes:
        ids: Tokens by which it is recognised, at least one.
        space: White space that follows them in the template. Words that begin with a line break may
            have swallowed it, so it is no part of the mark.
        kind: Whose turn it is.
    """

    ids: Ids
    space: Ids
    kind: UnitKind


class Markers:
    """Marks of one tokenizer.

    Attributes:
        bos: Token that begins a sequence, if any.
        openers: What begins a turn, longest first.
        closers: Tokens that end a turn.
        space: Tokens of white space that may follow a closer.
    """

    def __init__(
        self,
        tokenizer: Any = None,
        bos: int | None = None,
        openers: Iterable[Opener] = (),
        closers: Iterable[int] = (),
        space: Iterable[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}
        self.bos = bos
        self.openers = tuple(sorted(openers, key=lambda o: -len(o.ids)))
        self.closers = frozenset(closers)
        self.space = frozenset(space)

    def __deepcopy__(self, memo: dict[int, Any]) -> Markers:
        return self  # knowledge about a tokenizer, which copies of a cache share

    def text(self, token: int) -> str:
        """What a token says; nothing where that is not known."""
        if self._tokenizer is None or token < 0:
            return ""
        if token not in self._texts:
            self._texts[token] = str(self._tokenizer.decode([token]))
        return self._texts[token]

    def described(self) -> dict[str, Any]:
        """All that decides how tokens are cut into units, as plain values."""
        return {
            "tokenizer": self._tokenizer is not None,
            "bos": self.bos,
            "openers": [[list(o.ids), list(o.space), o.kind.value] for o in self.openers],
            "closers": sorted(self.closers),
            "space": sorted(self.space),
        }


_SYSTEM, _USER, _REPLY, _NEXT = ("omnitide0system", "omnitide1user", "omnitide2reply", "omnitide3")


def learn_markers(tokenizer: Any) -> Markers:
    """The marks of a tokenizer of mlx-lm or transformers. Without a template there are few.

    Raises:
        ConfigError: It is no tokenizer.
    """
    for name in ("encode", "decode", "all_special_ids"):
        if not hasattr(tokenizer, name):
            raise ConfigError(
                f"[mlx-lm] tokenizer must be the one that mlx_lm.load returns; "
                f"{type(tokenizer).__name__} has no {name}"
            )
    special = {int(i) for i in tokenizer.all_special_ids}
    known = getattr(tokenizer, "added_tokens_decoder", {})
    special |= {int(i) for i, token in known.items() if getattr(token, "special", False)}
    bos = getattr(tokenizer, "bos_token_id", None)
    ends = getattr(tokenizer, "eos_token_ids", None) or [getattr(tokenizer, "eos_token_id", None)]
    closers = {int(i) for i in ends if i is not None}
    openers: list[Opener] = []
    space: set[int] = set()

    def ids_of(text: str) -> Ids:
        return tuple(int(i) for i in tokenizer.encode(text, add_special_tokens=False))

    def opens(ids: Sequence[int], kind: UnitKind) -> None:
        end = len(ids)
        while end > 1 and not tokenizer.decode([ids[end - 1]]).strip():
            end -= 1
        if end and all(o.ids != tuple(ids[:end]) for o in openers):
            openers.append(Opener(tuple(ids[:end]), tuple(ids[end:]), kind))

    system = _pieces(tokenizer, ("system", _SYSTEM), ("user", _USER))
    turns = _pieces(tokenizer, ("user", _USER), ("assistant", _REPLY), ("user", _NEXT))
    if turns:
        for piece, kind in ((turns[1], UnitKind.REPLY), (turns[2], UnitKind.PROMPT)):
            close, rest = _split(ids_of(piece), special)
            closers |= {i for i in close if i in special}
            space |= {i for i in close if i not in special and not tokenizer.decode([i]).strip()}
            opens(rest, kind)
    if system and turns:
        head = ids_of(system[0])
        head = head[1:] if head and head[0] == bos else head
        opens(head, UnitKind.SYSTEM)
    # A role that the template was not shown, as a tool's, opens a turn with the same special token.
    for first in {o.ids[0] for o in openers if len(o.ids) > 1 and o.ids[0] in special}:
        opens((first,), UnitKind.TEXT)
    return Markers(tokenizer, bos, openers, closers, space)


def _split(ids: Ids, special: set[int]) -> tuple[Ids, Ids]:
    """What closes a turn and what opens the next one, of the tokens between their words.

    A template writes one special token to close and another to open; a single one opens.
    """
    places = [i for i, token in enumerate(ids) if token in special]
    if not places:
        return (), ids
    at = places[1] if len(places) > 1 else places[0]
    return ids[:at], ids[at:]


def _pieces(tokenizer: Any, *messages: tuple[str, str]) -> list[str] | None:
    """Template text around messages; None where the template does not show them in order."""
    talk = [{"role": role, "content": words} for role, words in messages]
    if not getattr(tokenizer, "chat_template", None) and not getattr(
        tokenizer, "has_chat_template", False
    ):
        return None
    try:
        text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=False)
    except (TemplateError, ValueError, TypeError, KeyError):
        return None  # a template may refuse a role, as those of Gemma 2 do with system
    pieces: list[str] = []
    for _, words in messages:
        before, found, text = str(text).partition(words)
        if not found:
            return None
        pieces.append(before)
    return [*pieces, text]
