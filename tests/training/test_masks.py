"""The block mask of FlexAttention against the dense one, and attention under both."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

CASES = [None, (2, 0), (1, 3), (2, 8), "random", "random again"]


def _random(seed: int) -> Any:
    """Runs of all lengths, and so few kept tokens that many blocks have none."""
    from training.rows.masks import Visibility

    random = torch.Generator().manual_seed(seed)
    rows, tokens = 2, 768
    place = torch.arange(tokens).expand(rows, tokens)
    first, seen, horizon = (torch.rand(rows, tokens, generator=random) for _ in range(3))
    # Neighbours see much the same, as in a row, so that some blocks are full.
    first = (first[:, :1] * 200 + first * 3).int()
    seen = torch.minimum(first + 40 + (seen * 9).int() + place // 128 * 128, place + 1).int()
    horizon = first + (horizon * 4).int() + torch.tensor([[0], [300]])
    own = (place - torch.randint(0, 9, (rows, tokens), generator=random)).clamp(0)
    kept = torch.rand(rows, tokens, generator=random) < 0.002
    kept[1, 256:384] = True
    return Visibility(first.int(), seen, horizon.int(), own.int(), kept)


@pytest.fixture(params=CASES, ids=str)
def visibility(request: pytest.FixtureRequest, tiny_row: Callable[..., Any]) -> Any:
    """Of two rows, the history dropped as the parameter says (units, sinks), or made up."""
    from training.rows.batch import collate
    from training.rows.row import Forgetting

    if isinstance(request.param, str):
        return _random(len(request.param))
    forgetting = request.param and Forgetting(*request.param)
    rows = [tiny_row(1, (4,), forgetting)[0], tiny_row(2, (1, 2), forgetting)[0]]
    return collate(rows).visibility


def test_blocks_are_those_of_the_dense_mask(visibility: Any) -> None:
    from training.rows.masks import BLOCK

    blocks = visibility.blocks()
    dense = visibility.dense()[:, 0]
    rows, tokens, _ = dense.shape
    count = tokens // BLOCK
    tiles = dense.view(rows, count, BLOCK, count, BLOCK).transpose(2, 3)
    touched, full = tiles.any(-1).any(-1), tiles.all(-1).all(-1)
    for number, indices, want in (
        (blocks.kv_num_blocks, blocks.kv_indices, touched & ~full),
        (blocks.full_kv_num_blocks, blocks.full_kv_indices, full),
    ):
        got = torch.zeros_like(want)
        for row in range(rows):
            for query in range(count):
                listed = indices[row, 0, query, : number[row, 0, query]]
                got[row, query, listed.long()] = True
        assert torch.equal(got, want)
    assert 0 < touched.sum() < touched.numel()


@pytest.mark.skipif(
    shutil.which("c++") is None, reason="PyTorch compiles FlexAttention with a C++ compiler"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_blocks_give_the_attention_of_the_dense_mask() -> None:
    # Forward only: on the CPU, PyTorch has no gradients of FlexAttention.
    from training.rows.masks import attend

    torch.set_num_threads(1)
    compiled = torch.compile(attend, dynamic=False)
    random = torch.Generator().manual_seed(0)
    for seed in (1, 2):
        mask = _random(seed)
        q, k, v = (torch.randn(2, 2, 768, 16, generator=random) for _ in range(3))
        with torch.no_grad():
            dense = attend(q, k, v, mask.dense())
            blocks = compiled(q, k, v, mask.blocks())
        assert torch.isfinite(dense).all()
        torch.testing.assert_close(blocks, dense, rtol=1e-4, atol=1e-5)
    # Masks are data: another one asks for no other machine code.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
