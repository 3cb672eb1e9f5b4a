"""Where the time of a pass goes: every attention, matrix product and copy timed on its own.

The operations are timed one by one by `Backend.timed`, with the device idle before each, so nothing
overlaps and no recorded pass is replayed. An undisturbed update's time less all parts is the rest:
norms, placing, planning, and what the host takes to launch. It may be below 0 where operations of
the undisturbed update overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from omnitide.backend import Array, Backend, Pools
from omnitide.step import Step

PARTS = {
    "append": "attention",
    "attention": "attention",
    "attention_mass": "attention",
    "linear": "matrix",
    "project": "matrix",
    "gated_mlp": "matrix",
    "migrate": "migration",
}
"""Part of each operation. What a fused operation does beside its products counts with them."""


class TimedBackend:
    """A backend that adds up the time of its operations by part; a `Backend` in all else.

    Attributes:
        seconds: By part.
    """

    def __init__(self, backend: Backend) -> None:
        self._timed = backend
        self.seconds = dict.fromkeys(PARTS.values(), 0.0)

    @classmethod
    def around(cls, backend: Backend) -> tuple[TimedBackend, Backend]:
        """One of them, twice: as itself, and as the backend that it stands for."""
        made = cls(backend)
        return made, cast(Backend, made)

    def forward_pass(
        self, forward: Callable[[Array, Pools, Step], Array], x: Array, pools: Pools, step: Step
    ) -> Array:
        """The pass itself, operation by operation."""
        return forward(x, pools, step)

    def __getattr__(self, name: str) -> Any:
        """An attribute of the backend; an operation that belongs to a part is timed."""
        found = getattr(self._timed, name)
        part = PARTS.get(name)
        return found if part is None else self._wrapped(found, part)

    def _wrapped(self, operation: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            backend, made = self._timed, []

            def call(index: int) -> Any:
                made.append(operation(*args, **kwargs))
                return made[0]

            # Lazy arrays are computed first, or they would count with what needs them.
            backend.synchronize(*(a for a in args if _is_device_array(a)))
            self.seconds[part] += backend.timed(call, 1)[0]
            return made[0]

        return timed


def _is_device_array(value: Any) -> bool:
    return hasattr(value, "shape") and not isinstance(value, np.ndarray)
