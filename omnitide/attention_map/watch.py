"""Watches the passes of a cache and adds up where their queries attend to.

The probabilities of a pass are asked for in pieces of few queries, so that a long history takes no
more memory than a short one. Of each pass at most a given number of queries is looked at, evenly
spread, its last one always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnitide.attention_map.classes import Classes, classes_of
from omnitide.attention_map.grid import SIZE, Grid
from omnitide.attention_map.shares import Shares
from omnitide.backend import Array, Backend, Pools
from omnitide.errors import ConfigError
from omnitide.growing import append_rows
from omnitide.history import History
from omnitide.step import Step

WEIGHTS_AT_ONCE = 1 << 22
"""Probabilities of one piece; 16 MiB in float32."""


class AttentionWatch:
    """A `cache.Watcher`. Set it as a cache's `watcher` before the first unit of the stream.

    Attributes:
        layers: Numbers of the layers that are looked at, rising. Index i of `shares` and `grid` is
            layer `layers[i]`.
        shares, grid: What was seen.
    """

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        queries: int,
        layers: Sequence[int] = (),
        size: int = SIZE,
    ) -> None:
        """Look at a model's attention.

        Args:
            num_layers, num_heads: Of the model.
            queries: Most queries of one pass that are looked at.
            layers: Numbers of the layers to look at; all if empty.
            size: Bins along each side of the grid, an even number.

        Raises:
            ConfigError: No query, or a layer that the model does not have.
        """
        if queries < 1:
            raise ConfigError(f"[attention-map] --queries must be at least 1, got {queries}")
        for layer in layers:
            if not 0 <= layer < num_layers:
                raise ConfigError(
                    f"[attention-map] --layer must lie in [0, {num_layers}), got {layer}"
                )
        self.layers = sorted(set(layers)) or list(range(num_layers))
        self.queries = queries
        self.shares = Shares(len(self.layers), num_heads)
        self.grid = Grid(len(self.layers), num_heads, size)
        self._contents = np.empty(0, np.uint8)
        self._units = np.empty(0, np.int32)
        self._count = 0

    def __call__(self, history: History, begin: int, stop: int) -> PassWatch:
        """What sees the pass that adds cells [begin, stop) of a history. Changes nothing."""
        return PassWatch(self, history, begin, stop)

    @property
    def contents(self) -> Classes:
        """Class of every token that a query could see, by its order, shape (num_tokens,)."""
        return self._contents[: self._count]

    @property
    def units(self) -> NDArray[np.int32]:
        """Id of the unit of each of these tokens, shape (num_tokens,)."""
        return self._units[: self._count]

    def note(self, seen: PassWatch) -> None:
        """Note what the newest tokens are."""
        orders = seen.orders
        new = slice(int(np.searchsorted(orders, self._count)), None)
        if len(orders[new]):
            self._contents = append_rows(self._contents, self._count, seen.classes[new])
            units = seen.history.cells["unit"][: seen.stop][new]
            self._units = append_rows(self._units, self._count, units)
            self._count = int(orders[-1]) + 1


@dataclass(frozen=True)
class PassWatch:
    """A `step.Watch` of one pass.

    Attributes:
        watch: Where what is seen is added.
        history: The history after the pass.
        begin, stop: The pass adds its cells [begin, stop).
    """

    watch: AttentionWatch
    history: History
    begin: int
    stop: int

    @cached_property
    def classes(self) -> Classes:
        """Of the cells, shape (stop,)."""
        return classes_of(self.history, self.stop)

    @cached_property
    def orders(self) -> NDArray[np.int64]:
        """Of the cells, shape (stop,)."""
        return np.array(self.history.cells["order"][: self.stop])

    @cached_property
    def distances(self) -> NDArray[np.int64]:
        """Units between each cell and the queries, shape (stop,)."""
        units = self.history.cells["unit"][: self.stop].astype(np.int64)
        back: NDArray[np.int64] = units[-1] - units
        return back

    @cached_property
    def chosen(self) -> NDArray[np.int64]:
        """The queries that are looked at, by their place in the pass, rising."""
        count = self.stop - self.begin
        spread = np.linspace(count - 1, 0, min(self.watch.queries, count))
        return np.unique(spread.round().astype(np.int64))

    def __call__(
        self, backend: Backend, q: Array, pools: Pools, layer: int, step: Step, scale: float
    ) -> None:
        """Add one layer's attention."""
        if layer not in self.watch.layers:
            return
        self.watch.note(self)
        index = self.watch.layers.index(layer)
        most = max(1, WEIGHTS_AT_ONCE // (q.shape[1] * self.stop))
        for start in range(0, len(self.chosen), most):
            rows = self.chosen[start : start + most]
            piece = backend.take(q, rows)
            asked = _queries_of(step, rows)
            weights: Any = backend.to_numpy(
                backend.attention_weights(piece, pools, layer, asked, scale)
            )
            seen = self.begin + rows + 1
            self.watch.shares.add(index, weights, seen, self.classes, self.distances)
            self.watch.grid.add(index, weights, self.orders[self.begin + rows], self.orders)


def _queries_of(step: Step, rows: NDArray[np.int64]) -> Step:
    """The same cells with some of the queries."""
    return replace(
        step,
        query_slots=step.query_slots[rows],
        query_orders=step.query_orders[rows],
        query_cos=step.query_cos[rows],
        query_sin=step.query_sin[rows],
        mass=None,
        watch=None,
    )
