"""Tokens of a text cut into units: a unit is a paragraph of a turn, with the marks beside it.

The first unit of a turn begins with what opens the turn, its last one ends with what closes it;
both are boundary tokens. A unit in the middle of a turn has neither. How the tokens came (in one
piece, in chunks, one by one) does not matter: units are made only when they are complete.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from omnitide.mlx_lm.markers import Markers, Opener
from omnitide.mlx_lm.pending import Tokens
from omnitide.units import Role, Unit, UnitBuilder, UnitKind

SHORTEST = 16
"""Tokens below which a paragraph is joined with the next one, as a heading is."""

MOST_CLOSING = 8
"""Marks and white space that close one unit. A longer run of them is cut, or it would never end."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a conversation a unit begins.

    Attributes:
        kind: Of the turn; `TEXT` outside of turns.
        fresh: Nothing has come before.
        prefix: Only the beginning and the system's words have come before.
    """

    kind: UnitKind = UnitKind.TEXT
    fresh: bool = True
    prefix: bool = True


@dataclass(frozen=True, slots=True)
class Cut:
    """Complete units, and where what is left begins.

    Attributes:
        units: Oldest first.
        used: Tokens that they hold.
        place: Of the token after them.
    """

    units: tuple[Unit, ...]
    used: int
    place: Place


def cut(tokens: Tokens, place: Place, markers: Markers, longest: int) -> Cut:
    """Cut tokens into units; what may still grow is left.

    Args:
        tokens: Shape (num_tokens,); `UNKNOWN` where an embedding was given.
        place: Where the first token stands.
        markers: Of the tokenizer.
        longest: Tokens at which a paragraph is cut; marks may follow.
    """
    ids = tokens.tolist()
    units: list[Unit] = []
    reader = _Reader(place)
    start, at = 0, 0
    while at < len(ids):
        opener, decided = _opener_at(ids, at, markers)
        if not decided:
            break
        step = 1 if opener is None else len(opener.ids) + _space_after(ids, at, opener)
        if at > start and reader.begins_unit(ids[at], opener, at - start, markers, longest):
            units.append(_built(tokens[start:at], reader))
            start = at
            place = reader.next_place()
            reader = _Reader(place)
        reader.read(ids[at : at + step], opener, markers)
        at += step
    return Cut(tuple(units), start, place)


class _Reader:
    """Reads one unit. Roles are those of its tokens so far."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.roles: list[Role] = []
        self._alone = False  # the token that begins a sequence is a unit of its own
        self._closing = 0  # tokens of what closes the unit, so far
        self._ended = False
        self._broke = False  # the last token ended a line

    def begins_unit(
        self, token: int, opener: Opener | None, length: int, markers: Markers, longest: int
    ) -> bool:
        """Whether a token begins the next unit, when this one has `length` tokens."""
        if opener is not None:
            return True
        if self._alone:
            return True
        if self._closing:
            more = token in markers.closers or token in markers.space
            return not more or self._closing >= MOST_CLOSING
        if token in markers.closers:
            return False
        blank = bool(markers.text(token)) and not markers.text(token).strip()
        if self._ended and length >= SHORTEST and not blank:
            return True
        return length >= longest

    def read(self, ids: list[int], opener: Opener | None, markers: Markers) -> None:
        """Take in a token, or all those of an opener."""
        first = not self.roles
        if opener is not None:
            self.place = replace(self.place, kind=_kind(opener, self.place))
            self.roles += [Role.BOUNDARY] * len(ids)
            return
        (token,) = ids
        if first and self.place.fresh and token == markers.bos:
            self.place = replace(self.place, kind=UnitKind.SYSTEM)
            self.roles.append(Role.BOUNDARY)
            self._alone = True
            return
        if token in markers.closers or (self._closing and token in markers.space):
            self._closing += 1
            self.roles.append(Role.BOUNDARY)
            return
        self.roles.append(Role.CONTENT)
        text = markers.text(token)
        self._ended = "\n\n" in text or (self._broke and text.startswith("\n"))
        self._broke = text.endswith("\n")

    def next_place(self) -> Place:
        """Where the next unit begins."""
        kind = UnitKind.TEXT if self._closing or self._alone else self.place.kind
        return Place(kind, False, self.place.prefix and self.place.kind == UnitKind.SYSTEM)


def _kind(opener: Opener, place: Place) -> UnitKind:
    """Of a turn. Words of the system are the prefix only where nobody has spoken before."""
    if opener.kind == UnitKind.SYSTEM and not place.prefix:
        return UnitKind.TEXT
    return opener.kind


def _opener_at(ids: list[int], at: int, markers: Markers) -> tuple[Opener | None, bool]:
    """The opener that begins at a token, and whether the tokens at hand decide it."""
    for opener in markers.openers:
        here = tuple(ids[at : at + len(opener.ids)])
        if here == opener.ids:
            ends = at + len(here) + len(opener.space) <= len(ids)
            return opener, ends or not opener.space
        if len(here) < len(opener.ids) and here == opener.ids[: len(here)]:
            return None, False
    return None, True


def _space_after(ids: list[int], at: int, opener: Opener) -> int:
    begin = at + len(opener.ids)
    follows = tuple(ids[begin : begin + len(opener.space)])
    return len(opener.space) if follows == opener.space else 0


def _built(tokens: Tokens, reader: _Reader) -> Unit:
    """The unit of some tokens: a span for each run of one role, a position a token."""
    roles = np.array(reader.roles)
    edges = [0, *(np.flatnonzero(roles[1:] != roles[:-1]) + 1).tolist(), len(roles)]
    builder = UnitBuilder()
    for begin, end in pairwise(edges):
        builder.text(tokens[begin:end], Role(int(roles[begin])))
    return builder.build(reader.place.kind)
