"""How decode attention is cut into blocks: what its kernel takes for granted."""

from __future__ import annotations

import pytest

from omnitide.backends.cuda.decode import CLUSTER, HEAD_DIMS, Shape, instances

H200 = 132


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("max_tiles", [0, 1, 7, 128, 4096])
@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8, 28, 40, 200])
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 17, 33, 64, 112, 256])
def test_blocks_that_wait_for_one_another_fit_the_chip(
    rows: int, kv_heads: int, max_tiles: int, clusters: bool
) -> None:
    shape = Shape.of(rows, kv_heads, max_tiles, H200, clusters)
    assert shape.warp_rows * shape.groups * shape.row_blocks >= rows
    assert shape.warp_rows * shape.groups * (shape.row_blocks - 1) < rows
    assert shape.splits == 1 or shape.splits * kv_heads * shape.row_blocks <= H200
    assert not shape.clustered or (shape.splits % CLUSTER == 0 and shape.warp_rows == 8)
    assert shape.instance("float16", 80) in instances()


def test_clusters_are_for_the_chips_that_have_them() -> None:
    assert Shape.of(7, 4, 128, H200, clusters=True).clustered
    assert not Shape.of(7, 4, 128, H200, clusters=False).clustered
    assert not Shape.of(7, 4, 2048, H200, clusters=True).clustered


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("rows", [8, 16, 32, 64])
def test_a_block_fits_the_smallest_shared_memory(rows: int, head_dim: int) -> None:
    assert Shape.of(rows, 1, 128, 80, clusters=False).shared(head_dim) <= 99 * 1024
