"""Estimated time of attention and of copies, from what a tile and a row cost."""

from __future__ import annotations

from dataclasses import dataclass

from omnitide import acceptance
from omnitide.errors import ConfigError
from omnitide.pages import SUBBLOCK_SIZE

KV_BYTES = 36_864
"""K and V of a token in all layers of Qwen2.5-Omni-3B in half precision."""

BYTES_PER_US = 100_000
"""Memory bandwidth of a laptop-class chip, 100 GB/s."""

PASSES_OF_A_COPY = 4
"""A migrated row is read, written to scratch, read and written again."""


@dataclass(frozen=True, slots=True)
class Costs(acceptance.Costs):
    """What attention and migration pay, all layers together.

    The defaults count bytes: attention reads each active subblock once a forward pass, a migration
    gathers and scatters each row, both at the bandwidth above. They are no measurements.

    Attributes:
        tile_us: Of one active subblock in one forward pass. Microseconds.
        row_us: Of one migrated row. Microseconds.
    """

    tile_us: float = round(SUBBLOCK_SIZE * KV_BYTES / BYTES_PER_US, 1)
    row_us: float = round(PASSES_OF_A_COPY * KV_BYTES / BYTES_PER_US, 1)

    def __post_init__(self) -> None:
        for name, value in (("tile_us", self.tile_us), ("row_us", self.row_us)):
            if not 0 <= value < 1e9:
                raise ConfigError(f"[simulate] {name} must be at least 0 and finite, got {value}")
