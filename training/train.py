"""Trains the model for some minutes, or goes on where a run has ended.

    python -m training.train --out RUN --speech bank.npz --minutes 9 --total-minutes 18
    python -m training.train --out RUN --speech bank.npz --minutes 9 --resume

The folder gets the tokenizer, checkpoint.pt (every minute and at the end) and log.jsonl.
"""

from __future__ import annotations

import argparse
import os
import sys
import time as clock
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from training import snapshots, tokenizer
from training.bank import load_bank
from training.budget import Budget
from training.data import Data
from training.feed import Feed, Prepared, World
from training.loss import Tally
from training.recorder import Recorder
from training.schedule import NAMED_RUNS, RunSettings, Stage
from training.settings import NAMED
from training.thinker import Thinker
from training.trainer import ATTENTIONS, Trainer

HELD_OUT_BATCHES = 2
"""Batches of each length that the model is tried on."""

KEPT = ("settings", "seed", "drop_history", "total_minutes", "total_steps")
"""Options that a resumed run takes from its checkpoint."""

MOST_STEPS = 1 << 30


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    options = _options(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    before: dict[str, Any] = {}
    if options.resume:
        try:
            before = snapshots.read(options.out)
        except OSError as error:
            print(f"error: nothing to resume in {options.out}: {error}", file=sys.stderr)
            return 1
        for name in KEPT:
            setattr(options, name, before["options"][name])
    return _train(options, before)


def _train(options: argparse.Namespace, before: dict[str, Any]) -> int:
    """One call of the command, from a checkpoint's state or from nothing."""
    settings, run = NAMED[options.settings](), _run_settings(options)
    if options.total_minutes is None:
        options.total_minutes = options.minutes
    passed = before.get("elapsed", 60 * options.total_minutes * options.begin)
    budget = Budget.of(options.total_minutes, options.minutes, options.total_steps, passed)
    if not (options.out / "tokenizer.json").is_file():
        tokenizer.write(settings, options.out)
    data = Data(settings, run, options.out, options.seed, options.drop_history, budget)
    step = before.get("step", 0)
    # Workers are forked before CUDA is touched.
    batches = _batches(data, step, options)
    device = torch.device(options.device)
    model = Thinker(settings, options.seed).to(device)
    if options.weights is not None:
        model.load_state_dict(snapshots.read(options.weights)["model"])
    compiled = device.type == "cuda" and not options.no_compile
    trainer = Trainer(model, run, device, options.attention, compiled)
    if before:
        trainer.load(before)
    world = World(load_bank(options.speech), device)
    loop = _Loop(options, budget, trainer, run, step, _held_out(data, run, world))
    feed = Feed(batches, world, device)
    try:
        return loop.run(feed)
    finally:
        feed.close()


class _Loop:
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
        self._options, self._budget, self._trainer, self._run = options, budget, trainer, run
        self._step, self._held_out = step, held_out
        self._device = torch.device(options.device)
        self._recorder = Recorder(options.out, self._device)
        now = clock.monotonic()
        self._last = {"report": now, "try": now, "save": now}

    def run(self, feed: Feed) -> int:
        """Train until the budget, or this call's part of it, is over. Returns the exit code."""
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
                self._save()
        if self._recorder.counted and not self._report():
            return 1
        self._save()
        self._try()
        self._recorder.close()
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


def _batches(data: Data, step: int, options: argparse.Namespace) -> Iterator[bytes]:
    """Packed batches from a step on, drawn by workers that are there when this returns."""
    workers = options.workers
    return iter(
        DataLoader(
            data,
            batch_size=None,
            sampler=range(step, MOST_STEPS),
            num_workers=workers,
            prefetch_factor=2 if workers else None,
            multiprocessing_context="fork" if workers else None,
        )
    )


def _held_out(data: Data, run: RunSettings, world: World) -> dict[str, list[Prepared]]:
    """Batches with streams of the second stage's lengths, and of the greatest length."""
    longest = run.stages[-1]
    stages = {"tune short": run.stages[1], "tune long": replace(longest, least=longest.most)}
    return {
        name: [world.prepare(data.held_out(stage, "tune", n)) for n in range(HELD_OUT_BATCHES)]
        for name, stage in stages.items()
    }


def _run_settings(options: argparse.Namespace) -> RunSettings:
    run = NAMED_RUNS[options.settings]()
    stages: tuple[Stage, ...] = run.stages
    if options.stage_shares:
        shares = [share / sum(options.stage_shares) for share in options.stage_shares]
        if len(shares) != len(stages):
            raise SystemExit(f"error: --stage-shares takes {len(stages)} numbers")
        stages = tuple(replace(s, share=x) for s, x in zip(stages, shares, strict=True))
    return replace(
        run,
        stages=stages,
        rows=options.rows or run.rows,
        matrix_rate=options.matrix_rate or run.matrix_rate,
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m training.train", description=__doc__)
    add = parser.add_argument
    gpu = torch.cuda.is_available()
    add("--out", type=Path, required=True, help="folder of the run")
    add("--speech", type=Path, required=True, help="what training.speech wrote")
    add("--minutes", type=float, default=9.0, help="minutes of this call, compiling included")
    add("--total-minutes", type=float, help="of the whole training; those of this call if left out")
    add("--total-steps", type=int, help="steps of the whole training, instead of minutes")
    add("--stop-after", type=int, help="end this call after so many steps")
    add("--begin", type=float, default=0.0, help="fraction to begin at, to try late stages")
    add("--resume", action="store_true", help="go on where the folder's checkpoint ends")
    add("--weights", type=Path, help="folder of a run whose weights to begin with")
    add("--drop-history", action="store_true", help="let later tokens see a part of the history")
    add("--settings", choices=sorted(NAMED), default="small")
    add("--seed", type=int, default=0)
    add("--rows", type=int, help="rows of a step")
    add("--matrix-rate", type=float, help="Muon's learning rate")
    add("--stage-shares", type=float, nargs="+", help="parts of the budget, one for each stage")
    add("--attention", choices=ATTENTIONS, default="flex" if gpu else "sdpa")
    add("--no-compile", action="store_true", help="run the layers as they are")
    add("--device", choices=("cuda", "cpu"), default="cuda" if gpu else "cpu")
    add("--workers", type=int, default=min((os.cpu_count() or 1) - 2, 14) if gpu else 0)
    add("--log-every", type=float, default=10.0, metavar="SECONDS")
    add("--try-every", type=float, default=60.0, metavar="SECONDS")
    add("--save-every", type=float, default=60.0, metavar="SECONDS")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
