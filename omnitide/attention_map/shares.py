"""How much attention each class of cells receives, by layer, head and distance in units.

Invariant: every query adds 1 to each head of its layer, and 1 to what even attention would give.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from omnitide.attention_map.classes import NUM_CLASSES, Classes

DISTANCES = 65
"""Units back that are told apart: 0 is the query's own unit, the last holds 64 and more."""

Floats = NDArray[np.float64]


class Shares:
    """Sums over queries.

    Attributes:
        received: Attention received, shape (num_layers, num_heads, DISTANCES, NUM_CLASSES).
        even: What the cells would have received if each query attended evenly to all that it sees,
            shape (num_layers, DISTANCES, NUM_CLASSES).
        queries: Queries of each layer, shape (num_layers,).
    """

    def __init__(self, num_layers: int, num_heads: int) -> None:
        self.received = np.zeros((num_layers, num_heads, DISTANCES, NUM_CLASSES))
        self.even = np.zeros((num_layers, DISTANCES, NUM_CLASSES))
        self.queries = np.zeros(num_layers, np.int64)

    def add(
        self,
        layer: int,
        weights: NDArray[np.floating],
        seen: NDArray[np.int64],
        classes: Classes,
        distances: NDArray[np.int64],
    ) -> None:
        """Add the attention of some queries, all of one unit.

        Args:
            layer: Index of the layer.
            weights: Probabilities, shape (num_heads, num_queries, num_cells).
            seen: How many leading cells each query sees, at least 1, shape (num_queries,).
            classes: Of the cells, shape (num_cells,).
            distances: Units between each cell and the queries, 0 or more, shape (num_cells,).
        """
        place = np.minimum(distances, DISTANCES - 1) * NUM_CLASSES + classes
        size, shape = DISTANCES * NUM_CLASSES, (DISTANCES, NUM_CLASSES)
        for head, mass in enumerate(weights.sum(axis=1, dtype=np.float64)):
            self.received[layer, head] += np.bincount(place, mass, size).reshape(shape)
        steps = np.bincount(seen - 1, 1 / seen, len(classes))
        even = steps[::-1].cumsum()[::-1]
        self.even[layer] += np.bincount(place, even, size).reshape(shape)
        self.queries[layer] += len(seen)

    def of(
        self, classes: Iterable[int] | None = None, distances: slice = slice(None)
    ) -> tuple[Floats, Floats]:
        """Shares of all attention that some classes at some distances receive; all by default.

        Returns:
            Of each layer and head, shape (num_layers, num_heads), and under even attention of each
            layer, shape (num_layers,). 0 for a layer without queries.
        """
        chosen = list(range(NUM_CLASSES) if classes is None else classes)
        queries = np.maximum(self.queries, 1)
        received = self.received[:, :, distances][..., chosen].sum(axis=(2, 3))
        even = self.even[:, distances][..., chosen].sum(axis=(1, 2))
        return received / queries[:, None], even / queries
