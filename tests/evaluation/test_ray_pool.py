"""Ray workers: on Ray where it is installed, and on a stand-in with its interface everywhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from omnitide.errors import ConfigError, SessionError
from omnitide.evaluation.pool import Job, LoadPlan
from omnitide.evaluation.ray_pool import RayPool


class Reference:
    """A call that was submitted."""

    def __init__(self, bound: Callable[..., Any], given: tuple[Any, ...]) -> None:
        self.bound, self.given = bound, given


class StandIn(ModuleType):
    """What `ray_pool` uses of Ray, at once and in this process; the last call submitted is ready
    first."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.exceptions = ModuleType("ray.exceptions")
        self.exceptions.RayError = type("RayError", (Exception,), {})  # type: ignore[attr-defined]
        self.log: list[Any] = []
        self.running = False
        self.die = False

    def is_initialized(self) -> bool:
        return self.running

    def init(self, address: str | None, include_dashboard: bool, log_to_driver: bool) -> None:
        assert not include_dashboard
        if address == "nowhere":
            raise ConnectionError("no cluster")
        self.running = True
        self.log.append(("init", address))

    def remote(self, cls: type) -> Any:
        ray = self

        class Method:
            def __init__(self, bound: Callable[..., Any]) -> None:
                self.bound = bound

            def remote(self, *given: Any) -> Any:
                return Reference(self.bound, given)

        class Handle:
            def __init__(self, made: Any) -> None:
                self.run = Method(made.run)

        class Actor:
            @staticmethod
            def options(num_gpus: float) -> Any:
                ray.log.append(("gpus", num_gpus))
                return Actor

            @staticmethod
            def remote(*given: Any) -> Any:
                return Handle(cls(*given))

        return Actor

    def wait(self, references: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return references[-num_returns:], references[:-num_returns]

    def get(self, reference: Any) -> Any:
        if self.die:
            raise self.exceptions.RayError("the actor died")
        return reference.bound(*reference.given)

    def kill(self, actor: Any) -> None:
        self.log.append("kill")

    def shutdown(self) -> None:
        self.running = False
        self.log.append("shutdown")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A stand-in for Ray."""
    made = StandIn()
    monkeypatch.setitem(sys.modules, "ray", made)
    return made


@pytest.fixture(params=["stand-in", "ray"])
def ray(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Ray, or the stand-in."""
    if request.param == "ray":
        if find_spec("ray") is None:
            pytest.skip("Ray is not installed")
        monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    else:
        monkeypatch.setitem(sys.modules, "ray", StandIn())
    return str(request.param)


def without_times(path: Path) -> list[Any]:
    """Replies and marks of a journal, by setting and item."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = [
        (
            line["record"]["setting"],
            line["record"]["item"],
            [(a["question"], a["reply"], a["tokens_kept"]) for a in line["record"]["answers"]],
            line["marks"],
        )
        for line in lines
    ]
    return sorted(found)


def test_ray_gives_what_one_process_gives(
    ray: str, call: Callable[..., Any], small: tuple[Any, ...], tmp_path: Path
) -> None:
    sweep = ("--policy", "omnipick,full", "--watermarks", "300/200")
    assert call(*small, *sweep, "--out", tmp_path / "one").code == 0
    done = call(*small, *sweep, "--out", tmp_path / "ray", "--ray", "local", "--workers", 2)
    assert done.code == 0, done.err
    one, other = tmp_path / "one" / "items.jsonl", tmp_path / "ray" / "items.jsonl"
    assert without_times(other) == without_times(one)
    assert len(without_times(one)) == 6


def test_the_cluster_is_joined_and_left(stand_in: StandIn) -> None:
    pool = RayPool(LoadPlan(), 2, "auto", 0.5)
    assert pool.size == 2
    pool.close()
    assert stand_in.log == [
        ("init", "auto"), ("gpus", 0.5), ("gpus", 0.5), "kill", "kill", "shutdown",
    ]  # fmt: skip


def test_a_cluster_that_was_joined_before_stays(stand_in: StandIn) -> None:
    stand_in.running = True
    RayPool(LoadPlan(), 1, None, 0.0).close()
    assert stand_in.log == [("gpus", 0.0), "kill"]


def test_a_worker_that_dies_is_told(stand_in: StandIn) -> None:
    pool = RayPool(LoadPlan(), 1, None, 0.0)
    pool.submit(0, Job(None, None))  # type: ignore[arg-type]
    stand_in.die = True
    with pytest.raises(SessionError, match="Ray worker 0 is gone"):
        pool.next()


def test_an_error_of_loading_comes_as_itself(stand_in: StandIn, tmp_path: Path) -> None:
    from omnitide.errors import CheckpointError

    pool = RayPool(LoadPlan(model=str(tmp_path)), 1, None, 0.0)
    pool.submit(0, Job(None, None))  # type: ignore[arg-type]
    with pytest.raises(CheckpointError):
        pool.next()


@pytest.mark.parametrize(
    ("workers", "address", "gpus", "message"),
    [
        (0, None, 0.0, "--workers must be at least 1, got 0"),
        (1, None, -1.0, "--ray-gpus must be at least 0, got -1"),
        (1, "nowhere", 0.0, "no Ray cluster at nowhere"),
    ],
)
def test_what_makes_no_sense_is_refused(
    stand_in: StandIn, workers: int, address: str | None, gpus: float, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        RayPool(LoadPlan(), workers, address, gpus)


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'omnitide\[ray\]'"):
        RayPool(LoadPlan(), 1, None, 0.0)
