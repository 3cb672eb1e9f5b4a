"""What an update of the cache changes, as values: before it, and once it has its place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from omnitide.history import History
from omnitide.pages import PageTable
from omnitide.retention import Mass
from omnitide.rotary import Table
from omnitide.step import Step
from omnitide.units import Unit


@dataclass(frozen=True, slots=True, eq=False)
class CacheState:
    """Everything that an update changes.

    Attributes:
        history: Units and cells.
        table: Where the cells lie.
        angles: Rotary tables of the cells, cosines then sines, at least (num_cells, head_dim).
        stream: The model's own state of the stream (`OmniModel.new_stream`).
        mass: Attention mass of the cells, shape (num_cells,); None if the policy needs none.
        time: Second of the stream up to which the model has seen it.
        talk: What a duplex session remembers of who spoke (`duplex.Talk`); None in others.
        evictions, rows_moved: Counts since the start.
        renewals: How often the system prefix got another end.
    """

    history: History
    table: PageTable
    angles: Table
    stream: Any
    mass: Mass | None = None
    time: float = 0.0
    talk: Any = None
    evictions: int = 0
    rows_moved: int = 0
    renewals: int = 0

    @property
    def rotation(self) -> int:
        """Tells angles apart (`Step.rotation`): positions are laid out anew by these two alone."""
        return self.evictions + self.renewals


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Cells that have their place, with the passes that will fill them.

    Attributes:
        before: The state that they were placed after.
        unit: The cells.
        after: The state once the passes have run.
        first: Index of the first of the cells in the history.
        steps: The passes, one after the other.
    """

    before: CacheState
    unit: Unit
    after: CacheState
    first: int
    steps: tuple[Step, ...]

    def is_for(self, state: CacheState, unit: Unit) -> bool:
        """Whether it is what placing `unit` after `state` gives, but for the tokens' ids."""
        if self.before is not state or len(self.unit) != len(unit):
            return False
        cells = self.unit.cells.copy()
        cells["token"] = unit.cells["token"]
        return cells.tobytes() == unit.cells.tobytes()

    def name_tokens(self, unit: Unit) -> None:
        """Put the ids of `unit`, which it is for, into the history after it."""
        self.after.history.cells["token"][self.first :] = unit.cells["token"]


def next_of(unit: Unit) -> Unit:
    """The token that follows a token of a reply, if it is a word like that one; its id is open."""
    cells = unit.cells.copy()
    cells["step"] += 1
    return replace(unit, cells=cells)
