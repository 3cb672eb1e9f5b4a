"""H2O: the newest tokens stay, and of the older ones those most attended to (Zhang et al., 2023).

What a cell was attended with is summed over all queries since it was written, its own included, as
in the original; old cells thus had more time to gather it. The original chooses for each head of
each layer; here one choice holds for all, because a cell is one slot of the page table in every
layer.

It costs: attention kernels give no probabilities, so every forward pass computes them a second time
(`Backend.attention_mass`) for as long as the stream runs. Units and turns may be torn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnitide.config import RetentionConfig
from omnitide.errors import ConfigError
from omnitide.history import History
from omnitide.retention import Mask, Mass, protected, room_beside
from omnitide.units import Cells


class H2O:
    """Heavy hitters and recent tokens.

    The target is met exactly, unless the protected cells alone exceed it; the newest token stays
    even then.
    """

    name = "h2o"
    bounded = True
    needs_mass = True

    def select(self, history: History, config: RetentionConfig, mass: Mass | None = None) -> Mask:
        """The protected cells, the newest others, and the heaviest of the rest.

        Heavy hitters take `heavy_share` of the room, rounded down; of equally heavy cells the older
        one stays.

        Raises:
            ConfigError: There is no mass.
        """
        if mass is None:
            raise ConfigError(
                "[policy] h2o chooses by attention mass, which only a model that runs can give; "
                "take another policy here"
            )
        held = protected(history)
        free = np.flatnonzero(~held)
        room = room_beside(held, config)
        heavy = int(config.heavy_share * room)
        recent_from = max(len(free) - (room - heavy), 0)
        older = free[:recent_from]
        keep = held.copy()
        keep[free[recent_from:]] = True
        keep[older[_heaviest(mass[older], heavy)]] = True
        keep[-1:] = True
        return keep

    def survivors(self, cells: Cells, config: RetentionConfig) -> Mask:
        """None: what will be attended to is not known when a unit is written."""
        return np.zeros(len(cells), np.bool_)


def _heaviest(mass: Mass, count: int) -> NDArray[np.int64]:
    """Indices of the `count` greatest, the first of equals; in linear time, unlike a sort."""
    if count >= len(mass):
        return np.arange(len(mass))
    if count == 0:
        return np.empty(0, np.int64)
    least = np.partition(mass, len(mass) - count)[len(mass) - count]
    above = np.flatnonzero(mass > least)
    equal = np.flatnonzero(mass == least)[: count - len(above)]
    return np.concatenate([above, equal])
