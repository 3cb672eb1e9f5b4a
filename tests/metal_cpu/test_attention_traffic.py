"""What attention's shaders read, against the floor: each live row once, of dead tiles nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from metal_cpu_harness.variant import metal_backend, variant_missing

from omnitide.step import Step

KV_HEADS, DIM, ITEM = 2, 128, 2
ROW = DIM * ITEM


@pytest.fixture
def available() -> None:
    reason = variant_missing()
    if reason is not None:
        pytest.skip(reason)


def traffic_of(
    slots: np.ndarray, pages: int, queries: slice, group: int = 7
) -> dict[str, dict[str, Any]]:
    """Traffic by kernel and buffer of attention over these live cells, in float16."""
    from metal_cpu_harness.launcher import MetalOnCpu

    launcher = MetalOnCpu()
    backend = metal_backend("float16", launcher)
    orders = np.arange(len(slots), dtype=np.int32)
    cos, sin = np.ones((len(slots), DIM // 2), np.float32), np.zeros((len(slots), DIM // 2))
    table = (cos, sin.astype(np.float32))
    new = (*(part[queries] for part in (slots, orders)), *(part[queries] for part in table))
    step = Step(slots, orders, *table, *new)

    def attend() -> None:
        pools = backend.new_pools(1, KV_HEADS, DIM, pages)
        q = backend.asarray(np.ones((step.num_queries, group * KV_HEADS, DIM)))
        backend.synchronize(backend.attention(q, pools, 0, step, DIM**-0.5))

    backend.run(attend)
    return {launch.name: dict(launch.traffic) for launch in launcher.launches}


LIVE = {
    "whole tiles": np.arange(320),
    "a few holes": np.delete(np.arange(320), [3, 40, 41, 200]),
    "half the tiles dead": np.arange(640).reshape(10, 2, 32)[:, 0].reshape(-1),
}
ROWS = [(7, 1), (9, 1), (7, 2), (5, 3), (16, 1), (4, 4), (1, 16)]
"""Query heads of a KV head, and queries: 7 to 16 rows."""


@pytest.mark.usefixtures("available")
@pytest.mark.parametrize(("group", "queries"), ROWS)
@pytest.mark.parametrize("live", LIVE.values(), ids=LIVE.keys())
def test_decode_reads_live_rows_once(live: np.ndarray, group: int, queries: int) -> None:
    slots = live.astype(np.int32)
    traffic = traffic_of(slots, 10, slice(-queries, None), group)["decode_attention"]
    floor = len(slots) * KV_HEADS * ROW
    for name in ("keys", "values"):
        # Of a tile with holes the live rows alone.
        assert traffic[name].fetched == traffic[name].touched == floor
    # Angles in float32, half a head each: once a KV head, and for all of them the same bytes.
    angles = len(slots) * DIM // 2 * 4
    for name in ("cosines", "sines"):
        assert traffic[name].fetched == KV_HEADS * angles
        assert traffic[name].touched == angles
    # All else but the queries: lists, masks, orders.
    apart = {"keys", "values", "cosines", "sines", "q", "query_cos", "query_sin"}
    others = sum(t.fetched for name, t in traffic.items() if name not in apart)
    assert 2 * floor + others <= 1.05 * 2 * floor


@pytest.mark.usefixtures("available")
def test_more_than_16_rows_read_once_a_row_block() -> None:
    """16 queries of 7 heads each are 112 rows, 4 blocks; each reads the same bytes."""
    slots = LIVE["a few holes"].astype(np.int32)
    traffic = traffic_of(slots, 10, slice(-16, None))["prefill_attention"]
    tiles = 10 * 32 * KV_HEADS * ROW
    for name in ("turned", "values"):
        assert (traffic[name].fetched, traffic[name].touched) == (4 * tiles, tiles), name


@pytest.mark.usefixtures("available")
@pytest.mark.parametrize("holes", [[], [3, 40, 41, 200]], ids=["whole tiles", "a few holes"])
def test_prefill_reads_the_tiles_that_a_query_sees_once(holes: list[int]) -> None:
    """Three queries of 7 heads each are one row block; they see 4 of the 10 tiles."""
    slots = np.delete(np.arange(320), holes).astype(np.int32)
    traffic = traffic_of(slots, 10, slice(100, 103))
    turning, attention = traffic["rotate"], traffic["prefill_attention"]
    keys = turning["keys"]
    assert keys.fetched == keys.touched == len(slots) * KV_HEADS * ROW
    tile = 32 * KV_HEADS * ROW
    assert turning["turned"].written == 10 * tile
    for name in ("turned", "values"):
        read = attention[name]
        assert read.fetched == read.touched == 4 * tile, name
