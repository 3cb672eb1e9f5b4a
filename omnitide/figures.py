"""The figures of a session: what was timed, and the statistics made of it and of the cache."""

from __future__ import annotations

from collections import deque

import numpy as np

from omnitide.cache import BoundedCache
from omnitide.response import SessionStats

LATENCIES = 4096
"""Updates whose latency is remembered for the percentiles."""

ITEMSIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of a value of K or V, by the backend's dtype."""


class Figures:
    """Collects times; holds as much after a day as after an hour."""

    def __init__(self) -> None:
        self._latencies: deque[float] = deque(maxlen=LATENCIES)
        self._generated = 0
        self._decode_seconds = 0.0

    def updated(self, seconds: float) -> None:
        """An update took this long."""
        self._latencies.append(seconds)

    def decoded(self, seconds: float) -> None:
        """A reply token took this long."""
        self._generated += 1
        self._decode_seconds += seconds

    def stats(self, cache: BoundedCache) -> SessionStats:
        """Figures as of now."""
        state, spec, backend = cache.state, cache.model.spec, cache.model.backend
        costs = cache.acceptance.costs
        latencies = np.array(self._latencies or [0.0]) * 1e3
        p50, p95 = np.percentile(latencies, [50, 95])
        token = spec.kv_bytes_per_token(ITEMSIZES[backend.dtype])
        return SessionStats(
            units=state.history.next_unit,
            tokens_seen=state.history.tokens_seen,
            tokens_kept=len(state.history),
            capacity_tokens=cache.capacity_tokens,
            evictions=state.evictions,
            rows_moved=state.rows_moved,
            active_pages=state.table.active_pages,
            active_subblocks=state.table.active_subblocks,
            physical_span=state.table.physical_span,
            physical_kv_bytes=cache.pools.nbytes,
            full_kv_bytes=state.history.tokens_seen * token,
            update_ms_p50=round(float(p50), 3),
            update_ms_p95=round(float(p95), 3),
            decode_tokens_per_s=round(self._generated / max(self._decode_seconds, 1e-9), 3),
            peak_memory_bytes=backend.peak_memory(),
            model=spec.name,
            backend=backend.name,
            policy=cache.policy.name,
            high_watermark=cache.config.high_watermark,
            low_watermark=cache.config.low_watermark,
            accept=cache.acceptance.name,
            tile_cost_us=None if costs is None else costs.tile_us,
            row_cost_us=None if costs is None else costs.row_us,
        )
