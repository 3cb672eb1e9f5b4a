"""What attention and copies cost on a device: measured once, then remembered in the cache folder.

Invariant: nothing here can end a session, and only timings that agree with each other are trusted
and remembered. Otherwise `NOMINAL` costs hold for this session, with a note.
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

from omnitide.backend import Backend
from omnitide.costs import NOMINAL, Costs
from omnitide.errors import ConfigError
from omnitide.model import ModelSpec
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE
from omnitide.step import Step
from omnitide.whole_file import WholeFile

VERSION = 3
"""Of the way of measuring; costs measured another way are not read."""

BLAS_THREADS = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Environment variables that set how many threads NumPy's matrix products take."""

PAGES = (64, 512)
"""Pages over which costs are measured: more only where timings over few say nothing."""

PATIENCE = 0.5
"""Seconds of measuring after which unsteady timings are not tried again over more pages."""

PAIRS = 9
"""Pairs of timings from which a cost is taken."""


class Unsteady(Exception):
    """Timings that say nothing."""


class Calibration:
    """The costs of one device and model shape. Call on the backend's thread.

    Attributes:
        note: What went wrong, for people; None if nothing did.
    """

    def __init__(
        self,
        backend: Backend,
        spec: ModelSpec,
        folder: Path | None = None,
        kv_bits: int | None = None,
    ) -> None:
        self._backend, self._spec, self._kv_bits = backend, spec, kv_bits
        self._file = (folder or user_cache_path("omnitide")) / "costs.json"
        self._costs: Costs | None = None
        self.note: str | None = None

    @property
    def key(self) -> str:
        """What the costs depend on."""
        spec, backend = self._spec, self._backend
        shape = f"{spec.num_layers}x{spec.num_heads}x{spec.num_kv_heads}x{spec.head_dim}"
        threads = ""
        if backend.name == "reference":
            given = [f"{name}={os.environ[name]}" for name in BLAS_THREADS if name in os.environ]
            threads = f" {' '.join(given) or 'all threads'}"
        kv = "" if self._kv_bits is None else f" kv{self._kv_bits}"
        return f"v{VERSION} {backend.name} {backend.device} {backend.dtype}{threads} {shape}{kv}"

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
        if not (isinstance(tile, float) and isinstance(row, float) and tile > 0 and row > 0):
            return None
        try:
            return Costs(tile, row)
        except ConfigError:  # too large
            return None

    def _measured(self) -> Costs:
        try:
            costs = measure(self._backend, self._spec, self._kv_bits)
        except Exception as error:
            self.note = (
                f"the costs of attention and copies could not be measured ({error}); nominal ones "
                "are used, or give --tile-cost-us and --row-cost-us"
            )
            return NOMINAL
        try:
            _write(self._file, self.key, costs)
        except OSError as error:
            self.note = f"measured costs could not be kept ({error})"
        return costs


def measure(backend: Backend, spec: ModelSpec, kv_bits: int | None = None) -> Costs:
    """Time attention over few and many tiles, and copies of few and many rows, in one layer.

    Raises:
        Unsteady: The timings don't agree with each other, or don't rise.
    """
    few, many = PAGES
    started = time.perf_counter()
    try:
        return _measure(backend, spec, few, kv_bits)
    except Unsteady:
        if time.perf_counter() - started > PATIENCE:
            raise
    # A fast device: the difference drowned in what any call takes.
    return _measure(backend, spec, many, kv_bits)


def _measure(backend: Backend, spec: ModelSpec, pages: int, kv_bits: int | None) -> Costs:
    pools = backend.new_pools(1, spec.num_kv_heads, spec.head_dim, pages, kv_bits)
    slots = np.arange(pages * PAGE_SIZE, dtype=np.int32)
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

    most, few = len(slots) // SUBBLOCK_SIZE, len(slots) // SUBBLOCK_SIZE // 4
    tile = slope("attention", attend(few), attend(most), most - few)
    most, few = len(slots) // 4, len(slots) // 64
    row = slope("copies", copy(few), copy(most), most - few)
    return Costs(tile * spec.num_layers, row * spec.num_layers)


def slope(what: str, less: Callable[[], None], more: Callable[[], None], steps: int) -> float:
    """Microseconds that each of `steps` adds, as the median over pairs of calls made in turn.

    Raises:
        Unsteady: The median is not above 0, or the middle half of the pairs spreads wider than it.
    """
    less()  # the first calls compile and allocate
    more()
    found = sorted((_time(more) - _time(less)) / steps for _ in range(PAIRS))
    middle, spread = median(found), found[-1 - PAIRS // 4] - found[PAIRS // 4]
    if not (middle > 0 and spread <= middle):
        raise Unsteady(f"timings of {what}: {middle:.3g} us, spread {spread:.3g} us")
    return middle


def _step(slots: np.ndarray, queries: int, head_dim: int) -> Step:
    orders = np.arange(len(slots), dtype=np.int32)
    cos = np.ones((len(slots), head_dim // 2), np.float32)
    sin = np.zeros_like(cos)
    last = slice(len(slots) - queries, None)
    # Angles are those of the rows as they were appended: what is timed is attention alone, not
    # the turning of keys of which nothing is known.
    new = slots[last], orders[last], cos[last], sin[last]
    return Step(slots, orders, cos, sin, *new, rotation=0)


def _time(run: Callable[[], None]) -> float:
    """Microseconds of a call."""
    started = time.perf_counter()
    run()
    return (time.perf_counter() - started) * 1e6


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
    text = json.dumps(_read(file) | {key: asdict(costs)}, indent=1)
    with WholeFile(file, "costs", OSError) as whole:
        whole.write(text.encode("ascii"))
        whole.appear()
