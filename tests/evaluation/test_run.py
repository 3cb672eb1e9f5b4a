"""Runs: each item once, whatever stops them; the same from one process as from several."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from omnitide.errors import ConfigError, SessionError
from omnitide.evaluation.dataset import Dataset
from omnitide.evaluation.item import Item, Question
from omnitide.evaluation.journal import Journal, read_lines
from omnitide.evaluation.mark import Mark
from omnitide.evaluation.pool import Job, LoadPlan, follow_all
from omnitide.evaluation.processes import ProcessPool
from omnitide.evaluation.record import Answer, Record
from omnitide.evaluation.results import latest, read_results
from omnitide.evaluation.run import run_all
from omnitide.evaluation.setting import Setting
from omnitide.evaluation.streamingbench import StreamingBench

SWEEP = ("--policy", "omnipick,full", "--watermarks", "300/200")
SETTINGS = (Setting("full"), Setting("fifo", 300, 200))


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]


def said(folder: Path) -> list[Any]:
    """Everything of a journal that is no time, sorted."""
    return sorted(
        (
            line["record"]["setting"],
            line["record"]["item"],
            line["order"],
            [(a["question"], a["reply"], a["asked"], a["tokens_kept"])
             for a in line["record"]["answers"]],
            line["record"]["peak_span"],
            line["marks"],
        )
        for line in lines_of(folder)
    )  # fmt: skip


class FakePool:
    """Workers that answer at once, in an order of their own, and may stop the run."""

    def __init__(self, size: int, stop_after: int = 10**6, stop: BaseException | None = None):
        self.size = size
        self.running: dict[int, Job] = {}
        self.followed: list[tuple[int, str, str]] = []
        self.left, self.stop = stop_after, stop
        self.closed = False

    def submit(self, worker: int, job: Job) -> None:
        assert worker not in self.running, "a worker follows one job at a time"
        self.running[worker] = job

    def next(self) -> tuple[int, Record]:
        if self.left == 0 and self.stop is not None:
            raise self.stop
        self.left -= 1
        worker = max(self.running)
        job = self.running.pop(worker)
        self.followed.append((worker, job.item.clip, job.setting.name))
        answers = tuple(Answer(q.id, "B", 1.0) for q in job.item.questions)
        return worker, Record(job.item.id, job.item.clip, job.setting.name, answers)

    def close(self) -> None:
        self.closed = True


def items(count: int, per_clip: int = 2) -> tuple[Item, ...]:
    from omnitide.evaluation.film import Film

    tags = {"options": '["A. x", "B. y"]'}
    question = Question("0", "?", 1.0, "B", "Counting", tags=tags)
    return tuple(
        Item(f"c{i // per_clip}/{i}", f"c{i // per_clip}", Film("none"), (question,))
        for i in range(count)
    )


def run(folder: Path, pool: FakePool, made: Sequence[Item], **more: Any) -> None:
    run_all(StreamingBench(), Dataset(tuple(made)), SETTINGS, folder, lambda: pool, **more)


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_every_item_is_followed_once_under_every_setting(tmp_path: Path, workers: int) -> None:
    made, pool = items(9), FakePool(workers)
    run(tmp_path, pool, made)
    expected = sorted((s.name, i.id) for s in SETTINGS for i in made)
    found = [(line["record"]["setting"], line["record"]["item"]) for line in lines_of(tmp_path)]
    assert sorted(found) == expected
    assert pool.closed
    by_clip: dict[str, set[int]] = {}
    for worker, clip, _ in pool.followed:
        by_clip.setdefault(clip, set()).add(worker)
    assert all(len(workers) == 1 for workers in by_clip.values())


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SessionError("gone"), MemoryError()])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_run_that_stops_anywhere_goes_on_without_loss_or_repetition(
    tmp_path: Path, workers: int, stop: BaseException
) -> None:
    made = items(5)
    followed = 0
    for after in (0, 1, 3, 2):
        pool = FakePool(workers, after, stop)
        with pytest.raises(type(stop)):
            run(tmp_path, pool, made)
        assert pool.closed
        followed += after
        assert len(lines_of(tmp_path)) == followed
    last = FakePool(workers)
    run(tmp_path, last, made)
    assert len(last.followed) == 10 - followed
    found = [(line["record"]["setting"], line["record"]["item"]) for line in lines_of(tmp_path)]
    assert len(found) == len(set(found)) == 10
    nothing = FakePool(workers)
    run(tmp_path, nothing, made)
    assert nothing.followed == []


def test_a_torn_line_is_cut_off_and_its_item_followed_again(tmp_path: Path) -> None:
    made = items(2)
    run(tmp_path, FakePool(1), made)
    path = tmp_path / "items.jsonl"
    whole = path.read_bytes()
    start = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in (len(whole) - 1, (start + len(whole)) // 2, start + 1):
        path.write_bytes(whole[:end])
        pool = FakePool(1)
        run(tmp_path, pool, made)
        assert len(pool.followed) == 1
        assert path.read_bytes() == whole


def test_a_torn_line_that_ends_is_cut_off_too(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": \n')
    with Journal(path) as journal:
        assert journal.lines == [{"a": 1}]
        journal.add({"c": 3})
    assert list(read_lines(path)) == [{"a": 1}, {"c": 3}]


@pytest.mark.parametrize("bad", [b"words\n", b"[1]\n"])
def test_a_damaged_journal_is_refused(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(bad + b'{"a": 1}\n')
    with pytest.raises(ConfigError, match="line 1 is no line of results"):
        Journal(path)
    Journal(tmp_path / "other.jsonl").close()


def test_two_runs_never_write_to_one_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / "j.jsonl"), pytest.raises(ConfigError, match="another run writes"):
        Journal(tmp_path / "j.jsonl")
    Journal(tmp_path / "j.jsonl").close()


def test_what_failed_is_tried_again_only_if_asked(tmp_path: Path) -> None:
    made = items(2)

    class Failing(FakePool):
        def next(self) -> tuple[int, Record]:
            worker, record = super().next()
            if record.item.endswith("1"):
                return worker, Record(record.item, record.clip, record.setting, error="broke")
            return worker, record

    run(tmp_path, Failing(1), made)
    assert [line["marks"] == [] for line in lines_of(tmp_path)] == [False, False, True, True]
    quiet, again = FakePool(1), FakePool(1)
    run(tmp_path, quiet, made)
    run(tmp_path, again, made, retry_failed=True)
    assert (len(quiet.followed), len(again.followed)) == (0, 2)
    from omnitide.evaluation.results import Result

    found = latest([Result.from_dict(line, tmp_path) for line in lines_of(tmp_path)])
    assert [result.record.error for result in found] == [None] * 4


def test_jobs_are_handed_out_as_workers_become_free() -> None:
    jobs = [Job(item, setting) for item in items(6) for setting in SETTINGS]
    pool = FakePool(2)
    assert len(list(follow_all(pool, jobs))) == 12
    assert {worker for worker, _, _ in pool.followed} == {0, 1}


def test_workers_give_what_one_process_gives(
    call: Callable[..., Any], small: tuple[Any, ...], tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert call(*small, *SWEEP, "--out", one).code == 0
    assert call(*small, *SWEEP, "--out", two, "--workers", 2).code == 0
    assert said(one) == said(two)

    def scores(folder: Path) -> Any:
        found = json.loads((folder / "summary.json").read_text())
        timed = ("session, s", "update, ms")
        for part in (*found["settings"], *found["differences"]):
            part["scores"] = {k: v for k, v in part["scores"].items() if k not in timed}
        return found

    assert scores(one) == scores(two)
    assert len(lines_of(one)) == 6


def test_marks_are_those_of_the_replies(
    call: Callable[..., Any], small: tuple[Any, ...], tmp_path: Path
) -> None:
    assert call(*small, "--out", tmp_path / "out").code == 0
    for line in lines_of(tmp_path / "out"):
        replies = {a["question"]: a["reply"] for a in line["record"]["answers"]}
        right = {"0": "B", "1": "A"}
        official = [Mark.from_list(m) for m in line["marks"] if m[2] == "official"]
        assert {m.question.rpartition("#")[2]: m.value for m in official} == {
            name: float(reply[:1] == right[name]) for name, reply in replies.items()
        }


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_program_that_is_stopped_goes_on_with_the_same_command(
    start: Callable[..., Any],
    call: Callable[..., Any],
    small: tuple[Any, ...],
    tmp_path: Path,
    how: signal.Signals,
    workers: int,
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    process = start(*small, *SWEEP, "--out", out, "--workers", workers)
    journal = out / "items.jsonl"
    deadline = time.monotonic() + 60
    while not (journal.is_file() and journal.read_bytes().count(b"\n") >= 2):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does: all processes get it
    else:
        process.send_signal(how)
    _, err = process.communicate(timeout=60)
    # 0 if it was done before the signal came
    assert process.returncode in (130 if how == signal.SIGINT else -how, 0)
    assert "Traceback" not in err
    assert "SpawnProcess" not in err
    if process.returncode == 130:
        assert "interrupted; run the same command again to go on" in err
    data = journal.read_bytes()
    before = data[: data.rfind(b"\n") + 1]
    assert call(*small, *SWEEP, "--out", out).code == 0
    assert journal.read_bytes().startswith(before)
    assert call(*small, *SWEEP, "--out", whole).code == 0
    assert said(out) == said(whole)


def test_a_worker_that_is_killed_ends_the_run_and_loses_nothing(
    call: Callable[..., Any],
    small: tuple[Any, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submitted = ProcessPool.submit
    count = 0

    def submit(self: ProcessPool, worker: int, job: Job) -> None:
        nonlocal count
        count += 1
        if count == 4:
            self._processes[worker].kill()
        submitted(self, worker, job)

    monkeypatch.setattr(ProcessPool, "submit", submit)
    out = tmp_path / "out"
    done = call(*small, *SWEEP, "--out", out, "--workers", 2)
    assert done.code == 2
    assert "has ended" in done.err
    assert "run the same command again" in done.err
    kept = said(out)
    assert 1 <= len(kept) < 6
    monkeypatch.setattr(ProcessPool, "submit", submitted)
    assert call(*small, *SWEEP, "--out", out, "--workers", 2).code == 0
    assert len(lines_of(out)) == 6
    assert all(line in said(out) for line in kept)


@pytest.mark.parametrize("accelerated", [True, False])
def test_a_worker_warms_up_once_where_kernels_are_compiled(
    monkeypatch: pytest.MonkeyPatch, accelerated: bool
) -> None:
    from types import SimpleNamespace

    from omnitide.evaluation import pool as pool_module
    from omnitide.evaluation.runner import Runner, RunOptions

    log: list[str] = []
    facts = SimpleNamespace(accelerated=accelerated)
    monkeypatch.setattr(pool_module, "describe_backend", lambda name: facts)
    monkeypatch.setattr(Runner, "warm_up", lambda self, item, setting: log.append("warm up"))
    monkeypatch.setattr(Runner, "run", lambda self, item, setting: log.append(item.id))
    model: Any = SimpleNamespace(backend=SimpleNamespace(name="any"))
    worker = pool_module.Worker(model, RunOptions())
    for item in items(2):
        worker.run(Job(item, SETTINGS[0]))
    assert log == [*(["warm up"] if accelerated else []), "c0/0", "c0/1"]


def test_an_error_of_loading_comes_from_a_worker_as_itself(tmp_path: Path) -> None:
    from omnitide.errors import CheckpointError

    pool = ProcessPool(LoadPlan(model=str(tmp_path), backend="reference"), 1)
    try:
        pool.submit(0, Job(items(1)[0], SETTINGS[0]))
        with pytest.raises(CheckpointError):
            pool.next()
    finally:
        pool.close()


def test_a_sweep_may_grow(call: Callable[..., Any], small: tuple[Any, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert call(*small, "--out", out, "--policy", "full").code == 0
    before = (out / "items.jsonl").read_bytes()
    assert call(*small, "--out", out, "--policy", "fifo", "--watermarks", "300/200").code == 0
    assert (out / "items.jsonl").read_bytes().startswith(before)
    results = read_results(out)
    assert results.settings == ("full", "fifo 300/200")
    found = json.loads((out / "summary.json").read_text())
    assert [(d["setting"], d["less"]) for d in found["differences"]] == [("fifo 300/200", "full")]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (("--fps", "2.0"), "another options (fps 1.0, now 2.0)"),
        (("--system-prompt", "Be brief."), "options"),
        (("--as-published",), "another reading (as_published false, now true)"),
        (("--dtype", "float64"), "dtype"),
        (("--protocol", "official"), "holds none"),
    ],
)
def test_results_of_different_runs_are_never_mixed(
    call: Callable[..., Any],
    small: tuple[Any, ...],
    tmp_path: Path,
    change: tuple[str, ...],
    key: str,
) -> None:
    out = tmp_path / "out"
    assert call(*small, "--out", out, "--limit", 1).code == 0
    before = (out / "items.jsonl").read_bytes()
    done = call(*small, "--out", out, "--limit", 1, *change)
    assert done.code == 2
    assert key in done.err
    assert (out / "items.jsonl").read_bytes() == before


def test_other_data_are_refused(
    call: Callable[..., Any],
    small: tuple[Any, ...],
    streaming: Any,
    ask: Callable[..., Any],
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    assert call(*small, "--out", out, "--limit", 1).code == 0
    entries = [{"video_path": "sample_0_real.mp4", "questions": [ask("00:00:05")]}]
    streaming.write("questions_real_stream.json", entries)
    done = call(*small, "--out", out)
    assert done.code == 2
    assert "another data" in done.err
    assert "take another --out" in done.err
