"""Random quantised matrices: what they weigh, what they hold, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omnitide.backends.eight_bit import EightBitPools
from omnitide.backends.reference.backend import ReferenceBackend
from omnitide.bench import decode, update
from omnitide.bench.ceilings import Ceilings
from omnitide.bench.packing import Packing
from omnitide.bench.room import fit_layers, weight_bytes
from omnitide.bench.settings import Course, Settings
from omnitide.bench.shapes import SHAPES
from omnitide.dequantize import dequantize
from omnitide.errors import ConfigError

Make = Callable[..., Settings]
PACKINGS = pytest.mark.parametrize("packing", [Packing(4, 32), Packing(8, 32), Packing(4, 128)])


@PACKINGS
def test_a_matrix_keeps_what_it_is_multiplied_with_near_one(
    backend: ReferenceBackend, packing: Packing
) -> None:
    made = packing.random(backend, (400, 512), 1)
    assert made.shape == (400, 512)
    assert (made.bits, made.group_size, made.mode) == (packing.bits, packing.group_size, "affine")
    values = dequantize(made, np.dtype(np.float64))
    x = np.random.default_rng(2).standard_normal((64, 512))
    assert np.std(x @ values.T) == pytest.approx(1, rel=0.05)
    # Every code occurs, and every group has a scale and a bias of its own.
    codes = made.packed.view(np.uint8)
    assert len(np.unique(codes)) == 256
    assert len(np.unique(made.scales)) > 0.99 * made.scales.size
    assert abs(np.corrcoef(made.scales.ravel(), made.biases.ravel())[0, 1]) < 0.15
    again = packing.random(backend, (400, 512), 1)
    np.testing.assert_array_equal(again.packed, made.packed)
    other = packing.random(backend, (400, 512), 2)
    assert not np.array_equal(other.packed, made.packed)


def test_bytes_of_the_published_sizes() -> None:
    text = SHAPES["qwen2.5-omni-7b"].text
    # Of a layer: q and output, k and v, gate, up and down; the vocabulary once. Vectors stay.
    layer = 2 * 3584 * 3584 + 2 * 512 * 3584 + 3 * 18_944 * 3584
    elements = 28 * layer + 152_064 * 3584
    vectors = 28 * (3584 + 2 * 512 + 2 * 3584) + 3584
    for bits, group in ((4, 64), (8, 32)):
        want = elements * bits // 8 + elements // group * 4 + 2 * vectors
        assert weight_bytes(text, 2, Packing(bits, group)) == want


def test_more_layers_fit(backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "memory_free", lambda: 8 << 30)
    course, shape = Course(), SHAPES["qwen2.5-omni-7b"]
    packed = fit_layers(backend, shape, None, 2816, 512, course, Packing(4))
    assert (packed.text.num_layers, course.notes) == (28, [])
    # In float32 a layer takes 0.87 GiB, the vocabulary twice 4.1.
    assert fit_layers(backend, shape, None, 2816, 512, course).text.num_layers == 3


@pytest.mark.parametrize("run", [decode.run, update.run])
def test_rows_have_the_bytes_of_packed_weights(
    backend: ReferenceBackend, settings: Make, ceilings: Ceilings, run: Callable[..., Any]
) -> None:
    given: dict[str, Any] = {"policies": ("full",), "histories": (100,), "repeat": 1}
    found = []
    for packing in (None, Packing(4, 32)):
        _, (row,) = run(backend, settings(packing=packing, **given), ceilings, Course())
        assert row["floor_ms"] == pytest.approx(
            1e3 * ceilings.floor(row["bytes"], row.get("flops", 0))
        )
        found.append(row["bytes"])
    # Of the tiny decoder: three layers of q, k, v, output, gate, up and down, and the vocabulary.
    layer = 256 * (256 + 128 + 128 + 256 + 3 * 96)
    elements = 3 * layer + 288 * 256
    assert found[0] - found[1] == elements * 4 - (elements // 2 + elements // 32 * 8)


@pytest.mark.parametrize("run", [decode.run, update.run])
def test_rows_have_the_bytes_of_packed_keys_and_values(
    backend: ReferenceBackend,
    settings: Make,
    ceilings: Ceilings,
    run: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[str, Any] = {"policies": ("full",), "histories": (100,), "repeat": 1}
    found, kinds, make = [], [], backend.new_pools

    def new_pools(*args: Any) -> Any:
        pools = make(*args)
        kinds.append(isinstance(pools, EightBitPools))
        return pools

    monkeypatch.setattr(backend, "new_pools", new_pools)
    for bits in (None, 8):
        _, (row,) = run(backend, settings(kv_bits=bits, **given), ceilings, Course())
        assert row["floor_ms"] == pytest.approx(
            1e3 * ceilings.floor(row["bytes"], row.get("flops", 0))
        )
        found.append(row["bytes"])
    assert kinds == [False, True]
    # Of the tiny decoder: 100 cells and a new one, three layers with one KV head of 128, float32.
    assert found[0] - found[1] == 101 * 3 * 2 * (128 * 4 - (128 + 4))


@pytest.mark.parametrize("run", [decode.run, update.run])
def test_a_backend_that_does_not_pack_keys_and_values_is_refused(
    backend: ReferenceBackend,
    settings: Make,
    ceilings: Ceilings,
    run: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "kv_bits", frozenset())
    monkeypatch.setattr(backend, "new_pools", lambda *_: pytest.fail("pools were made"))
    with pytest.raises(ConfigError, match="backend reference doesn't pack keys and values"):
        run(backend, settings(kv_bits=8), ceilings, Course())


@pytest.mark.parametrize("run", [decode.run, update.run])
def test_a_backend_without_such_weights_is_refused(
    backend: ReferenceBackend,
    settings: Make,
    ceilings: Ceilings,
    run: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "quantized_modes", frozenset({"mxfp4"}))
    with pytest.raises(ConfigError, match="backend reference takes no affine weights; leave out"):
        run(backend, settings(packing=Packing(4, 32)), ceilings, Course())


def test_settings_refuse_what_does_not_go_with_it(settings: Make) -> None:
    with pytest.raises(ConfigError, match="must divide the 96 columns of every matrix, got 64"):
        settings(packing=Packing(4))
    with pytest.raises(ConfigError, match="--peer torch has no quantised matrices like ours, only"):
        settings(packing=Packing(4, 32), peers=("mlx-lm", "torch"))


@pytest.mark.parametrize(
    ("bits", "group", "message"),
    [
        (3, 64, "--q-bits must be one of 4, 8, got 3"),
        (4, 16, "--q-group-size must be one of 32, 64, 128, got 16"),
    ],
)
def test_unknown_formats_are_refused(bits: int, group: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Packing(bits, group)
