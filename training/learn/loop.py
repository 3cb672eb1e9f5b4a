"""The loop of a run: steps, and what happens between them by the clock."""

from __future__ import annotations

import argparse
import sys
import time as clock

import torch

from training.learn import snapshots
from training.learn.budget import Budget
from training.learn.feed import Feed, Prepared
from training.learn.loss import Tally
from training.learn.recorder import Recorder
from training.learn.schedule import RunSettings
from training.learn.trainer import Trainer

KEPT = (
    "settings", "seed", "drop_history", "total_minutes", "total_steps", "rows", "matrix_rate",
    "stage_shares",
)  # fmt: skip
"""Options that a resumed run takes from its checkpoint: what is learned, and how fast."""

MOST_STEPS = 1 << 30


class Loop:
    """Steps, and from time to time a line in the log, a try on held-out streams, a checkpoint."""

    def __init__(
        self,
        options: argparse.Namespace,
        budget: Budget,
        trainer: Trainer,
        run: RunSettings,
        step: int,
        held_out: dict[str, list[Prepared]],
    ) -> None:
        """Nothing is trained yet.

        Args:
            options: Of the command.
            budget: When the training, and this call, are over.
            trainer: Takes a step.
            run: Rates and lengths.
            step: The first step of this call.
            held_out: By name, batches that the model is tried on.
        """
        self._options, self._budget, self._trainer, self._run = options, budget, trainer, run
        self._step, self._held_out = step, held_out
        self._device = torch.device(options.device)
        self._recorder = Recorder(options.out, self._device)
        now = clock.monotonic()
        self._last = {"report": now, "try": now, "save": now}

    def run(self, feed: Feed) -> int:
        """Train until the budget, or this call's part of it, is over. Returns the exit code."""
        try:
            return self._train(feed)
        finally:
            self._recorder.close()

    def _train(self, feed: Feed) -> int:
        options, first = self._options, self._step
        stop = MOST_STEPS if options.stop_after is None else first + options.stop_after
        while self._step < stop and not self._budget.over(self._step):
            asked = clock.monotonic()
            item = feed.next()
            if item is None:
                break
            waited = clock.monotonic() - asked
            rate = self._run.rate(self._step, self._budget.tell(self._step))
            result = self._trainer.step(item, rate)
            self._recorder.count(result, item.batch, waited)
            self._step += 1
            # The first step compiles; it gets a line of its own.
            due = self._due("report", options.log_every) or self._step == first + 1
            if due and not self._report():
                return 1
            if self._due("try", options.try_every):
                self._try()
            if self._due("save", options.save_every):
                # Looked at first, so that a lost run is not what stays.
                if self._recorder.counted and not self._report():
                    return 1
                self._save()
        if self._recorder.counted and not self._report():
            return 1
        self._save()
        self._try()
        return 0

    def _due(self, what: str, every: float) -> bool:
        now = clock.monotonic()
        if now - self._last[what] < every:
            return False
        self._last[what] = now
        return True

    def _report(self) -> bool:
        fraction = self._budget.tell(self._step)
        healthy = self._recorder.report(
            step=self._step,
            elapsed=round(self._budget.elapsed, 1),
            fraction=round(fraction, 4),
            stage=self._run.stage_number(fraction),
            rate=round(self._run.rate(self._step, fraction), 4),
        )
        if not healthy:
            print("error: the loss is not a number; the last checkpoint stays", file=sys.stderr)
        return healthy

    def _try(self) -> None:
        """Write down how the model does on streams that it never learns from."""
        for name, items in self._held_out.items():
            tally = Tally(self._device)
            for item in items:
                tally.add(self._trainer.measure(item), item.batch)
            self._recorder.write({"kind": name, "step": self._step} | tally.read())

    def _save(self) -> None:
        kept = {name: getattr(self._options, name) for name in KEPT}
        place = {"step": self._step, "elapsed": self._budget.elapsed, "options": kept}
        snapshots.save(self._options.out, place | self._trainer.state())
