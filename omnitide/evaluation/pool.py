"""Workers that follow items, each with a model of its own, and how work is shared among them.

Clips are handed out one by one, in the order of the data; all items of a clip, under all settings,
go to one worker. Which worker follows an item changes nothing in its record but times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from omnitide.backends import describe_backend
from omnitide.evaluation.item import Item
from omnitide.evaluation.record import Record
from omnitide.evaluation.runner import Runner, RunOptions
from omnitide.evaluation.setting import Setting
from omnitide.loading import load
from omnitide.model import OmniModel


@dataclass(frozen=True, slots=True)
class Job:
    """An item under a setting."""

    item: Item
    setting: Setting


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """How a worker loads its model; arguments of `load`, and what all items share."""

    model: str | None = None
    backend: str = "auto"
    dtype: str | None = None
    options: RunOptions = field(default_factory=RunOptions)

    def load(self) -> OmniModel:
        """Load it.

        Raises:
            OmnitideError: See `omnitide.load`.
        """
        return load(self.model, backend=self.backend, dtype=self.dtype, media=self.options.media)


class Pool(Protocol):
    """Workers, numbered from 0; each follows one job at a time."""

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def submit(self, worker: int, job: Job) -> None:
        """Give a job to a worker that has none."""
        ...

    def next(self) -> tuple[int, Record]:
        """Wait for any worker to finish its job.

        Raises:
            OmnitideError: A worker has met what ends the run, or is gone.
        """
        ...

    def close(self) -> None:
        """End all workers, whatever they do."""
        ...


class Worker:
    """A runner that warms up before its first job where kernels have to be compiled."""

    def __init__(self, model: OmniModel, options: RunOptions) -> None:
        self._runner = Runner(model, options)
        self._cold = describe_backend(model.backend.name).accelerated

    def run(self, job: Job) -> Record:
        """Follow a job's item."""
        if self._cold:
            self._runner.warm_up(job.item, job.setting)
            self._cold = False
        return self._runner.run(job.item, job.setting)


class InlinePool:
    """One worker: this process."""

    size = 1

    def __init__(self, model: OmniModel, options: RunOptions) -> None:
        self._worker = Worker(model, options)
        self._job: Job | None = None

    def submit(self, worker: int, job: Job) -> None:
        """Keep the job until `next`."""
        self._job = job

    def next(self) -> tuple[int, Record]:
        """Follow the job that was submitted."""
        job, self._job = self._job, None
        if job is None:
            raise ValueError("[pool] no job was submitted")
        return 0, self._worker.run(job)

    def close(self) -> None:
        """Nothing to end."""


def follow_all(pool: Pool, jobs: Sequence[Job]) -> Iterator[Record]:
    """Follow all jobs, a clip at a time on each worker; records as they come."""
    clips: dict[str, deque[Job]] = {}
    for job in jobs:
        clips.setdefault(job.item.clip, deque()).append(job)
    waiting = deque(clips.values())
    held: dict[int, deque[Job]] = {}
    for worker in range(pool.size):
        if waiting:
            held[worker] = waiting.popleft()
            pool.submit(worker, held[worker].popleft())
    while held:
        worker, record = pool.next()
        queue = held[worker]
        if not queue and waiting:
            queue = held[worker] = waiting.popleft()
        if queue:
            pool.submit(worker, queue.popleft())
        else:
            del held[worker]
        yield record
