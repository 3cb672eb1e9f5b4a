"""How long planning one eviction takes, by phase and by cells; what a unit costs to append.

    python benchmarks/planning.py [--shape media|dialogue] [--repeat 30]

A stream is appended until it passes its high watermark; then one eviction is planned again and
again on the same state. Nothing is decoded or multiplied: what is timed is the core's bookkeeping.
Medians of the repetitions, one thread, in milliseconds; of a whole eviction and a whole unit also
the best one, which is what they take while nobody else keeps the machine busy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from omnitide.config import RetentionConfig
from omnitide.history import History
from omnitide.layouts import make_layout
from omnitide.pages import PAGE_SIZE, PageTable
from omnitide.policies import make_policy
from omnitide.retention import RetentionPlan, foresee, make_plan
from omnitide.units import Modality, Role, Unit, UnitBuilder, UnitKind

CELLS = (1_000, 2_000, 4_000, 10_000, 20_000, 50_000, 100_000, 200_000)
PHASES = ("select", "plan", "release", "keep", "layout", "settle")
APPENDS = ("foresee", "place", "record")


def media(index: int) -> Unit:
    """A second of MiniCPM-o: a picture, sound, and in every fourth unit some words."""
    builder = UnitBuilder().text([1, 2], Role.BOUNDARY)
    offsets = np.repeat(np.arange(64)[:, None], 3, axis=1)
    builder.content(3, offsets, Modality.IMAGE).end_step().text([4], Role.BOUNDARY)
    builder.content(5, offsets[:10], Modality.AUDIO).end_step()
    if index % 4 == 0:
        builder.text(np.arange(18))
    return builder.text([6, 7], Role.BOUNDARY).build(UnitKind.MEDIA)


def words(index: int) -> Unit:
    """A question or a reply."""
    kind = UnitKind.REPLY if index % 2 else UnitKind.PROMPT
    count = 20 + index * 37 % 150
    return UnitBuilder().text(np.arange(count)).text([1, 2, 3], Role.BOUNDARY).build(kind)


SHAPES: dict[str, Callable[[int], Unit]] = {"media": media, "dialogue": words}


@dataclass
class Stream:
    """The bookkeeping of a session."""

    config: RetentionConfig
    table: PageTable
    history: History

    def __post_init__(self) -> None:
        self.policy, self.layout = make_policy("omnipick"), make_layout("predictive")
        self.seconds: dict[str, list[float]] = {name: [] for name in (*PHASES, *APPENDS)}

    def append(self, unit: Unit) -> None:
        """Place and record a unit, as `BoundedCache` does, with a copy of the table."""
        started = time.perf_counter()
        fates = foresee(self.policy, unit, self.history, self.config)
        foreseen = time.perf_counter()
        table = self.table.copy()
        slots = self.layout.place(table, fates, unit.kind)
        placed = time.perf_counter()
        self.history = self.history.append(unit, slots)
        recorded = time.perf_counter()
        self.table = table
        for name, spent in zip(
            APPENDS, (foreseen - started, placed - foreseen, recorded - placed), strict=True
        ):
            self.seconds[name].append(spent)

    def totals(self, names: Sequence[str]) -> list[float]:
        """Milliseconds of each repetition of several phases together."""
        return [sum(spent) * 1e3 for spent in zip(*(self.seconds[n] for n in names), strict=True)]

    def plan(self) -> tuple[PageTable, History]:
        """All that one eviction computes; the stream stays as it is."""
        marks = [time.perf_counter()]
        self.policy.select(self.history, self.config)
        marks.append(time.perf_counter())
        plan: RetentionPlan = make_plan(self.policy, self.history, self.config)
        marks.append(time.perf_counter())
        table = self.table.copy()
        table.release(self.history.cells["slot"][~plan.keep])
        marks.append(time.perf_counter())
        history = plan.after
        marks.append(time.perf_counter())
        moves = self.layout.plan(table, history)
        marks.append(time.perf_counter())
        after = table.copy()
        if moves is not None:
            moves.validate(after)
            after.move(*moves.arrays())
            history = history.move(*moves.arrays())
        self.layout.settle(after, history)
        marks.append(time.perf_counter())
        spent = np.diff(marks)
        spent[1] -= spent[0]  # `make_plan` asks the policy once more
        for name, seconds in zip(PHASES, spent.tolist(), strict=True):
            self.seconds[name].append(seconds)
        return after, history


def measure(cells: int, shape: str, repeat: int) -> Stream:
    """A stream of about that many cells, `repeat` timings of each phase in it."""
    config = RetentionConfig(cells, cells * 18 // 25)
    stream = Stream(config, PageTable(cells * 5 // 4 // PAGE_SIZE + 12), History())
    stream.append(UnitBuilder().text(np.arange(32)).build(UnitKind.SYSTEM))
    make, index, evictions = SHAPES[shape], 0, 0
    while True:
        stream.append(make(index))
        index += 1
        if len(stream.history) > cells:
            evictions += 1
            if evictions == 3:  # the state of a stream that has been cut before
                break
            stream.table, stream.history = stream.plan()
    for name in PHASES:
        stream.seconds[name].clear()
    for name in APPENDS:
        del stream.seconds[name][:-repeat]
    for _ in range(repeat):
        stream.plan()
    return stream


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=tuple(SHAPES), default="media")
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--cells", type=int, nargs="*", default=CELLS)
    options = parser.parse_args()
    heads = (*PHASES, "eviction", "best", "us/kcell", *APPENDS, "unit", "best")
    print("cells".rjust(8), *(name.rjust(8) for name in heads))
    for cells in options.cells:
        stream = measure(cells, options.shape, options.repeat)
        line = []
        for names in (PHASES, APPENDS):
            line += [median(stream.totals([name])) for name in names]
            whole = stream.totals(names)
            line += [median(whole), min(whole)]
            if names is PHASES:
                line.append(median(whole) * 1e6 / cells)
        print(f"{cells:8,}", *(f"{value:8.3f}" for value in line))


if __name__ == "__main__":
    main()
