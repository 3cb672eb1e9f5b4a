"""mlx-lm's side of the comparison computes what ours does, so equal work is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omnitide.backends.reference.backend import ReferenceBackend
from omnitide.bench.backbone import Backbone
from omnitide.bench.cells import live_cells
from omnitide.bench.filling import fill
from omnitide.bench.packing import Packing
from omnitide.bench.settings import Course, Settings
from omnitide.bench.shapes import SHAPES, ModelShape, make_shape
from omnitide.bench.timing import WARM_UP
from omnitide.models.text_config import TextConfig
from omnitide.quantized import QuantizedWeight

pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")

import mlx.core as mx
import mlx.nn as nn

from omnitide.bench.peers import mlx_lm_decoder

Make = Callable[..., Settings]
HISTORY = 40
TINY = make_shape("tiny").text
QWEN3 = replace(TINY, qkv_bias=False, qk_norm=True)


def give(linear: Any, ours: Any) -> None:
    """Our weights to a matrix, a norm or a packed matrix of theirs."""
    if isinstance(ours.weight, QuantizedWeight):
        linear.weight = mx.array(ours.weight.packed)
        linear.scales, linear.biases = mx.array(ours.weight.scales), mx.array(ours.weight.biases)
    else:
        linear.weight = mx.array(ours.weight)
    if getattr(ours, "bias", None) is not None:
        linear.bias = mx.array(ours.bias)


@pytest.fixture
def peer(backend: ReferenceBackend) -> mlx_lm_decoder.MlxLmModel:
    """The one that goes with the NumPy backend."""
    (found,) = mlx_lm_decoder.peers(backend, Course())
    return found


@pytest.mark.parametrize("text", [TINY, QWEN3], ids=["qwen2", "qwen3"])
@pytest.mark.parametrize("packing", [None, Packing(4, 32)], ids=["plain", "4 bits"])
@pytest.mark.parametrize("queries", [1, 9])
def test_the_model_gives_our_logits(
    backend: ReferenceBackend,
    settings: Make,
    queries: int,
    packing: Packing | None,
    text: TextConfig,
    turned: Callable[..., Any],
) -> None:
    shape = ModelShape("small", text, "qwen-448")
    ours = Backbone(shape, backend, 3, packing)
    cells = live_cells(settings(shape=shape), "dense", HISTORY, queries, "", "")
    pools = backend.new_pools(text.num_layers, text.num_kv_heads, text.head_dim, cells.num_pages)
    fill(backend, pools, cells.steps(0, 64), 64, 1)
    ((_, step),) = cells.steps(HISTORY, 64)
    x = ours.embeddings(queries)

    with mx.stream(mx.cpu):
        model = mlx_lm_decoder.new_model(text, 0)
        mlx_lm_decoder._fill(model, mx.float32, packing)
        for theirs, layer in zip(model.layers, ours.decoder.layers, strict=True):
            give(theirs.input_layernorm, layer.attention_norm)
            give(theirs.post_attention_layernorm, layer.mlp.norm)
            for name in ("q", "k", "v", "o"):
                give(theirs.self_attn[f"{name}_proj"], getattr(layer, name))
            for name in ("gate", "up", "down"):
                give(theirs.mlp[f"{name}_proj"], getattr(layer.mlp, name))
        give(model.model.norm, ours.decoder.norm)
        give(model.lm_head, ours.decoder.lm_head)
        run = mlx_lm_decoder.Step(model, text, mx.float32, HISTORY, queries)
        page, row = np.divmod(cells.slots[:HISTORY], 64)
        for index, cache in enumerate(run.caches):
            assert (cache.offset, cache.keys.shape[1:]) == (HISTORY, (1, 256, 128))
            keys, values = (p[index][page, :, row] for p in (pools.keys, pools.values))
            keys = turned(keys, cells.cos[:HISTORY], cells.sin[:HISTORY])
            cache.keys[0, :, :HISTORY] = mx.array(keys.transpose(1, 0, 2))
            cache.values[0, :, :HISTORY] = mx.array(values.transpose(1, 0, 2))
        run.x = mx.array(x)[None]
        found = np.array(run())
        # Made again and again, for the caches are cut back.
        assert {cache.offset for cache in run.caches} == {HISTORY}
        np.testing.assert_array_equal(np.array(run()), found)
    wanted = ours.forward(x, pools, step)
    assert found.shape == (1, 1, text.vocab_size)
    assert np.abs(found[0, 0] - wanted).max() < 2e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("tied", [False, True])
def test_the_vocabulary_may_be_the_embedding(tied: bool) -> None:
    text = replace(TINY, tied=tied)
    with mx.stream(mx.cpu):
        model = mlx_lm_decoder.new_model(text, 0)
        mlx_lm_decoder._fill(model, mx.float32, None)
        run = mlx_lm_decoder.Step(model, text, mx.float32, HISTORY, 3)
        logits = np.array(run())[0, 0]
        hidden = np.array(model.model(None, cache=run.caches, input_embeddings=run.x))[0, -1]
        rows = model.model.embed_tokens.weight if tied else model.lm_head.weight
        np.testing.assert_allclose(logits, np.array(rows) @ hidden, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("packing", [Packing(4, 32), Packing(8, 32)])
def test_all_matrices_are_quantised(packing: Packing) -> None:
    with mx.stream(mx.cpu):
        model = mlx_lm_decoder.new_model(TINY, 0)
        mlx_lm_decoder._fill(model, mx.bfloat16, packing)
    made = [module for _, module in model.named_modules() if hasattr(module, "bits")]
    # Three layers of q, k, v, output, gate, up and down, the embeddings and the vocabulary.
    assert len(made) == 3 * 7 + 2
    assert not [m for _, m in model.named_modules() if type(m) in (nn.Linear, nn.Embedding)]
    layer = 256 * (256 + 128 + 128 + 256 + 3 * 96)
    elements = 3 * layer + 2 * 288 * 256
    packed = sum(m.weight.nbytes + m.scales.nbytes + m.biases.nbytes for m in made)
    assert packed == elements * packing.bits // 8 + elements // 32 * 4
    assert {m.scales.dtype for m in made} == {mx.bfloat16}


def test_weights_are_in_the_dtype_and_from_the_seed() -> None:
    found = []
    for seed in (1, 1, 2):
        with mx.stream(mx.cpu):
            model = mlx_lm_decoder.new_model(TINY, seed)
            mlx_lm_decoder._fill(model, mx.float16, None)
            weight = model.layers[0].mlp.up_proj.weight
            assert weight.dtype == mx.float16
            found.append(np.array(weight))
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_times_of_each_history(peer: mlx_lm_decoder.MlxLmModel, settings: Make) -> None:
    found = list(peer.times(make_shape("tiny"), settings(repeat=4), (20, 30), 2))
    assert [(history, name) for history, name, _ in found] == [(20, "mlx-lm"), (30, "mlx-lm")]
    for _, _, seconds in found:
        assert len(seconds) == 4
        assert min(seconds) > 0


def test_the_first_calls_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(mlx_lm_decoder.time, "perf_counter", lambda: next(clock) ** 2)
    with mx.stream(mx.cpu):
        model = mlx_lm_decoder.new_model(TINY, 0)
        run = mlx_lm_decoder.Step(model, TINY, mx.float32, 5, 1)
        # A call lies between two readings of the clock, which go on as squares.
        first = 2 * WARM_UP
        assert run.seconds(2) == [2 * first + 1, 2 * first + 5]


@pytest.mark.parametrize("metal", [True, False])
def test_the_bounds_on_memory_are_its_own_and_set_back(
    peer: mlx_lm_decoder.MlxLmModel,
    settings: Make,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    metal: bool,
) -> None:
    ours, limits = 123 << 10, []

    @contextmanager
    def wired(model: Any) -> Iterator[None]:
        print("a large model")
        limits.append(mx.set_cache_limit(ours))
        mx.set_cache_limit(limits[-1])
        yield

    monkeypatch.setattr(mlx_lm_decoder, "wired_limit", wired)
    monkeypatch.setattr(mlx_lm_decoder.mx.metal, "is_available", lambda: metal)
    before = mx.set_cache_limit(ours)
    try:
        assert len(list(peer.times(make_shape("tiny"), settings(repeat=1), (20,), 1))) == 1
    finally:
        after = mx.set_cache_limit(before)
    assert after == ours
    # Our backend bounds what is kept on Metal alone.
    assert limits == [mx.get_memory_limit() if metal else ours]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_what_it_refuses_is_a_note(
    backend: ReferenceBackend,
    settings: Make,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
) -> None:
    def refuse(model: Any) -> None:
        raise error("no memory for this\nand more lines")

    monkeypatch.setattr(mlx_lm_decoder, "make_prompt_cache", refuse)
    course = Course()
    (peer,) = mlx_lm_decoder.peers(backend, course)
    assert list(peer.times(make_shape("tiny"), settings(), (HISTORY,), 5)) == []
    assert course.notes == ["peer mlx-lm refused 5 tokens: no memory for this"]


@pytest.mark.parametrize(
    "changes",
    [
        {"qkv_bias": False},
        {"qk_norm": True},
        {"num_heads": 4},
    ],
)
def test_a_shape_that_is_not_its_own_is_a_note(
    backend: ReferenceBackend, settings: Make, changes: dict[str, Any]
) -> None:
    course = Course()
    (peer,) = mlx_lm_decoder.peers(backend, course)
    shape = ModelShape("odd", replace(TINY, **changes), "qwen-448")
    assert list(peer.times(shape, settings(), (HISTORY,), 1)) == []
    assert course.notes == ["peer mlx-lm refused odd: it has no model of this shape"]


@pytest.mark.parametrize("name", SHAPES)
def test_all_shapes_have_a_model(name: str) -> None:
    model = mlx_lm_decoder.new_model(SHAPES[name].text, 0)
    assert model.args.hidden_size == SHAPES[name].text.hidden_size
    assert model.model_type == ("qwen3" if name == "minicpm-o" else "qwen2")


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"dtype": "float64"}, "its models don't compute in float64"),
        ({"name": "cuda"}, "this build of MLX can't use the GPU"),
    ],
)
def test_where_mlx_can_not_follow_it_is_left_out(
    backend: ReferenceBackend,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    note: str,
) -> None:
    for attribute, value in change.items():
        monkeypatch.setattr(backend, attribute, value)
    monkeypatch.setattr(mlx_lm_decoder.mx.cuda, "is_available", lambda: False)
    course = Course()
    assert mlx_lm_decoder.peers(backend, course) == []
    assert course.notes == [f"peer mlx-lm is left out: {note}"]
