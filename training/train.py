"""Trains the model for some minutes, or goes on where a run has ended.

    python -m training.train --out RUN --speech bank.npz --minutes 9 --total-minutes 18
    python -m training.train --out RUN --speech bank.npz --minutes 9 --resume

The folder gets the tokenizer, checkpoint.pt (every minute and at the end) and log.jsonl.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from omnitide.errors import OmnitideError
from training.bank.bank import Bank, load_bank
from training.learn import snapshots
from training.learn.budget import Budget
from training.learn.data import Data
from training.learn.feed import Feed, Prepared, World
from training.learn.loop import MOST_STEPS, Loop
from training.learn.schedule import NAMED_RUNS, RunSettings, Stage
from training.learn.trainer import ATTENTIONS, Trainer
from training.model.thinker import Thinker
from training.rows import tokenizer
from training.settings import NAMED

HELD_OUT_BATCHES = 2
"""Batches of each length that the model is tried on."""


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
        for name, value in before["options"].items():
            setattr(options, name, value)
    elif (options.out / snapshots.FILE).is_file():
        print(
            f"error: {options.out} holds a run; add --resume, or take another --out",
            file=sys.stderr,
        )
        return 1
    try:
        bank = load_bank(options.speech)
    except OmnitideError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return _train(options, bank, before)


def _train(options: argparse.Namespace, bank: Bank, before: dict[str, Any]) -> int:
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
    world = World(bank, device)
    loop = Loop(options, budget, trainer, run, step, _held_out(data, run, world))
    feed = Feed(batches, world, device)
    try:
        return loop.run(feed)
    finally:
        feed.close()


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
    add("--minutes", type=_minutes, default=9.0, help="minutes of this call, compiling included")
    add(
        "--total-minutes",
        type=_minutes,
        help="of the whole training; those of this call if left out",
    )
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


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0 and finite, got {text}")
    return minutes


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
