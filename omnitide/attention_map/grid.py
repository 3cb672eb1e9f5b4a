"""Attention as a square picture of bins of tokens, which coarsens while the stream grows.

A bin holds one token at first. Whenever a token lies beyond the square, neighbouring bins are added
up in pairs, so that the length of a stream need not be known and memory stays what it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omnitide.runs import run_starts

SIZE = 256
"""Bins along each side."""


class Grid:
    """Attention from bins of queries to bins of cells, by layer and head.

    Attributes:
        bin: Tokens of a bin.
        sums: Attention of all queries of a bin, shape (num_layers, num_heads, size, size); rows are
            queries, columns cells.
        queries: Queries of each layer and bin, shape (num_layers, size).
    """

    def __init__(self, num_layers: int, num_heads: int, size: int = SIZE) -> None:
        self.bin = 1
        self.sums = np.zeros((num_layers, num_heads, size, size), np.float32)
        self.queries = np.zeros((num_layers, size), np.int64)

    def add(
        self,
        layer: int,
        weights: NDArray[np.floating],
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
    ) -> None:
        """Add the attention of some queries.

        Args:
            layer: Index of the layer.
            weights: Probabilities, shape (num_heads, num_queries, num_cells).
            rows: Order of each query, rising, shape (num_queries,).
            columns: Order of each cell, rising, shape (num_cells,).
        """
        self._reach(int(max(rows[-1], columns[-1])))
        row, column = rows // self.bin, columns // self.bin
        starts, begins = run_starts(row), run_starts(column)
        sums = np.add.reduceat(np.add.reduceat(weights, begins, axis=2), starts, axis=1)
        self.sums[layer][:, row[starts][:, None], column[begins][None]] += sums
        self.queries[layer] += np.bincount(row, minlength=self.queries.shape[1])

    def mean(self, layers: list[int], heads: list[int]) -> NDArray[np.float64]:
        """Mean attention of a query, over these layers and heads.

        Returns:
            Shape (size, size); a row adds up to 1, and is NaN where no query was seen.
        """
        total = np.zeros(self.sums.shape[2:])
        for layer in layers:
            part = self.sums[layer, heads].mean(axis=0, dtype=np.float64)
            count = self.queries[layer][:, None]
            total += np.divide(part, count, out=np.full_like(part, np.nan), where=count > 0)
        return total / len(layers)

    def _reach(self, order: int) -> None:
        size = self.queries.shape[1]
        while order >= self.bin * size:
            self.bin *= 2
            half = size // 2
            pairs = self.sums.reshape(*self.sums.shape[:2], half, 2, half, 2).sum(axis=(3, 5))
            self.sums[...] = 0
            self.sums[:, :, :half, :half] = pairs
            queries = self.queries.reshape(-1, half, 2).sum(axis=2)
            self.queries[...] = 0
            self.queries[:, :half] = queries
