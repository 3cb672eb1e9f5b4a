"""The loss at labelled places, and how many answers are right, counted on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.rows.batch import Batch
from training.world.questions.wordings import TASKS

DISTANCES = (0, 1, 2, 5, 10, 20, 30)
"""Least distance, in units, of each class of questions; a last class has no distance."""

_CLASSES = len(DISTANCES) + 1


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a batch.

    Attributes:
        loss: To go down, a number.
        exact: By answer, whether every token of it was the likeliest; bool.
        losses: By answer, the mean loss of its tokens.
    """

    loss: Tensor
    exact: Tensor
    losses: Tensor


def measure(logits: Tensor, batch: Batch, z_loss: float) -> Result:
    """Cross entropy, each token by its weight, and the answers that are right.

    Args:
        logits: At the labelled places, (labels, vocab_size).
        batch: Whose labels.
        z_loss: Weight of the squared logarithm of the normaliser.
    """
    logits = logits.float()
    normaliser = logits.logsumexp(1)
    right = logits.gather(1, batch.label_ids[:, None])[:, 0]
    losses = normaliser - right
    weights = batch.label_weights / batch.label_weights.sum().clamp_min(1e-6)
    loss = (weights * (losses + z_loss * normaliser.square())).sum()
    with torch.no_grad():
        there = batch.label_weights > 0
        wrong = (logits.argmax(1) != batch.label_ids) & there
        answers = len(batch.answer_tasks)
        empty = torch.zeros(answers, device=logits.device)
        errors = empty.index_add(0, batch.label_answers, wrong.float())
        counts = empty.index_add(0, batch.label_answers, there.float())
        sums = empty.index_add(0, batch.label_answers, losses.detach() * there)
    return Result(loss, errors == 0, sums / counts.clamp_min(1))


class Tally:
    """Counts by task and distance, on the device until they are asked for."""

    def __init__(self, device: torch.device) -> None:
        self._bounds = torch.tensor(DISTANCES, device=device)
        self._sums = torch.zeros(len(TASKS) * _CLASSES + 1, 3, device=device)
        self._loss = torch.zeros(2, device=device)

    @torch.no_grad()
    def add(self, result: Result, batch: Batch) -> None:
        """Count a batch."""
        distances = batch.answer_distances
        known = torch.bucketize(distances, self._bounds, right=True) - 1
        classes = torch.where(distances < 0, len(DISTANCES), known)
        # Answers that are not there go to a last place that nobody reads.
        place = batch.answer_tasks * _CLASSES + classes
        place = torch.where(batch.answer_tasks < 0, len(self._sums) - 1, place)
        ones = torch.ones_like(result.losses)
        values = torch.stack([ones, result.exact.float(), result.losses], 1)
        self._sums.index_add_(0, place, values)
        self._loss += torch.stack([result.loss.detach(), torch.ones_like(result.loss)])

    def read(self) -> dict[str, Any]:
        """Loss, share of right answers, both by task and right answers by distance; then empties.

        Waits for the device.
        """
        sums = self._sums[:-1].cpu().double().view(len(TASKS), _CLASSES, 3)
        total, steps = self._loss.tolist()
        self._sums.zero_()
        self._loss.zero_()
        by_task = sums.sum(1)
        names = [f"{least}+" for least in DISTANCES] + ["none"]
        by_distance = sums.sum(0)
        every = by_task.sum(0)
        return {
            "loss": total / max(steps, 1.0),
            "exact": _share(every),
            "answers": int(every[0]),
            "tasks": {
                task: {
                    "answers": int(row[0]),
                    "exact": _share(row),
                    "loss": round(float(row[2] / row[0]), 4),
                    "distances": {
                        name: [int(part[0]), _share(part)]
                        for name, part in zip(names, sums[number], strict=True)
                        if part[0] > 0
                    },
                }
                for number, (task, row) in enumerate(zip(TASKS, by_task, strict=True))
                if row[0] > 0
            },
            "distances": {
                name: [int(row[0]), _share(row)]
                for name, row in zip(names, by_distance, strict=True)
                if row[0] > 0
            },
        }


def _share(row: Tensor) -> float:
    return round(float(row[1] / row[0].clamp_min(1)), 4)
