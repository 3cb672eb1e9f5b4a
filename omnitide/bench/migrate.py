"""Copying rows from slot to slot in all layers, as a layout's migration does."""

from __future__ import annotations

import numpy as np

from omnitide.backend import Backend
from omnitide.bench.attention import COLD
from omnitide.bench.ceilings import Ceilings
from omnitide.bench.cells import LiveCells
from omnitide.bench.filling import fill
from omnitide.bench.report import OURS, Row
from omnitide.bench.room import POOL_ARRAYS, fit_copies, fit_layers, kv_bytes
from omnitide.bench.settings import Course, Settings
from omnitide.bench.shapes import ModelShape
from omnitide.bench.timing import WARM_UP, Spread
from omnitide.figures import ITEMSIZES
from omnitide.pages import PAGE_SIZE

SPACE = 3
"""Slots of a region for each row that is moved in it: sources, destinations, and others between."""


def run(
    backend: Backend, settings: Settings, ceilings: Ceilings, course: Course
) -> tuple[ModelShape, list[Row]]:
    """Measure each number of rows. The shape that ran, and the rows of the report.

    Raises:
        CapacityError: The pools don't fit the memory.
    """
    tokens = SPACE * max(settings.rows)
    shape = backend.run(fit_layers, backend, settings.shape, settings.layers, tokens, 1, course)
    rows = []
    for count in settings.rows:
        course.tell(f"{count:,} rows over {shape.text.num_layers} layers")
        seconds = backend.run(_times, backend, settings, shape, count, course)
        spread = Spread.of(seconds)
        # Each row is read once and written once; a backend may do more.
        num_bytes = 2 * count * kv_bytes(shape.text, ITEMSIZES[backend.dtype])
        rate = num_bytes / spread.median
        rows.append(
            {
                "who": OURS,
                "rows": count,
                "layers": shape.text.num_layers,
                **spread.named("us", 1e6),
                "floor_us": ceilings.floor(num_bytes) * 1e6,
                "ratio": spread.median / ceilings.floor(num_bytes),
                "bytes": num_bytes,
                "gb_per_s": rate / 1e9,
                "share_of_copy": rate / ceilings.copy_bytes_per_s,
                "us_per_row": spread.median * 1e6 / count,
            }
        )
    return shape, rows


def _times(
    backend: Backend, settings: Settings, shape: ModelShape, count: int, course: Course
) -> list[float]:
    text, itemsize = shape.text, ITEMSIZES[backend.dtype]
    pages = -(-SPACE * count // PAGE_SIZE)
    region = pages * PAGE_SIZE * kv_bytes(text, itemsize)
    moved = 2 * count * kv_bytes(text, itemsize)
    wanted = 1 if settings.warm else max(-(-COLD // moved), 2)
    held = region * POOL_ARRAYS // 2
    regions = fit_copies(backend, held, wanted, 1, "migration", course)
    pools = backend.new_pools(text.num_layers, text.num_kv_heads, text.head_dim, regions * pages)
    rng = np.random.default_rng(settings.seed)
    moves = [_moves(rng, region * pages, pages, count) for region in range(regions)]
    sources = np.concatenate([source for source, _ in moves])
    cos = np.ones((len(sources), text.head_dim // 2), np.float32)
    held_cells = LiveCells(sources, cos, np.zeros_like(cos), 0)
    most = backend.prefill_step
    fill(backend, pools, held_cells.steps(0, most), most, settings.seed)

    def move(index: int) -> None:
        backend.migrate(pools, *moves[index % regions])

    backend.timed(move, WARM_UP)
    return backend.timed(lambda index: move(index + WARM_UP), settings.repeat)


def _moves(
    rng: np.random.Generator, first_page: int, pages: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows here and there to free rows here and there, both rising."""
    slots = first_page * PAGE_SIZE + rng.permutation(pages * PAGE_SIZE)[: 2 * count]
    return (
        np.sort(slots[:count]).astype(np.int32),
        np.sort(slots[count:]).astype(np.int32),
    )
