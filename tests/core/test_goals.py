"""The goals of the layouts: predictive placement on 400 units of every shape of stream.

Slots of active subblocks for each live cell at most 1.04; rows moved at most 0.5 % of what eager
packing would move; pages at most those of the fullest history and six; none leaked.
"""

from __future__ import annotations

import numpy as np
import pytest

from omnitide.acceptance import make_acceptance
from omnitide.capacity import bounded_capacity
from omnitide.config import MigrationConfig, RetentionConfig
from omnitide.costs import NOMINAL
from omnitide.history import History
from omnitide.layouts import make_layout
from omnitide.migration import rounds
from omnitide.pages import PAGE_SIZE, SUBBLOCK_SIZE, PageTable
from omnitide.policies import make_policy
from omnitide.retention import foresee, make_plan
from omnitide.simulation.shapes import SHAPES
from omnitide.units import UnitKind

COUNT = 400


@pytest.mark.parametrize("marks", [(2500, 1800), (5000, 3500), (9000, 7000)])
@pytest.mark.parametrize("shape", SHAPES)
def test_goals(shape: str, marks: tuple[int, int]) -> None:
    config, policy, layout = (
        RetentionConfig(*marks),
        make_policy("omnipick"),
        make_layout("predictive"),
    )
    units = list(SHAPES[shape].units(COUNT))
    largest = max(len(unit) for unit in units[1:] if unit.kind != UnitKind.REPLY)
    reply = max((len(unit) for unit in units if unit.kind == UnitKind.REPLY), default=0)
    capacity = bounded_capacity(config, len(units[0]), largest, reply)
    accept = make_acceptance(MigrationConfig(), layout.accept, marks[0], lambda: NOMINAL)
    table, history = PageTable(capacity.pages), History()
    live = walked = moved = eager = evictions = peak = longest = 0
    for unit in units:
        fates = foresee(policy, unit, history, config)
        history = history.append(unit, layout.place(table, fates, unit.kind))
        peak, longest = max(peak, table.active_pages), max(longest, len(history))
        # As in a session: what is asked about must be seen, so the cut waits for the reply.
        if len(history) > config.high_watermark and unit.kind != UnitKind.PROMPT:
            plan = make_plan(policy, history, config)
            evictions += plan.num_deleted > 0
            table.release(history.cells["slot"][~plan.keep])
            history = plan.after
            slots = np.flatnonzero(table.live)
            eager += int(np.count_nonzero(slots != np.arange(len(slots))))
            moves = layout.plan(table, history)
            if moves is not None and accept.accepts(moves, history):
                for source, destination in rounds(moves, table):
                    table.move(source, destination)
                    history = history.move(source, destination)
                moved += moves.rows_moved
            layout.settle(table, history)
        live += len(history)
        walked += table.active_subblocks * SUBBLOCK_SIZE
    table.check_integrity(history.cells)  # no page leaked

    assert walked / live <= 1.04
    assert moved <= 0.005 * eager
    assert evictions > 0 or shape == "silence"
    assert capacity.rest is not None
    assert peak <= -(-(capacity.rest + max(largest, reply)) // PAGE_SIZE) + 6
    assert capacity.tokens is not None
    assert longest <= capacity.tokens
