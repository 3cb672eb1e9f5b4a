"""What attention and copies cost on a device: measured once, then remembered in the cache folder.

Invariant: nothing here can end a session. A measurement that fails gives `NOMINAL` and a note.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median

import numpy as np
from platformdirs import user_cache_path

from omnitide.acceptance import Costs
from omnitide.backend import Backend
from omnitide.model import ModelSpec
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE
from omnitide.step import Step

VERSION = 1
"""Of the way of measuring; costs measured another way are not read."""

NOMINAL = Costs(tile_us=10.0, row_us=2.0)
"""Where nothing could be measured."""

_PAGES = 64
_REPEAT = 7


class Calibration:
    """The costs of one device and model shape. Call on the backend's thread.

    Attributes:
        note: What went wrong, for people; None if nothing did.
    """

    def __init__(self, backend: Backend, spec: ModelSpec, folder: Path | None = None) -> None:
        self._backend, self._spec = backend, spec
        self._file = (folder or user_cache_path("omnitide")) / "costs.json"
        self._costs: Costs | None = None
        self.note: str | None = None

    @property
    def key(self) -> str:
        """What the costs depend on."""
        spec, backend = self._spec, self._backend
        shape = f"{spec.num_layers}x{spec.num_heads}x{spec.num_kv_heads}x{spec.head_dim}"
        return f"v{VERSION} {backend.name} {backend.device} {backend.dtype} {shape}"

    def __call__(self) -> Costs:
        """The costs: remembered, or measured now and written to the folder."""
        if self._costs is None:
            self._costs = self._remembered() or self._measured()
        return self._costs

    def _remembered(self) -> Costs | None:
        found = _read(self._file).get(self.key)
        if not isinstance(found, dict):
            return None
        tile, row = found.get("tile_us"), found.get("row_us")
        for cost in (tile, row):
            if not isinstance(cost, float) or not 0 <= cost < float("inf"):
                return None
        return Costs(tile, row)  # type: ignore[arg-type]

    def _measured(self) -> Costs:
        try:
            costs = measure(self._backend, self._spec)
        except Exception as error:
            self.note = f"costs could not be measured ({error}); nominal ones are used"
            return NOMINAL
        try:
            _write(self._file, self.key, costs)
        except OSError as error:
            self.note = f"measured costs could not be kept in {self._file} ({error})"
        return costs


def measure(backend: Backend, spec: ModelSpec) -> Costs:
    """Time attention over few and many tiles, and copies of few and many rows, in one layer."""
    pools = backend.new_pools(1, spec.num_kv_heads, spec.head_dim, _PAGES)
    slots = np.arange(_PAGES * PAGE_SIZE, dtype=np.int32)
    rows = backend.asarray(np.zeros((len(slots), spec.num_kv_heads, spec.head_dim)))
    backend.append(pools, 0, _step(slots, len(slots), spec.head_dim), rows, rows)
    backend.synchronize(*pools.keys, *pools.values)
    query = backend.asarray(np.zeros((1, spec.num_heads, spec.head_dim)))

    def attend(tiles: int) -> Callable[[], None]:
        step = _step(slots[: tiles * SUBBLOCK_SIZE], 1, spec.head_dim)
        scale = spec.head_dim**-0.5
        return lambda: backend.synchronize(backend.attention(query, pools, 0, step, scale))

    def copy(count: int) -> Callable[[], None]:
        source, destination = slots[:count], slots[-count:]

        def run() -> None:
            backend.migrate(pools, source, destination)
            backend.synchronize()

        return run

    most, few = 2 * _PAGES, _PAGES // 2
    tile = (_time(attend(most)) - _time(attend(few))) / (most - few)
    row = (_time(copy(1024)) - _time(copy(64))) / (1024 - 64)
    return Costs(max(tile, 0.0) * spec.num_layers, max(row, 0.0) * spec.num_layers)


def _step(slots: np.ndarray, queries: int, head_dim: int) -> Step:
    orders = np.arange(len(slots), dtype=np.int32)
    cos = np.ones((len(slots), head_dim // 2), np.float32)
    sin = np.zeros_like(cos)
    last = slice(len(slots) - queries, None)
    return Step(slots, orders, cos, sin, slots[last], orders[last], cos[last], sin[last])


def _time(run: Callable[[], None]) -> float:
    """Median microseconds of a call, the first left out."""
    run()
    spent = []
    for _ in range(_REPEAT):
        started = time.perf_counter()
        run()
        spent.append(time.perf_counter() - started)
    return median(spent) * 1e6


def _read(file: Path) -> dict[str, object]:
    """All remembered costs; none if the file is missing or damaged."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(file: Path, key: str, costs: Costs) -> None:
    """Add one entry, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = json.dumps(_read(file) | {key: asdict(costs)}, indent=1)
    part = file.with_name(f"{file.name}.{os.getpid()}")
    part.write_text(whole, encoding="utf-8")
    part.replace(file)
