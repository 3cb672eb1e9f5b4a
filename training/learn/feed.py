"""Batches with their pictures and sounds, made a little ahead of the model.

A thread paints and plays on a CUDA stream of its own: the copies that painting needs then wait for
that stream alone, not for the model.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, fields
from queue import Empty, Full, Queue

import torch
from torch import Tensor

from training.bank.bank import Bank
from training.model.mel import LogMel
from training.render.pictures import Painter
from training.render.sounds import Player
from training.rows.batch import Batch
from training.rows.masks import Visibility

AHEAD = 3
"""Batches that are ready and not yet used, at most."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that a step needs, on the device.

    Attributes:
        batch: Tokens and labels.
        frames: uint8, (units, 4, 112, 112, 3).
        mel: float32, (units, 200, 128).
        ready: Recorded once they are made; None on the CPU.
    """

    batch: Batch
    frames: Tensor
    mel: Tensor
    ready: torch.cuda.Event | None = None

    def tensors(self) -> list[Tensor]:
        """Every tensor."""
        parts = [getattr(self.batch, field.name) for field in fields(Batch)]
        parts += [getattr(self.batch.visibility, field.name) for field in fields(Visibility)]
        return [part for part in parts if isinstance(part, Tensor)] + [self.frames, self.mel]


class World:
    """Makes what the model sees and hears."""

    def __init__(self, bank: Bank, device: torch.device) -> None:
        self._device = device
        self._painter, self._player = Painter(bank, device), Player(bank, device)
        self._mel = LogMel().to(device)

    def prepare(self, batch: Batch) -> Prepared:
        """A batch on the device with its pictures and log-mel."""
        pinned = batch.pin_memory() if self._device.type == "cuda" else batch
        moved = pinned.to(self._device)
        frames = self._painter.paint(batch.pictures)
        mel = self._mel(self._player.play(batch.sounds), moved.streams)
        ready = None
        if self._device.type == "cuda":
            ready = torch.cuda.Event()
            ready.record()
        return Prepared(moved, frames, mel, ready)


class Feed:
    """Prepared batches, one after another, from packed ones. Close it when done."""

    def __init__(self, batches: Iterable[bytes], world: World, device: torch.device) -> None:
        self._queue: Queue[Prepared | BaseException | None] = Queue(AHEAD)
        self._device, self._closed = device, threading.Event()
        self._thread = threading.Thread(target=self._work, args=(batches, world), daemon=True)
        self._thread.start()

    def next(self) -> Prepared | None:
        """The next batch, None after the last one; waits for it.

        Raises:
            BaseException: What went wrong in the thread or in a worker.
        """
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        if item is not None and item.ready is not None:
            stream = torch.cuda.current_stream()
            stream.wait_event(item.ready)
            for tensor in item.tensors():
                tensor.record_stream(stream)
        return item

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.05)
            except Empty:
                continue

    def _work(self, batches: Iterable[bytes], world: World) -> None:
        try:
            if self._device.type == "cuda":
                with torch.cuda.stream(torch.cuda.Stream()):
                    self._prepare(batches, world)
            else:
                self._prepare(batches, world)
            self._put(None)
        except BaseException as error:  # told to whoever asks for the next batch
            self._put(error)

    def _prepare(self, batches: Iterable[bytes], world: World) -> None:
        for batch in batches:
            if self._closed.is_set():
                return
            self._put(world.prepare(Batch.unpacked(batch)))

    def _put(self, item: Prepared | BaseException | None) -> None:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return
            except Full:
                continue
