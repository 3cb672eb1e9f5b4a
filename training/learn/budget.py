"""How much of the training has passed, by the clock or by steps; workers see it too."""

from __future__ import annotations

import multiprocessing
import time as clock
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Budget:
    """The part of the whole training that has passed.

    By the clock, a run of a part of the minutes goes on where the run before it ended. By steps,
    two runs with equal seeds are equal.

    Attributes:
        total_seconds: Of the whole training; ignored if there are steps.
        total_steps: Of the whole training, or None.
        before: Seconds that earlier runs took.
        started: When this run began, by `time.monotonic`.
        limit: Seconds that this run may take.
        shared: The fraction as last told, for other processes.
    """

    total_seconds: float
    total_steps: int | None
    before: float
    started: float
    limit: float
    shared: Any

    @classmethod
    def of(
        cls, total_minutes: float, minutes: float, total_steps: int | None, before: float
    ) -> Budget:
        """A budget whose clock starts now."""
        # Workers draw ahead, so the fraction is right from the first batch on.
        passed = min(before / (60 * total_minutes), 1.0)
        shared = multiprocessing.get_context("fork").Value("d", passed)
        now = clock.monotonic()
        return cls(60 * total_minutes, total_steps, before, now, 60 * minutes, shared)

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, those of earlier runs included."""
        return self.before + clock.monotonic() - self.started

    def tell(self, step: int) -> float:
        """The fraction at a step of this process; the workers see it from now on."""
        if self.total_steps is None:
            self.shared.value = min(self.elapsed / self.total_seconds, 1.0)
            return float(self.shared.value)
        return self(step)

    def __call__(self, step: int) -> float:
        """The fraction at a step, in any process."""
        if self.total_steps is not None:
            return min(step / self.total_steps, 1.0)
        return float(self.shared.value)

    def over(self, step: int) -> bool:
        """Whether this run is to end before a step."""
        if self.total_steps is not None and step >= self.total_steps:
            return True
        spent = clock.monotonic() - self.started
        return spent >= self.limit or self.tell(step) >= 1.0
