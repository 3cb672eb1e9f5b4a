"""Positions of cells, computed in one place from what is kept.

Re-indexing after an eviction is calling `lay_out` again on the survivors, so that it can't disagree
with the first layout. What follows a hole moves up by the position span of the hole (the counter
at its end minus the counter at its start), which is the paper's token count (section 5.2) wherever
a token takes one position, and stays right where an image of hundreds of tokens takes a dozen.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnitide.runs import run_lengths, run_starts
from omnitide.units import AXES, Cells


def lay_out(cells: Cells, start: int = 0) -> tuple[NDArray[np.int32], int]:
    """Lay cells out from a position counter.

    Args:
        cells: In logical order, dtype `CELL`; steps may have lost any of their cells.
        start: The counter before the first cell.

    Returns:
        Positions, shape (num_cells, 3), and the counter after the last cell.
        A step's extent is one more than the largest offset among its kept cells that advance
        (among all its kept cells, if none of those is left).
    """
    if len(cells) == 0:
        return np.empty((0, AXES), np.int32), start
    first = run_starts(cells["step"], cells["unit"])
    offset = cells["offset"]
    # Column by column, here and below: along an axis of three it takes many times as long.
    reach = np.maximum(np.maximum(offset[:, 0], offset[:, 1]), offset[:, 2]) + 1
    extent = np.maximum.reduceat(reach * cells["advances"], first)
    if not extent.all():
        extent = np.where(extent > 0, extent, np.maximum.reduceat(reach, first))
    stops = extent.cumsum() + start
    base = (stops - extent).astype(np.int32).repeat(run_lengths(first, len(cells)))
    position = np.empty((len(cells), AXES), np.int32)
    for axis in range(AXES):
        np.add(base, offset[:, axis], out=position[:, axis])
    return position, int(stops[-1])
