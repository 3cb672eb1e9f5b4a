"""The MLX backend does launch its Metal kernels, where the parity suite says that it does."""

from __future__ import annotations

import numpy as np
import pytest
from metal_cpu_harness.variant import metal_backend, variant_missing

from omnitide.step import Step


@pytest.fixture
def available() -> None:
    reason = variant_missing()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.usefixtures("available")
@pytest.mark.parametrize("queries", [1, 40])
def test_attention_is_launched(queries: int) -> None:
    from metal_cpu_harness.launcher import MetalOnCpu

    launcher = MetalOnCpu()
    backend = metal_backend("float16", launcher)
    table = np.zeros((queries, 32), np.float32)
    slots = np.arange(queries, dtype=np.int32)
    step = Step(slots, slots, table + 1, table, slots, slots, table + 1, table)

    def attend() -> None:
        pools = backend.new_pools(1, 2, 64, 1)
        new = backend.asarray(np.ones((queries, 2, 64)))
        backend.append(pools, 0, step, new, new)
        q = backend.asarray(np.ones((queries, 4, 64)))
        out = backend.to_numpy(backend.attention(q, pools, 0, step, 0.125))
        np.testing.assert_allclose(out, 1, atol=2e-3)

    backend.run(attend)
    assert launcher.launches
