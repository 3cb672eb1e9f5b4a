"""What a duplex session remembers of who spoke: a value, part of the cache's state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Talk:
    """Who spoke, as far as the model's next decision depends on it. A value.

    Attributes:
        units: Units decided so far.
        in_turn: Whether a turn of the model is open.
        chosen: Tokens that it chose, the newest ones that its rules want to know.
        said: Tokens decided on in the unit that is open, or in the last one.
        spoken: Words of the units that may be dropped yet, by their ids, if they are recalled.
        recalled: Words of dropped units that stand in the system prefix.
    """

    units: int = 0
    in_turn: bool = False
    chosen: tuple[int, ...] = ()
    said: tuple[int, ...] = ()
    spoken: tuple[tuple[int, tuple[int, ...]], ...] = ()
    recalled: tuple[int, ...] = ()
