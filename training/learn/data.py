"""Batches by step. What a step learns from depends on seed, step and fraction alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from training.learn.schedule import RunSettings, Stage
from training.rows.batch import Batch, collate
from training.rows.builder import RowBuilder
from training.rows.row import Forgetting, Row
from training.rows.writer import Writer
from training.settings import Settings
from training.world.scenario import draw_script

LEAST_RECENT, MOST_RECENT, MOST_SINK = 2, 12, 8
"""Bounds of what is drawn when history is dropped."""

HELD_OUT = 1 << 40
"""Steps from here on are no steps of training."""


@dataclass(slots=True)
class Data(Dataset[bytes]):
    """A data set whose items are the batches of training, packed, by step.

    Attributes:
        settings, run: Shapes, and how rows are drawn.
        tokenizer: Folder of the tokenizer.
        seed: Of everything.
        drop_history: Whether later tokens see a part of older units only.
        fraction: Fraction of the budget at a step; asked in the process that draws.
    """

    settings: Settings
    run: RunSettings
    tokenizer: Path
    seed: int
    drop_history: bool
    fraction: Callable[[int], float]
    _writer: Writer | None = None

    def __len__(self) -> int:
        return HELD_OUT

    def __getitem__(self, step: int) -> bytes:
        fraction = self.fraction(step)
        rows = []
        for number in range(self.run.rows):
            random = np.random.default_rng([self.seed, step, number])
            stage = self.run.draw_stage(random, fraction)
            rows.append(self._draw(random, stage, "train", self.drop_history))
        return collate(rows).packed()

    def held_out(self, stage: Stage, split: str, number: int) -> Batch:
        """A batch that training never sees, with the whole history."""
        rows = []
        for row in range(self.run.rows):
            random = np.random.default_rng([self.seed, HELD_OUT + number, row])
            rows.append(self._draw(random, stage, split, False))
        return collate(rows)

    def _draw(self, random: np.random.Generator, stage: Stage, split: str, drop: bool) -> Row:
        """A row filled with streams of a stage."""
        if self._writer is None:
            self._writer = Writer(self.settings, self.tokenizer)
        builder = RowBuilder(self.settings, self._writer, self.run.length_power)
        while builder.units_left >= stage.least:
            most = min(stage.most, builder.units_left)
            units = int(random.integers(stage.least, most + 1))
            script = draw_script(random, units, split, 2 + round(stage.questions * units))
            forgetting = self._forgetting(random) if drop else None
            last = builder.units_left - units < stage.least
            if not builder.add(script, random, forgetting, last):
                break
        return builder.build()

    def _forgetting(self, random: np.random.Generator) -> Forgetting | None:
        if random.random() < self.run.whole:
            return None
        recent = int(random.integers(LEAST_RECENT, MOST_RECENT + 1))
        sink = 0 if random.random() < self.run.no_sink else int(random.integers(1, MOST_SINK + 1))
        return Forgetting(recent, sink)
