"""One layer's attention: new tokens over live cells, wherever they lie."""

from __future__ import annotations

from itertools import product
from typing import Any

from omnitide.backend import Backend, Pools
from omnitide.bench.ceilings import Ceilings
from omnitide.bench.cells import LiveCells, live_cells
from omnitide.bench.filling import fill
from omnitide.bench.peers import attention_peers
from omnitide.bench.report import OURS, Row
from omnitide.bench.room import POOL_ARRAYS, fit_copies, kv_bytes
from omnitide.bench.settings import Course, Settings
from omnitide.bench.shapes import ModelShape
from omnitide.bench.timing import WARM_UP, Spread
from omnitide.figures import ITEMSIZES
from omnitide.models.text_config import TextConfig
from omnitide.pages import PAGE_SIZE

COLD = 256 << 20
"""Bytes of K and V that are gone through before any is read again: several last-level caches."""

MOST_COPIES = 256
"""Pools at most, whatever `COLD` asks for."""

US = 1e6


def run(
    backend: Backend, settings: Settings, ceilings: Ceilings, course: Course
) -> tuple[ModelShape, list[Row]]:
    """Measure each case, then the peers' dense attention over as many cells. Shape and rows.

    Raises:
        CapacityError: A case does not fit the memory.
        ConfigError: A history that no stream comes to.
    """
    if "scattered" in settings.live:
        settings.refuse_mass()
    peers = attention_peers(settings, backend, course)
    rows = []
    for queries, history in product(settings.queries, settings.histories):
        for live in settings.live:
            for policy, layout in settings.choices if live == "scattered" else (("", ""),):
                where = f"{live} {policy} {layout}".strip()
                course.tell(f"{queries:,} queries after {history:,} cells, {where}")
                cells = live_cells(settings, live, history, queries, policy, layout)
                seconds = backend.run(_ours, backend, settings, cells, course)
                case = {"who": OURS, "live": live, "policy": policy, "layout": layout}
                rows.append(_row(case, settings, cells, seconds, ceilings, backend.dtype))
        if peers:
            dense = live_cells(settings, "dense", history, queries, "", "")
            for peer in peers:
                course.tell(f"{queries:,} queries after {history:,} cells, {peer.name}")
                found = peer.times(settings, history, queries)
                if found is not None:
                    case = {"who": peer.name, "live": "dense", "policy": "", "layout": ""}
                    rows.append(_row(case, settings, dense, found, ceilings, backend.dtype))
    return settings.shape, rows


def work(text: TextConfig, itemsize: int, cells: LiveCells) -> tuple[int, int]:
    """Bytes (K and V of all cells read, q read, the result written) and operations of one layer."""
    width = text.num_heads * text.head_dim
    num_bytes = (
        len(cells.slots) * kv_bytes(text, itemsize, 1) + 2 * cells.queries * width * itemsize
    )
    return num_bytes, 4 * cells.pairs * width


def copies_wanted(num_bytes: int, warm: bool) -> int:
    """How many times the data are needed so that no cache holds what is read next."""
    return 1 if warm else min(max(-(-COLD // num_bytes), 2), MOST_COPIES)


def _ours(backend: Backend, settings: Settings, cells: LiveCells, course: Course) -> list[float]:
    text, itemsize = settings.shape.text, ITEMSIZES[backend.dtype]
    pool = cells.num_pages * PAGE_SIZE * kv_bytes(text, itemsize, 1) * POOL_ARRAYS // 2
    read = len(cells.slots) * kv_bytes(text, itemsize, 1)
    wanted = copies_wanted(read, settings.warm)
    copies = fit_copies(backend, pool, wanted, 1, "attention", course)
    pools = backend.new_pools(copies, text.num_kv_heads, text.head_dim, cells.num_pages)
    most = backend.prefill_step
    fill(backend, pools, cells.steps(0, most), most, settings.seed)
    _touch(backend, settings, pools, cells)
    total = [0.0] * settings.repeat
    for number, (_, step) in enumerate(cells.steps(cells.history, most)):
        shape = (step.num_queries, text.num_heads, text.head_dim)
        q = backend.random_normal(shape, 1.0, settings.seed + 2 + number)

        def attend(index: int, q: Any = q, step: Any = step) -> Any:
            layer = index % copies
            return backend.attention(q, pools, layer, step, text.head_dim**-0.5)

        backend.timed(attend, WARM_UP)
        seconds = backend.timed(lambda index: attend(index + WARM_UP), settings.repeat)
        total = [a + b for a, b in zip(total, seconds, strict=True)]
    return total


def _touch(backend: Backend, settings: Settings, pools: Pools, cells: LiveCells) -> None:
    """Read every layer once, for what a backend does when it first reads one (turning keys)."""
    text = settings.shape.text
    ((_, step),) = cells.steps(len(cells.slots) - 1, 1)
    q = backend.random_normal((1, text.num_heads, text.head_dim), 1.0, settings.seed)
    for layer in range(len(pools.keys)):
        backend.synchronize(backend.attention(q, pools, layer, step, text.head_dim**-0.5))


def _row(
    case: Row,
    settings: Settings,
    cells: LiveCells,
    seconds: list[float],
    ceilings: Ceilings,
    dtype: str,
) -> Row:
    spread = Spread.of(seconds)
    num_bytes, flops = work(settings.shape.text, ITEMSIZES[dtype], cells)
    floor = ceilings.floor(num_bytes, flops)
    return {
        **case,
        "queries": cells.queries,
        "history": cells.history,
        "tiles": cells.tiles,
        **spread.named("us", US),
        "floor_us": floor * US,
        "ratio": spread.median / floor,
        "bytes": num_bytes,
        "flops": flops,
        "gb_per_s": num_bytes / spread.median / 1e9,
        "tflops_per_s": flops / spread.median / 1e12,
    }
