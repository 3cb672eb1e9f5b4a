"""Retention: what of a history is kept. A policy decides, a plan states.

A policy reads structure (units, spans, roles), or, if it says so, the attention mass of each cell
too, and returns a mask; all that follows from the mask (the history that is left, its positions) is
computed here, the same for every policy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from omnitide.config import RetentionConfig
from omnitide.history import History
from omnitide.runs import run_lengths
from omnitide.units import Cells, Unit, UnitKind

Mask = NDArray[np.bool_]
Mass = NDArray[np.float64]
"""Attention probability that each cell has received, summed over queries, heads and layers."""

Fates = NDArray[np.uint8] | NDArray[np.bool_]
"""A `Fate` for each cell. Booleans will do: False is `LEAVES`, True is `STAYS`."""


class Fate(IntEnum):
    """What is expected of a new cell once its unit is no longer recent."""

    LEAVES = 0
    STAYS = 1  # as long as anything of its unit, which will be cut and go in its turn
    LASTS = 2  # with its whole unit, longer than the cut ones
    MAY_STAY = 3  # like STAYS, unless a budget is spent before its turn comes


@dataclass(frozen=True, eq=False)
class RetentionPlan:
    """What to keep, what to delete, and where the survivors' positions go.

    Attributes:
        keep: Whether each cell of the history stays, shape (num_cells,).
        after: The history of the survivors, their positions laid out anew. Slots stay.
    """

    keep: Mask
    after: History = field(repr=False)

    @property
    def num_kept(self) -> int:
        """Cells that stay."""
        return int(np.count_nonzero(self.keep))

    @property
    def num_deleted(self) -> int:
        """Cells that go."""
        return len(self.keep) - self.num_kept

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RetentionPlan)
            and np.array_equal(self.keep, other.keep)
            and np.array_equal(self.after.cells, other.after.cells)
        )

    def __hash__(self) -> int:
        return hash(self.keep.tobytes())

    def validate(self, history: History) -> None:
        """Check the plan against the history it was made for.

        Raises:
            ValueError: Sizes disagree, or a cell of the system prefix or of an open unit would go.
        """
        kept, deleted, cells = self.num_kept, self.num_deleted, len(history)
        if kept + deleted != cells:
            raise ValueError(f"[retention] kept {kept} + deleted {deleted} != {cells} cells")
        if len(self.after) != kept:
            raise ValueError(f"[retention] a history of {len(self.after)} cells for {kept} kept")
        lost = int(np.count_nonzero(protected(history) & ~self.keep))
        if lost:
            raise ValueError(f"[retention] {lost} cells of the prefix or an open unit would go")


class RetentionPolicy(Protocol):
    """Decides what of a history is kept. Pure and deterministic: equal inputs, equal answers."""

    name: str
    bounded: bool  # whether the history stays near the watermarks under this policy
    needs_mass: bool  # whether `select` needs the attention mass, which every pass then pays for

    def select(self, history: History, config: RetentionConfig, mass: Mass | None = None) -> Mask:
        """Which cells stay, shape (num_cells,).

        Called when the history exceeds the high watermark. Protected cells (`protected`) stay, and
        so does the newest cell, from which a session reads in whose turn the stream is.

        Args:
            history: Units and cells.
            config: Watermarks and budgets.
            mass: Attention mass of the cells, shape (num_cells,). None where nobody measures it.

        Raises:
            ConfigError: The policy needs the mass and there is none.
        """
        ...

    def survivors(self, cells: Cells, config: RetentionConfig) -> Fates:
        """Which cells of a new unit are expected to stay once it is old, shape (num_tokens,).

        Used by predictive placement. A wrong guess costs space, never correctness.
        """
        ...


class Foreseeing(RetentionPolicy, Protocol):
    """A policy whose foresight depends on what the history holds already."""

    def foresee(self, unit: Unit, history: History, config: RetentionConfig) -> Fates:
        """The fate of each cell of a unit about to be appended, shape (num_tokens,)."""
        ...


def foresee(
    policy: RetentionPolicy, unit: Unit, history: History, config: RetentionConfig
) -> Fates:
    """What a policy expects of a unit about to be appended to a history; for `Layout.place`."""
    # By name: to ask whether it is an instance of a protocol takes a tenth of the whole update.
    if hasattr(policy, "foresee"):
        return cast(Foreseeing, policy).foresee(unit, history, config)
    return policy.survivors(unit.cells, config)


def protected_units(history: History) -> Mask:
    """Of each unit with cells, whether no policy may drop its cells (see `protected`)."""
    system = UnitKind.SYSTEM
    return np.array([u.kind is system or u.open for u in history.records()], np.bool_)


def protected(history: History) -> Mask:
    """Cells that no policy may drop: the system prefix and a unit that is still open."""
    lengths = run_lengths(history.unit_starts(), len(history))
    return np.repeat(protected_units(history), lengths)


def room_beside(held: Mask, config: RetentionConfig) -> int:
    """Cells that fit beside the protected ones `held` without passing the low watermark."""
    return max(config.low_watermark - int(np.count_nonzero(held)), 0)


def make_plan(
    policy: RetentionPolicy,
    history: History,
    config: RetentionConfig,
    mass: Mass | None = None,
) -> RetentionPlan:
    """Ask a policy and state the consequences. Changes nothing.

    Args:
        policy: Decides.
        history: Of which cells.
        config: Watermarks and budgets.
        mass: Attention mass of the cells, shape (num_cells,), for a policy that needs it.

    Raises:
        ConfigError: The policy needs the mass and there is none.
        ValueError: The mass has another shape, or the policy broke its contract (see
            `RetentionPlan.validate`).
    """
    if mass is not None and mass.shape != (len(history),):
        raise ValueError(f"[retention] mass of shape {mass.shape} for {len(history)} cells")
    keep = policy.select(history, config, mass)
    if keep.shape != (len(history),) or keep.dtype != np.bool_:
        raise ValueError(
            f"[retention] {policy.name} must return a boolean mask of {len(history)} cells, "
            f"got {keep.dtype} of shape {keep.shape}"
        )
    plan = RetentionPlan(keep, history.keep(keep))
    plan.validate(history)
    return plan
