"""What changes as training goes on: lengths of streams and learning rates.

Everything follows from the fraction of the whole budget that has passed, so that a run may stop and
go on, and a quick one passes through the same stages as a long one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Stage:
    """Lengths of streams for a part of the training.

    Attributes:
        share: Of the budget.
        least, most: Units of a stream.
        questions: Questions wanted for each unit, besides two for the stream.
    """

    share: float
    least: int
    most: int
    questions: float


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How the model is trained.

    Attributes:
        stages: In order; the shares add up to one.
        earlier: Share of rows that are of an earlier stage, so that nothing is forgotten.
        rows: Rows of a step.
        matrix_rate: Muon's learning rate.
        embedding_rate, head_rate, vector_rate: AdamW's, for the embedding, the head, and norms and
            biases.
        matrix_decay, vocabulary_decay: Weight decay of what Muon trains, and of embedding and head.
        warm_up: Steps until the learning rates are reached.
        cool_down: Last part of the budget, over which they fall to zero.
        clip: Largest norm of the gradient.
        z_loss: Weight of the squared logarithm of the normaliser, which keeps logits small.
        length_power: See `rows.builder.RowBuilder`.
        whole: With dropped history, share of the streams that keep all of theirs.
        no_sink: Of the others, share of those without sinks.
    """

    stages: tuple[Stage, ...] = (
        Stage(0.25, 1, 3, 2.5),
        Stage(0.25, 4, 8, 2.0),
        Stage(0.2, 8, 20, 2.0),
        Stage(0.3, 20, 46, 2.2),
    )
    earlier: float = 0.2
    rows: int = 8
    matrix_rate: float = 0.012
    embedding_rate: float = 8e-3
    head_rate: float = 3e-3
    vector_rate: float = 3e-3
    matrix_decay: float = 0.1
    vocabulary_decay: float = 0.01
    warm_up: int = 200
    cool_down: float = 1 / 3
    clip: float = 1.0
    z_loss: float = 1e-4
    length_power: float = 0.5
    whole: float = 0.25
    no_sink: float = 0.3

    def rate(self, step: int, fraction: float) -> float:
        """Factor on the learning rates: up, flat, and down to zero."""
        rise = min((step + 1) / self.warm_up, 1.0)
        return rise * min(max(1.0 - fraction, 0.0) / self.cool_down, 1.0)

    def stage_number(self, fraction: float) -> int:
        """Index of the stage at a fraction of the budget."""
        passed = 0.0
        for number, stage in enumerate(self.stages):
            passed += stage.share
            if fraction < passed:
                return number
        return len(self.stages) - 1

    def draw_stage(self, random: np.random.Generator, fraction: float) -> Stage:
        """The stage of a row: the present one, now and then an earlier one."""
        number = self.stage_number(fraction)
        if number and random.random() < self.earlier:
            number = int(random.integers(number))
        return self.stages[number]


def tiny_run() -> RunSettings:
    """For tests: short streams, two rows a step."""
    return RunSettings(stages=(Stage(0.5, 1, 2, 2.0), Stage(0.5, 2, 4, 1.5)), rows=2, warm_up=5)


NAMED_RUNS = {"small": RunSettings, "tiny": tiny_run}
"""Run settings by the name of the model's settings."""
