"""Workers in processes of this machine, each behind a pipe."""

from __future__ import annotations

import contextlib
import signal
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from omnitide.errors import ConfigError, OmnitideError, SessionError
from omnitide.evaluation.pool import Job, LoadPlan, Worker
from omnitide.evaluation.record import Record

JOIN_SECONDS = 5.0


class ProcessPool:
    """A `Pool` of processes. They are started afresh, so no state of this process is in them."""

    def __init__(self, plan: LoadPlan, workers: int) -> None:
        """Start the processes; each loads the model when its first job comes.

        Raises:
            ConfigError: Fewer than one worker.
        """
        if workers < 1:
            raise ConfigError(f"[eval] --workers must be at least 1, got {workers}")
        context = get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        # Ctrl-C is this process's to handle: the others inherit that they never hear of it. The
        # tracker is started before, for its start lets the signal through again.
        resource_tracker.ensure_running()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for _ in range(workers):
                ours, theirs = context.Pipe()
                process = context.Process(target=serve, args=(theirs, plan), daemon=True)
                process.start()
                theirs.close()
                self._pipes.append(ours)
                self._processes.append(process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @property
    def size(self) -> int:
        """Processes."""
        return len(self._pipes)

    def submit(self, worker: int, job: Job) -> None:
        """Send a job.

        Raises:
            SessionError: The process is gone.
        """
        try:
            self._pipes[worker].send(job)
        except OSError as error:
            raise self._gone(worker) from error

    def next(self) -> tuple[int, Record]:
        """The next record that comes.

        Raises:
            OmnitideError: A worker could not load the model, or is gone.
        """
        ready: Any = wait(self._pipes)[0]
        worker = self._pipes.index(ready)
        try:
            found = ready.recv()
        except (EOFError, OSError) as error:
            raise self._gone(worker) from error
        if isinstance(found, OmnitideError):
            raise found
        return worker, found

    def close(self) -> None:
        """Kill the processes; what they had not sent is followed again in the next run."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(JOIN_SECONDS)
        for pipe in self._pipes:
            pipe.close()

    def _gone(self, worker: int) -> SessionError:
        process = self._processes[worker]
        process.join(JOIN_SECONDS)
        return SessionError(
            f"[eval] worker {worker} has ended (exit code {process.exitcode}), perhaps for want of "
            "memory; finished items are kept, run the same command again with fewer --workers"
        )


def serve(pipe: Connection, plan: LoadPlan) -> None:
    """What a process does: follow job after job until the other end of the pipe is gone."""
    worker: Worker | None = None
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            job: Job = pipe.recv()
            found: Record | OmnitideError
            try:
                worker = worker or Worker(plan.load(), plan.options)
                found = worker.run(job)
            except OmnitideError as error:
                found = error
            pipe.send(found)
