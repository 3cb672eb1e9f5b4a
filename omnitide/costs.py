"""What attention and copies cost: two prices in microseconds, all layers together."""

from __future__ import annotations

from dataclasses import dataclass

from omnitide.errors import ConfigError
from omnitide.pages import SUBBLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Costs:
    """What a device pays for attention and for copies.

    Attributes:
        tile_us: Microseconds that one active subblock adds to a forward pass of one query.
        row_us: Microseconds to copy K and V of one row.
    """

    tile_us: float
    row_us: float

    def __post_init__(self) -> None:
        for option, value in (("--tile-cost-us", self.tile_us), ("--row-cost-us", self.row_us)):
            if not 0 <= value < 1e9:
                raise ConfigError(
                    f"[migration] {option} must be at least 0 and below 1e9, got {value:g}; "
                    "give microseconds"
                )


KV_BYTES = 36_864
"""K and V of a token in all layers of Qwen2.5-Omni-3B in half precision."""

BYTES_PER_US = 100_000
"""Memory bandwidth of a laptop-class chip, 100 GB/s."""

PASSES_OF_A_COPY = 4
"""A migrated row is read, written to scratch, read and written again."""

NOMINAL = Costs(
    tile_us=round(SUBBLOCK_SIZE * KV_BYTES / BYTES_PER_US, 1),
    row_us=round(PASSES_OF_A_COPY * KV_BYTES / BYTES_PER_US, 1),
)
"""Where nothing was measured: bytes counted at the bandwidth above, a tile read once a pass."""
