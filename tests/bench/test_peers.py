"""PyTorch's side of the comparison computes what ours does, so equal work is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from omnitide.backends.reference.backend import ReferenceBackend
from omnitide.bench.backbone import Backbone
from omnitide.bench.cells import live_cells
from omnitide.bench.filling import fill
from omnitide.bench.settings import Course, Settings
from omnitide.bench.shapes import make_shape

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
Make = Callable[..., Settings]
HISTORY = 40


def tensor(array: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(array))


@pytest.mark.parametrize("queries", [1, 9])
def test_the_decoder_gives_our_logits(
    backend: ReferenceBackend, settings: Make, turned: Callable[..., Any], queries: int
) -> None:
    from omnitide.bench.peers.torch_decoder import _Decoder, _Layer

    text = make_shape("tiny").text
    model = Backbone(make_shape("tiny"), backend, 3)
    cells = live_cells(settings(), "dense", HISTORY, queries, "", "")
    pools = backend.new_pools(text.num_layers, text.num_kv_heads, text.head_dim, cells.num_pages)
    fill(backend, pools, cells.steps(0, 64), 64, 1)
    ((_, step),) = cells.steps(HISTORY, 64)
    x = model.embeddings(queries)

    peer = _Decoder(text, torch.device("cpu"), torch.float32, 0)
    peer.layers = [
        _Layer(
            tensor(ours.attention_norm.weight),
            *(tensor(part.weight) for part in (ours.q, ours.k, ours.v, ours.o)),
            tensor(ours.mlp.norm.weight),
            *(tensor(part.weight) for part in (ours.mlp.gate, ours.mlp.up, ours.mlp.down)),
            bias=tuple(tensor(part.bias) for part in (ours.q, ours.k, ours.v)),
        )
        for ours in model.decoder.layers
    ]
    peer.norm = tensor(model.decoder.norm.weight)
    peer.head = tensor(model.decoder.lm_head.weight)
    run = peer.step(HISTORY, queries)
    assert run.cache.shape == (text.num_layers, 2, 1, 1, HISTORY + queries, 128)
    page, row = np.divmod(cells.slots[:HISTORY], 64)
    for layer in range(text.num_layers):
        keys, values = (p[layer][page, :, row] for p in (pools.keys, pools.values))
        angles = cells.cos[:HISTORY], cells.sin[:HISTORY]
        run.cache[layer, 0, 0, :, :HISTORY] = tensor(turned(keys, *angles).transpose(1, 0, 2))
        run.cache[layer, 1, 0, :, :HISTORY] = tensor(values.transpose(1, 0, 2))
    run.x = tensor(x)
    with torch.no_grad():
        theirs = run(0)[0].numpy()
    ours = model.forward(x, pools, step)
    assert np.abs(theirs - ours).max() < 2e-5 * np.abs(ours).max()
    # Made again and again, for the new cells lie where they lay.
    with torch.no_grad():
        np.testing.assert_array_equal(run(1)[0].numpy(), theirs)


@pytest.mark.parametrize("queries", [1, 5])
def test_attention_sees_what_ours_sees(settings: Make, queries: int) -> None:
    from omnitide.bench.peers.torch_attention import TorchAttention

    peer = TorchAttention("torch", torch.device("cpu"), torch.float32, None, Course())
    cells = live_cells(settings(), "dense", HISTORY, queries, "", "")
    ((_, step),) = cells.steps(HISTORY, 64)
    mask = peer._mask(queries, HISTORY + queries)
    seen = np.ones((1, HISTORY + 1), bool) if mask is None else mask.numpy()
    np.testing.assert_array_equal(seen, step.visible)


def test_what_a_peer_refuses_is_a_note(settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from omnitide.bench.peers import torch_attention

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no kernel for this\nand more lines")

    monkeypatch.setattr(torch_attention, "scaled_dot_product_attention", refuse)
    course = Course()
    peer = torch_attention.TorchAttention("torch", torch.device("cpu"), torch.float32, None, course)
    assert peer.times(settings(), HISTORY, 1) is None
    assert course.notes == ["peer torch refused 1 after 40: no kernel for this"]


@pytest.mark.parametrize(("device", "given_back"), [("cuda", 1), ("cpu", 0)])
def test_the_decoder_gives_the_gpu_back_what_pytorch_keeps(
    settings: Make, monkeypatch: pytest.MonkeyPatch, device: str, given_back: int
) -> None:
    from omnitide.bench.peers import torch_decoder

    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("given back"))
    peer = torch_decoder.TorchModel(torch.device(device), torch.float32, Course())

    def times(*given: Any) -> Any:
        yield HISTORY, "torch", [1.0]
        assert calls == []  # what it holds is still in use

    monkeypatch.setattr(peer, "_times", times)
    found = list(peer.times(make_shape("tiny"), settings(), (HISTORY,), 1))
    assert found == [(HISTORY, "torch", [1.0])]
    assert len(calls) == given_back
