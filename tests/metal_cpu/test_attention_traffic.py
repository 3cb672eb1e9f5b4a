"""What attention's shaders read, against the floor: each live row once, of dead tiles nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from metal_cpu_harness.variant import metal_backend, variant_missing

from omnitide.step import Step

HEADS, KV_HEADS, DIM, ITEM = 14, 2, 128, 2
ROW = DIM * ITEM


@pytest.fixture
def available() -> None:
    reason = variant_missing()
    if reason is not None:
        pytest.skip(reason)


def traffic_of(slots: np.ndarray, pages: int, queries: slice) -> dict[str, dict[str, Any]]:
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
        q = backend.asarray(np.ones((step.num_queries, HEADS, DIM)))
        backend.synchronize(backend.attention(q, pools, 0, step, DIM**-0.5))

    backend.run(attend)
    return {launch.name: dict(launch.traffic) for launch in launcher.launches}


@pytest.mark.usefixtures("available")
@pytest.mark.parametrize(
    "live",
    [
        pytest.param(np.arange(320), id="whole tiles"),
        pytest.param(np.delete(np.arange(320), [3, 40, 41, 200]), id="a few holes"),
        pytest.param(np.arange(640).reshape(10, 2, 32)[:, 0].reshape(-1), id="half the tiles dead"),
    ],
)
def test_decode_reads_live_rows_once(live: np.ndarray) -> None:
    slots = live.astype(np.int32)
    traffic = traffic_of(slots, 10, slice(-1, None))["decode_attention"]
    floor = len(slots) * KV_HEADS * ROW
    for name in ("keys", "values"):
        # Of a tile with holes the live rows alone.
        assert traffic[name].fetched == traffic[name].touched == floor
    # Angles in float32, half a head each: once a KV head.
    for name in ("cosines", "sines"):
        assert traffic[name].fetched == len(slots) * KV_HEADS * DIM // 2 * 4


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
