"""A stream to simulate: units that can be gone through as often as there are choices to compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from omnitide.errors import ConfigError
from omnitide.simulation.shapes import Shape
from omnitide.units import Unit, UnitKind

MOST_UNITS = 100_000
"""Units of the longest stream that is made of a shape: minutes for each row."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Units and what the capacity of the pools depends on.

    Attributes:
        name: Of the shape or the trace.
        units: Gives the units anew each time, the system prefix first.
        count: Units after the prefix, for progress; None where it is not known.
        prefix, largest_unit, reply: Tokens of the system prefix, of the largest unit beside it
            and of the longest reply.
    """

    name: str
    units: Callable[[], Iterable[Unit]]
    count: int | None
    prefix: int
    largest_unit: int
    reply: int


def shape_stream(shape: Shape, count: int, seed: int = 0) -> Stream:
    """A stream of `count` units of a shape.

    Raises:
        ConfigError: Less than one unit or more than `MOST_UNITS`, or a negative seed.
    """
    if count < 1:
        raise ConfigError(f"[simulate] --units must be at least 1, got {count}")
    if count > MOST_UNITS:
        raise ConfigError(
            f"[simulate] --units must be at most {MOST_UNITS:,} for a shape, got {count:,}; "
            "lower it, or record a trace"
        )
    if seed < 0:
        raise ConfigError(f"[simulate] --seed must be at least 0, got {seed}")
    prefix = largest = reply = 0
    for unit in shape.units(count, seed):
        if unit.kind == UnitKind.SYSTEM:
            prefix = len(unit)
        elif unit.kind == UnitKind.REPLY:
            reply = max(reply, len(unit))
        else:
            largest = max(largest, len(unit))
    return Stream(shape.name, lambda: shape.units(count, seed), count, prefix, largest, reply)
