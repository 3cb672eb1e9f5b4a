"""The bounded cache of a session, begun in the middle of a stream."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np

from omnitide.bench.backbone import Backbone
from omnitide.bench.cells import LiveCells
from omnitide.bench.filling import fill
from omnitide.bench.left import Left, pages_for
from omnitide.cache import BoundedCache
from omnitide.capacity import Capacity
from omnitide.layouts import make_layout
from omnitide.model import OmniModel
from omnitide.policies import make_policy


class FilledCache(BoundedCache):
    """A `BoundedCache` that takes over a history made without a model."""

    def __init__(
        self, model: Backbone, left: Left, more: int, seed: int, kv_bits: int | None = None
    ) -> None:
        """Allocate pools for the history and `more` tokens, and fill the history's cells.

        Call on the backend's thread, as all methods. The pools grow if they must: what fits is
        not what is measured here.
        """
        pages = max(left.table.num_pages, pages_for(len(left.history) + more))
        capacity = Capacity(0, None, more, None, pages)
        policy, layout = make_policy(left.policy), make_layout(left.layout)
        super().__init__(
            cast(OmniModel, model), policy, layout, left.config, capacity, kv_bits=kv_bits
        )
        table = left.table.copy()
        table.grow(pages)
        cells, angles = left.history.cells, self._angles(left.history)
        half = angles.shape[1] // 2
        self.state = replace(self.state, history=left.history, table=table, angles=angles)
        slots = np.ascontiguousarray(cells["slot"])
        held = LiveCells(slots, angles[:, :half], angles[:, half:], 0)
        most = model.backend.prefill_step
        fill(model.backend, self.pools, held.steps(0, most), most, seed)

    def use(self, model: Backbone) -> None:
        """Run on another model over the same pools."""
        self.model, self._backend = cast(OmniModel, model), model.backend
