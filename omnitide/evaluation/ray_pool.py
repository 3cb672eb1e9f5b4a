"""Workers on the machines of a Ray cluster. Needs Ray: `pip install 'omnitide[ray]'`.

Every machine must see films and checkpoint under the same paths.
"""

from __future__ import annotations

from typing import Any

from omnitide.errors import ConfigError, OmnitideError, SessionError
from omnitide.evaluation.pool import Job, LoadPlan, Worker
from omnitide.evaluation.record import Record


def check_ray(gpus: float) -> Any:
    """The module of Ray.

    Raises:
        ConfigError: It is missing, or a count of GPUs that is none.
    """
    if not gpus >= 0:
        raise ConfigError(f"[eval] --ray-gpus must be at least 0, got {gpus:g}")
    try:
        import ray
    except ImportError as missing:
        raise ConfigError("[eval] --ray needs Ray; pip install 'omnitide[ray]'") from missing
    return ray


class RemoteWorker:
    """What an actor holds. Errors are values here: Ray would wrap what is raised."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._worker: Worker | None = None

    def run(self, job: Job) -> Record | OmnitideError:
        """Follow a job's item; the error that ends the run, where there is one."""
        try:
            self._worker = self._worker or Worker(self._plan.load(), self._plan.options)
            return self._worker.run(job)
        except OmnitideError as error:
            return error


class RayPool:
    """A `Pool` of Ray actors."""

    def __init__(self, plan: LoadPlan, workers: int, address: str | None, gpus: float) -> None:
        """Join the cluster and make the actors; each loads the model when its first job comes.

        Args:
            plan: How they load.
            workers: How many.
            address: Of the cluster, as `ray.init` takes it; None starts one on this machine.
            gpus: GPUs that an actor asks for.

        Raises:
            ConfigError: Ray is missing, the cluster can't be reached, or fewer than one worker.
        """
        if workers < 1:
            raise ConfigError(f"[eval] --workers must be at least 1, got {workers}")
        ray = self._ray = check_ray(gpus)
        self._started = not ray.is_initialized()
        if self._started:
            try:
                ray.init(address=address, include_dashboard=False, log_to_driver=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f"[eval] no Ray cluster at {address or 'this machine'} ({error}); start one "
                    "with `ray start --head`"
                ) from error
        actor = ray.remote(RemoteWorker)
        self._actors = [actor.options(num_gpus=gpus).remote(plan) for _ in range(workers)]
        self._pending: dict[Any, int] = {}

    @property
    def size(self) -> int:
        """Actors."""
        return len(self._actors)

    def submit(self, worker: int, job: Job) -> None:
        """Send a job to an actor."""
        self._pending[self._actors[worker].run.remote(job)] = worker

    def next(self) -> tuple[int, Record]:
        """The next record that comes.

        Raises:
            OmnitideError: An actor could not load the model, or is gone.
        """
        ready, _ = self._ray.wait(list(self._pending), num_returns=1)
        worker = self._pending.pop(ready[0])
        try:
            found = self._ray.get(ready[0])
        except self._ray.exceptions.RayError as error:
            raise SessionError(
                f"[eval] Ray worker {worker} is gone ({type(error).__name__}); finished items are "
                "kept, run the same command again"
            ) from error
        if isinstance(found, OmnitideError):
            raise found
        return worker, found

    def close(self) -> None:
        """Kill the actors, and leave the cluster if this pool joined it."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._started:
            self._ray.shutdown()
