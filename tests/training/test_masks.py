"""The block mask of FlexAttention against the dense one, and attention under both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

CASES = [None, (2, 0), (1, 3), (2, 8)]


@pytest.fixture(params=CASES, ids=str)
def visibility(request: pytest.FixtureRequest, tiny_row: Callable[..., Any]) -> Any:
    """Of two rows, the history dropped as the parameter says: units, sinks."""
    from training.batch import collate
    from training.rows import Forgetting

    forgetting = request.param and Forgetting(*request.param)
    rows = [tiny_row(1, (4,), forgetting)[0], tiny_row(2, (1, 2), forgetting)[0]]
    return collate(rows).visibility


def test_blocks_are_those_of_the_dense_mask(visibility: Any) -> None:
    from training.masks import BLOCK

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
    assert touched.sum() < touched.numel() / 2


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_both_forms_give_the_same_attention(visibility: Any) -> None:
    # Forward only: on the CPU, PyTorch has no gradients of FlexAttention.
    from training.masks import attend

    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(0)
    rows, tokens = visibility.first.shape
    q, k, v = (torch.randn(rows, 2, tokens, 16, generator=random) for _ in range(3))
    dense = attend(q, k, v, visibility.dense())
    assert torch.isfinite(dense).all()
    torch.testing.assert_close(attend(q, k, v, visibility.blocks()), dense, rtol=1e-4, atol=1e-5)
