"""The log of a run: one JSON object a line, and the numbers of it on the screen."""

from __future__ import annotations

import json
import math
import time as clock
from pathlib import Path
from typing import Any

import torch

from training.learn.loss import Result, Tally
from training.rows.batch import Batch

FILE = "log.jsonl"

_LEFT_OUT = ("tasks", "distances")


class Recorder:
    """Counts what happens between two lines of the log."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        """Open the log of a folder to go on with it."""
        self._file = (folder / FILE).open("a", encoding="utf-8")
        self._device = device
        self._tally = Tally(device)
        self._begin()

    def close(self) -> None:
        """Close the log."""
        self._file.close()

    def count(self, result: Result, batch: Batch, waited: float) -> None:
        """A step of training.

        Args:
            result: What became of it.
            batch: What it learned from.
            waited: Seconds for which there was no data.
        """
        self._tally.add(result, batch)
        self._steps += 1
        self._waited += waited
        self._tokens += batch.ids.numel()
        self._units += batch.num_units

    @property
    def counted(self) -> int:
        """Steps since the last report."""
        return self._steps

    def report(self, **place: Any) -> bool:
        """Write down what was counted since the last time. Waits for the device.

        Args:
            **place: Where the run is: step, seconds, fraction and the like.

        Returns:
            False if the loss is not a number; the run is lost then.
        """
        figures = self._tally.read()
        seconds = max(clock.monotonic() - self._since, 1e-9)
        speed = {
            "seconds": round(seconds, 3),
            "steps_per_second": round(self._steps / seconds, 3),
            "tokens_per_second": round(self._tokens / seconds),
            "units_per_second": round(self._units / seconds, 1),
            "waited": round(self._waited / seconds, 4),
        }
        if self._device.type == "cuda":
            speed["gigabytes"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        self.write({"kind": "train", **place, **speed, **figures})
        self._begin()
        return math.isfinite(figures["loss"])

    def write(self, figures: dict[str, Any]) -> None:
        """Add a line."""
        self._file.write(json.dumps(figures) + "\n")
        self._file.flush()
        shown = {name: value for name, value in figures.items() if name not in _LEFT_OUT}
        print(" ".join(f"{name}={_short(value)}" for name, value in shown.items()), flush=True)

    def _begin(self) -> None:
        self._since, self._waited = clock.monotonic(), 0.0
        self._steps = self._tokens = self._units = 0


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
