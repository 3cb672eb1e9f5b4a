"""Bytes and operations, against arrays that were made and products that were counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omnitide.backends.reference.backend import ReferenceBackend
from omnitide.bench.backbone import Backbone
from omnitide.bench.cells import live_cells
from omnitide.bench.filling import fill
from omnitide.bench.packing import Packing
from omnitide.bench.room import fit_copies, fit_layers, kv_bytes, matrix_flops, weight_bytes
from omnitide.bench.settings import Course, Settings
from omnitide.bench.shapes import SHAPES, make_shape
from omnitide.bench.update import work
from omnitide.errors import CapacityError

Make = Callable[..., Settings]
GIB = 2**30


class Counting(ReferenceBackend):
    """Counts the operations of its products."""

    flops = 0

    def linear(self, x: Any, weight: Any, bias: Any = None, residual: Any = None) -> Any:
        self.flops += 2 * x.reshape(-1, x.shape[-1]).shape[0] * weight.size
        return super().linear(x, weight, bias, residual)


def arrays_of(value: Any) -> list[np.ndarray]:
    """Every array inside a model's layers."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, list):
        return [array for item in value for array in arrays_of(item)]
    fields = getattr(value, "__dataclass_fields__", {})
    return [array for name in fields for array in arrays_of(getattr(value, name))]


@pytest.mark.parametrize("packing", [None, Packing(4, 32), Packing(8, 32)])
def test_weight_bytes_are_those_of_the_arrays(
    backend: ReferenceBackend, packing: Packing | None
) -> None:
    model = Backbone(make_shape("tiny"), backend, 0, packing)
    decoder = model.decoder
    arrays = arrays_of([decoder.layers, decoder.norm, decoder.lm_head])
    found = sum(array.nbytes for array in arrays)
    assert weight_bytes(make_shape("tiny").text, 4, packing) == found


def test_the_published_sizes_are_known() -> None:
    # Parameters of the published 7B decoder: 7.6 billion, of which the embeddings are 0.545.
    text = SHAPES["qwen2.5-omni-7b"].text
    assert weight_bytes(text, 2) == 2 * (7_615_616_512 - 152_064 * 3584)
    assert kv_bytes(text, 2) == 57_344
    assert kv_bytes(SHAPES["minicpm-o"].text, 2) == 147_456
    assert kv_bytes(SHAPES["qwen2.5-omni-3b"].text, 2) == 36_864


def test_kv_bytes_are_those_of_the_pools(backend: ReferenceBackend) -> None:
    text = make_shape("tiny").text
    pools = backend.new_pools(text.num_layers, text.num_kv_heads, text.head_dim, 5)
    assert kv_bytes(text, 4) * 5 * 64 == pools.nbytes


def test_bytes_of_packed_keys_and_values_are_those_of_the_pools(
    backend: ReferenceBackend,
) -> None:
    text = make_shape("tiny").text
    pools = backend.new_pools(text.num_layers, text.num_kv_heads, text.head_dim, 5, 8)
    assert kv_bytes(text, 4, kv_bits=8) * 5 * 64 == pools.nbytes
    # Of the 7B: 28 layers of 4 heads of 128 bytes and a scale, keys and values.
    assert kv_bytes(SHAPES["qwen2.5-omni-7b"].text, 2, kv_bits=8) == 28 * 2 * 4 * 132


@pytest.mark.parametrize("tokens", [1, 17])
def test_operations_are_those_that_a_pass_makes(settings: Make, tokens: int) -> None:
    backend = Counting("float32", "here")
    text = make_shape("tiny").text
    model = Backbone(make_shape("tiny"), backend, 0)
    cells = live_cells(settings(), "dense", 40, tokens, "", "")
    pools = backend.new_pools(text.num_layers, text.num_kv_heads, text.head_dim, cells.num_pages)
    fill(backend, pools, cells.steps(0, 64), 64, 0)
    ((_, step),) = cells.steps(40, 64)
    model.forward(model.embeddings(tokens), pools, step)
    assert matrix_flops(text, tokens) == backend.flops
    # Two products of head_dim terms for each head and pair; one query in the last of three layers.
    pairs = 2 * int(step.visible.sum()) + int(step.visible[-1].sum())
    attention = 2 * 2 * pairs * 2 * 128
    num_bytes, flops = work(text, 4, tokens, 40)
    assert flops == backend.flops + attention
    assert num_bytes == weight_bytes(text, 4) + (40 + tokens) * kv_bytes(text, 4)


def fitted(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch, free: float, layers: int | None
) -> tuple[int, list[str]]:
    monkeypatch.setattr(backend, "memory_free", lambda: int(free))
    course = Course()
    shape = fit_layers(backend, SHAPES["qwen2.5-omni-7b"], layers, 2816, 512, course)
    return shape.text.num_layers, course.notes


def test_all_layers_run_where_they_fit(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fitted(backend, monkeypatch, 80 * GIB, None) == (28, [])


def test_fewer_layers_run_where_memory_is_short_and_it_is_said(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, (note,) = fitted(backend, monkeypatch, 20 * GIB, None)
    # In float32: a layer has 0.87 GiB of weights; the vocabulary twice takes 4.1.
    assert layers == 15
    assert note.startswith("15 of 28 layers were run: 28 need ")
    assert note.endswith("18.0 GiB can be used")


def test_layers_that_were_asked_for_are_said_too(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, notes = fitted(backend, monkeypatch, 80 * GIB, 4)
    assert (layers, notes) == (4, ["4 of 28 layers were run, as asked"])


def test_more_layers_fit_where_keys_and_values_are_packed(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "memory_free", lambda: 20 * GIB)
    shape, cells = SHAPES["qwen2.5-omni-7b"], 1 << 17
    fits = [
        fit_layers(backend, shape, None, cells, 512, Course(), None, bits).text.num_layers
        for bits in (None, 8)
    ]
    # In float32: a layer's cells take 0.75 GiB with turned keys; packed 0.13, and 0.56 once.
    assert fits == [8, 13]


def test_what_does_not_fit_is_refused_with_numbers(
    backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CapacityError, match=r"one layer of qwen2.5-omni-7b with 2,816 cells needs"):
        fitted(backend, monkeypatch, 4 * GIB, None)


def test_copies_fit_the_memory(backend: ReferenceBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "memory_free", lambda: 1000)
    course = Course()
    assert fit_copies(backend, 100, 5, 1, "attention", course) == 5
    assert course.notes == []
    assert fit_copies(backend, 100, 20, 1, "attention", course) == 9
    assert "only 9 of 20 copies" in course.notes[0]
    with pytest.raises(CapacityError, match=r"attention needs .* can be used"):
        fit_copies(backend, 1000, 2, 1, "attention", course)
