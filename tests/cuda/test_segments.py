"""What each block of segment attention is told to do, without a GPU: every query, and its keys."""

from __future__ import annotations

import numpy as np
import pytest

from omnitide.backends.cuda.plain_attention import segment_blocks
from omnitide.backends.cuda.segments import work_items

CASES = {
    "one": ((5,), (5,)),
    "windows": ((64,) * 5, (64,) * 5),
    "ragged": ((7, 300, 1, 64), (7, 300, 1, 64)),
    "few queries": ((8, 8, 8), (1000, 33, 65)),
    "few keys": ((500, 17), (1, 2)),
    "both ragged": ((50, 50, 1, 128), (50, 100, 150, 3)),
}


def expected(lengths: tuple[int, ...], key_lengths: tuple[int, ...]) -> list[tuple[int, int]]:
    """First key and stop of the keys of each token."""
    stops = np.cumsum(key_lengths)
    return [
        (int(stop) - count, int(stop))
        for length, count, stop in zip(lengths, key_lengths, stops, strict=True)
        for _ in range(length)
    ]


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_items_of_the_tensor_core_kernel(
    case: tuple[tuple[int, ...], tuple[int, ...]], rows: int
) -> None:
    items = work_items(*case, rows)
    assert items.dtype == np.int32
    seen: dict[int, tuple[int, int]] = {}
    for start, count, first, key, keys in items.tolist():
        assert 0 <= first < count
        for row in range(first, min(first + rows, count)):
            assert start + row not in seen
            seen[start + row] = (key, key + keys)
    assert [seen[token] for token in sorted(seen)] == expected(*case)
    assert (np.diff(items[:, 4]) <= 0).all()  # most work first


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_blocks_of_the_plain_kernel(case: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    seen: dict[int, tuple[int, int]] = {}
    for first, stop, key_start, key_stop in segment_blocks(*case).tolist():
        for token in range(first, min(first + 16, stop)):
            assert token not in seen
            seen[token] = (key_start, key_stop)
    assert [seen[token] for token in sorted(seen)] == expected(*case)
