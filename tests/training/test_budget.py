"""What part of the training has passed: by steps, by the clock, in another process."""

from __future__ import annotations

import multiprocessing

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")


def test_by_steps() -> None:
    from training.learn.budget import Budget

    budget = Budget.of(10, 10, 8, 0.0)
    assert [budget(step) for step in (0, 2, 8, 9)] == [0, 0.25, 1, 1]
    assert not budget.over(7)
    assert budget.over(8)


def test_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    from training.learn import budget as module

    now = [100.0]
    monkeypatch.setattr(module.clock, "monotonic", lambda: now[0])
    # The second of three parts of two minutes.
    budget = module.Budget.of(6, 2, None, 120.0)
    assert budget(0) == pytest.approx(1 / 3)
    now[0] += 60
    assert budget.elapsed == pytest.approx(180)
    assert budget.tell(5) == pytest.approx(0.5)
    assert not budget.over(5)
    now[0] += 60
    assert budget.over(5)
    assert budget.tell(9) == pytest.approx(2 / 3)


def test_workers_see_what_is_told() -> None:
    from training.learn.budget import Budget

    budget = Budget.of(1, 1, None, 0.0)
    queue = multiprocessing.get_context("fork").SimpleQueue()
    budget.shared.value = 0.75
    worker = multiprocessing.get_context("fork").Process(target=lambda: queue.put(budget(3)))
    worker.start()
    assert queue.get() == 0.75
    worker.join()
